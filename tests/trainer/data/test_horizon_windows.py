import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pipeline.store.errors import DataFormatError
from tests.references import window
from tests.stores import make_table, numbers_of
from trainer.data.horizon_windows import HorizonSampler

SAMPLER = HorizonSampler(max_horizon=6, discount=0.99)


def draw(table, sampler=SAMPLER, size=4096, seed=0, step=0):
    return sampler.draw(table, numbers_of(table, sampler, size, seed=seed, step=step))


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6).filter(
        lambda lengths: max(lengths) > 6
    ),
    seed=st.integers(0, 1000),
)
def test_windows_stay_in_their_episode_and_sum_as_a_loop_does(lengths, seed) -> None:
    table = make_table(lengths, seed=seed)
    index = draw(table, size=64, seed=seed)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    last = table.episode_starts + table.episode_lengths - 1
    k, i = index.rows_k - index.rows, index.rows_i - index.rows
    assert (episode[index.rows] == episode[index.rows_k]).all()
    assert ((k >= 2) & (k <= 6)).all()
    assert ((i >= 1) & (i < k)).all()
    assert (index.rows_k <= last[episode[index.rows]]).all()
    for b in range(64):
        total, alive = window(
            table.rewards, table.masks, index.rows[b], int(k[b]), 0.99
        )
        assert index.returns_k[b] == pytest.approx(float(total), abs=1e-5)
        assert index.alive_k[b] == alive
        _, alive_i = window(table.rewards, table.masks, index.rows[b], int(i[b]), 0.99)
        assert index.alive_i[b] == alive_i


def test_every_row_with_two_successors_is_equally_likely() -> None:
    table = make_table([3, 1, 9, 2, 8])
    index = draw(table, size=60_000)
    counts = np.bincount(index.rows, minlength=table.rows)
    # 1 + 7 + 6 starts: rows 0; 4..10; 15..20.
    possible = np.r_[0, 4:11, 15:21]
    assert set(np.flatnonzero(counts)) == set(possible)
    assert stats.chisquare(counts[possible]).pvalue > 1e-3


def test_horizons_are_uniform_and_shortened_at_the_end() -> None:
    table = make_table([50])
    index = draw(table, size=60_000)
    k = index.rows_k - index.rows
    inner = index.rows < 40
    counts = np.bincount(k[inner], minlength=7)[2:]
    assert len(counts) == 5
    assert stats.chisquare(counts).pvalue > 1e-3
    assert set(k[index.rows == 47]) == {2}
    i = (index.rows_i - index.rows)[inner & (k == 6)]
    assert stats.chisquare(np.bincount(i, minlength=6)[1:]).pvalue > 1e-3


def test_windows_of_one_step_where_asked_for() -> None:
    sampler = HorizonSampler(max_horizon=3, discount=0.99, min_horizon=1)
    table = make_table([4, 2])
    index = draw(table, sampler, size=20_000)
    k, i = index.rows_k - index.rows, index.rows_i - index.rows
    # Starts 0, 1, 2 and 4, with up to 3, 2, 1 and 1 steps.
    assert set(index.rows) == {0, 1, 2, 4}
    assert set(k[index.rows == 0]) == {1, 2, 3}
    assert set(k[index.rows == 4]) == {1}
    assert (i[k == 1] == 1).all()
    assert (i[k > 1] < k[k > 1]).all()
    one = k == 1
    np.testing.assert_allclose(
        index.returns_k[one], table.rewards[index.rows[one]], atol=1e-6
    )


def test_goal_shares() -> None:
    table = make_table([1000, 1000])
    index = draw(table, size=50_000)
    own = index.goals == index.rows
    other = (index.goals // 1000) != (index.rows // 1000)
    # A random state is of the other episode half the time.
    assert own.mean() == pytest.approx(0.1, abs=0.01)
    assert other.mean() == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize("rule", ["uniform", "geometric", "horizon"])
def test_goal_rules(rule) -> None:
    sampler = HorizonSampler(
        max_horizon=6, discount=0.9, goal_shares=(0, 1, 0), goal_rule=rule
    )
    table = make_table([200], discount=0.9)
    index = draw(table, sampler, size=40_000)
    ahead = index.goals - index.rows
    assert (ahead >= 1).all()
    assert (index.goals <= 199).all()
    start = index.rows < 50
    if rule == "horizon":
        assert set(ahead[start]) == {1, 2, 3, 4, 5, 6}
    elif rule == "geometric":
        assert ahead[start].mean() == pytest.approx(10, rel=0.03)  # 1 / (1 - 0.9)
    else:
        exact = (199 - index.rows[start] + 1) / 2
        assert (ahead[start] / exact).mean() == pytest.approx(1, abs=0.03)


def test_batches_depend_on_data_sampler_seed_and_step_only() -> None:
    table = make_table([50, 60])
    again = make_table([50, 60])
    first = draw(table, step=7)
    np.testing.assert_array_equal(first.rows, draw(again, step=7).rows)
    others = [
        draw(table, step=8),
        draw(table, step=7, seed=1),
        draw(make_table([50, 60], task=2), step=7),
        draw(table, HorizonSampler(max_horizon=5, discount=0.99), step=7),
    ]
    for other in others:
        assert (other.rows != first.rows).mean() > 0.9


def test_first_batch_is_pinned() -> None:
    # A silent change of the stream would spoil every comparison with earlier runs:
    # if this fails on purpose, say so in the changelog under random streams.
    index = draw(make_table([50, 60]), size=6, seed=3, step=5)
    assert index.rows.tolist() == [86, 46, 86, 3, 28, 47]
    assert index.rows_k.tolist() == [88, 49, 91, 5, 31, 49]
    assert index.goals.tolist() == [93, 47, 104, 31, 43, 49]


def test_gather_looks_up_what_the_index_says() -> None:
    table = make_table([20, 30])
    index = draw(table, size=32)
    batch = SAMPLER.gather(table.observations, table.actions, index)
    for b in range(32):
        t, k, i = index.rows[b], int(batch.horizons[b]), int(batch.intermediates[b])
        np.testing.assert_array_equal(batch.observations[b], table.observations[t])
        np.testing.assert_array_equal(
            batch.next_observations[b], table.observations[t + 1]
        )
        np.testing.assert_array_equal(batch.states_k[b], table.observations[t + k])
        np.testing.assert_array_equal(batch.states_i[b], table.observations[t + i])
        np.testing.assert_array_equal(
            batch.goals[b], table.observations[index.goals[b]]
        )
        np.testing.assert_array_equal(batch.actions[b], table.actions[t])
    assert len({batch.horizons.dtype, np.dtype(np.float32)}) == 1


def test_refusals() -> None:
    with pytest.raises(DataFormatError, match="longest of 2 episodes has 2"):
        SAMPLER.check(make_table([2, 1]))
    with pytest.raises(DataFormatError, match="set it to at most 4"):
        SAMPLER.check(make_table([5, 4]))
    with pytest.raises(ValueError, match=r"discount 0\.9.*agent's is 0\.99"):
        SAMPLER.check(make_table([50], discount=0.9))
    with pytest.raises(ValueError, match="expected 1 or 2, got 3"):
        HorizonSampler(max_horizon=3, discount=0.9, min_horizon=3)
    with pytest.raises(ValueError, match="at least 2"):
        HorizonSampler(max_horizon=1, discount=0.9)
    with pytest.raises(ValueError, match="sum to 1"):
        HorizonSampler(max_horizon=3, discount=0.9, goal_shares=(0.5, 0.1, 0.1))
