import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pipeline.store.errors import DataFormatError
from pipeline.store.returns import next_solved, suffix_sums
from tests.references import longest_window, window
from tests.stores import make_table, numbers_of
from trainer.data.horizon_windows import EndingHorizonSampler, HorizonSampler
from trainer.data.table import RowTable

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


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6).filter(
        lambda lengths: max(lengths) > 6
    ),
    min_horizon=st.sampled_from([1, 2]),
    share=st.floats(0, 0.6),
    seed=st.integers(0, 1000),
)
def test_no_window_goes_past_success_where_that_ends_it(
    lengths, min_horizon, share, seed
) -> None:
    sampler = EndingHorizonSampler(
        max_horizon=6, discount=0.99, min_horizon=min_horizon
    )
    table = make_table(lengths, seed=seed, share=share)
    index = draw(table, sampler, size=64, seed=seed)
    last = np.repeat(table.episode_starts + table.episode_lengths - 1, lengths)
    for b in range(64):
        t, end = index.rows[b], index.rows_k[b]
        longest = longest_window(table.masks, t, last[t], 6)
        assert min(min_horizon, longest) <= end - t <= longest
        assert t < index.rows_i[b] < end or index.rows_i[b] == end == t + 1
        total, _ = window(table.rewards, table.masks, t, end - t, 0.99)
        assert index.returns_k[b] == pytest.approx(float(total), abs=1e-5)
        # Nothing in between is solved: what is left to ask is whether the start was.
        assert index.alive_k[b] == index.alive_i[b] == index.masks[b]


def test_horizons_are_uniform_up_to_success_and_of_one_step_right_before_it() -> None:
    table = make_table([50, 60])
    assert np.flatnonzero(table.masks == 0).tolist() == [30, 68, 73]
    sampler = EndingHorizonSampler(max_horizon=6, discount=0.99)
    index = draw(table, sampler, size=100_000)
    k = index.rows_k - index.rows
    # Steps to row 30, or K; 73 is five steps after 68, which is solved itself.
    for start, longest in ((24, 6), (25, 5), (27, 3), (30, 6), (68, 5), (70, 3)):
        counts = np.bincount(k[index.rows == start])
        assert len(counts) == longest + 1
        assert counts[:2].tolist() == [0, 0]
        assert stats.chisquare(counts[2:]).pvalue > 1e-3
    for start, only in ((28, 2), (66, 2), (29, 1), (67, 1), (72, 1)):
        assert set(k[index.rows == start]) == {only}
    one = k == 1
    assert set(index.rows[one]) == {29, 67, 72}
    np.testing.assert_array_equal(index.rows_i[one], index.rows_k[one])
    # Every start that there was is one still.
    assert set(index.rows) == {*range(48), *range(50, 108)}


def make_transitions(counts, ends) -> RowTable:
    """Episodes of transitions: a terminal one has the only reward, and mask 0."""
    rows = np.concatenate(
        [np.eye(1, n + 1, n - 1)[0] * end for n, end in zip(counts, ends, strict=True)]
    )
    lengths = np.array(counts) + 1
    masks = (1 - rows).astype(np.float32)
    returns = suffix_sums(rows[:, None], masks[:, None], lengths, discount=0.99)
    return dataclasses.replace(
        make_table(lengths.tolist()),
        rewards=rows.astype(np.float32),
        masks=masks,
        returns=returns[:, 0],
        next_solved=next_solved(masks),
    )


def test_terminal_transitions_are_windows_of_one_step() -> None:
    # The second episode is cut off; the last one is a single transition.
    table = make_transitions([9, 6, 4, 1], [1, 0, 1, 1])
    assert np.flatnonzero(table.masks == 0).tolist() == [8, 20, 22]
    sampler = EndingHorizonSampler(max_horizon=4, discount=0.99)
    index = draw(table, sampler, size=60_000)
    counts = np.bincount(index.rows, minlength=table.rows)
    possible = [*range(8), *range(10, 15), *range(17, 20), 8, 20, 22]
    assert set(np.flatnonzero(counts)) == set(possible)
    assert stats.chisquare(counts[possible]).pvalue > 1e-3
    terminal = np.isin(index.rows, (8, 20, 22))
    assert (index.rewards == terminal).all()
    assert (index.masks == ~terminal).all()
    np.testing.assert_allclose(index.returns_k, terminal, atol=1e-6)
    for name in ("rows_k", "rows_i"):
        assert (getattr(index, name)[terminal] == index.rows[terminal] + 1).all()
    # What they were before: no window has a reward at all.
    without = draw(table, dataclasses.replace(sampler, terminal_starts=False), size=999)
    assert not without.rewards.any()
    assert np.abs(without.returns_k).max() < 1e-6


def test_data_that_go_on_after_success_are_drawn_as_before() -> None:
    table = make_table([50, 60])
    assert len(table.terminal_rows) == 0
    sampler = EndingHorizonSampler(max_horizon=6, discount=0.99)
    before = dataclasses.replace(sampler, terminal_starts=False)
    for ours, theirs in zip(draw(table, sampler), draw(table, before), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_windows_up_to_success_as_worked_out_by_hand() -> None:
    sampler = EndingHorizonSampler(max_horizon=25, discount=0.99)
    # 48 + 58 starts; row 66 is the 64th. The longest windows have 3 = 30 - 27 steps,
    # 1 = 30 - 29, 19 = 49 - 30 and 2 = 68 - 66.
    starts = (np.array([27, 27, 29, 30, 64]) + 0.5) / 106
    uniform = np.zeros((6, 5))
    uniform[:3] = starts, [0.4, 0.6, 0.9, 0.5, 0.9], [0.9, 0.9, 0.9, 0.5, 0.9]
    index = sampler.draw(make_table([50, 60]), uniform)
    assert index.rows.tolist() == [27, 27, 29, 30, 66]
    # k = 2 + floor(0.4 * 2), 2 + floor(0.6 * 2), 1, 2 + floor(0.5 * 18), 2.
    assert (index.rows_k - index.rows).tolist() == [2, 3, 1, 11, 2]
    # i = 1 + floor(0.9 * 1), 1 + floor(0.9 * 2), 1, 1 + floor(0.5 * 10), 1.
    assert (index.rows_i - index.rows).tolist() == [1, 2, 1, 6, 1]
    # -1 - 0.99, -1 - 0.99 - 0.9801, -1; the solved start collects its 0 and ends.
    np.testing.assert_allclose(
        index.returns_k, [-1.99, -2.9701, -1, 0, -1.99], atol=1e-6
    )
    assert index.alive_k.tolist() == [1, 1, 1, 0, 1]


def test_an_index_is_drawn_element_by_element() -> None:
    # Hosts draw their rows of a batch alone.
    table = make_table([50, 60], share=0.2)
    sampler = EndingHorizonSampler(max_horizon=6, discount=0.99)
    uniform = np.random.default_rng(0).random((6, 64))
    whole = sampler.draw(table, uniform)
    for part in (slice(0, 16), slice(16, 64)):
        for one, all_rows in zip(
            sampler.draw(table, uniform[:, part]), whole, strict=True
        ):
            np.testing.assert_array_equal(one, all_rows[part])


def test_goal_shares() -> None:
    table = make_table([1000, 1000])
    index = draw(table, size=50_000)
    own = index.goals == index.rows
    other = (index.goals // 1000) != (index.rows // 1000)
    # A random state is of the other episode half the time.
    assert own.mean() == pytest.approx(0.1, abs=0.01)
    assert other.mean() == pytest.approx(0.05, abs=0.01)


def test_geometric_goals_of_discount_1_are_the_last_rows() -> None:
    sampler = HorizonSampler(
        max_horizon=6, discount=1.0, goal_shares=(0, 1, 0), goal_rule="geometric"
    )
    index = draw(make_table([200], discount=1.0), sampler, size=100)
    assert set(index.goals) == {199}


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


def test_first_batch_is_pinned() -> None:
    # A silent change of the stream would spoil every comparison with earlier runs:
    # if this fails on purpose, say so in the changelog under random streams.
    index = draw(make_table([50, 60]), size=6, seed=3, step=5)
    assert index.rows.tolist() == [86, 46, 86, 3, 28, 47]
    assert index.rows_k.tolist() == [88, 49, 91, 5, 31, 49]
    assert index.goals.tolist() == [93, 47, 104, 31, 43, 49]


def test_first_batch_with_windows_past_success_is_pinned() -> None:
    # Of agent.success = "mixed", which runs are gone on with: rows 30 and 68 are
    # solved. The sampler's text is part of the stream's key.
    sampler = HorizonSampler(max_horizon=25, discount=0.99)
    assert repr(sampler) == (
        "HorizonSampler(max_horizon=25, discount=0.99, min_horizon=2, "
        "goal_shares=(0.1, 0.8, 0.1), goal_rule='uniform')"
    )
    index = draw(make_table([50, 60]), sampler, size=12, seed=3, step=5)
    assert index.rows.tolist() == [94, 27, 15, 74, 47, 98, 8, 56, 2, 50, 72, 42]
    assert index.rows_k.tolist() == [*(100, 32, 19, 93, 49, 109, 16, 74, 9, 64, 83, 45)]
    assert np.flatnonzero(index.alive_k == 0).tolist() == [1, 7, 10]
    # -1 - 0.99 - 0.99**2, and 12 steps to row 68: -(1 - 0.99**12) / 0.01.
    np.testing.assert_allclose(index.returns_k[[1, 7]], [-2.9701, -11.361513], 1e-6)


def test_first_batch_with_windows_up_to_success_is_pinned() -> None:
    # Of agent.success = "ends".
    sampler = EndingHorizonSampler(max_horizon=25, discount=0.99)
    assert repr(sampler) == (
        "EndingHorizonSampler(max_horizon=25, discount=0.99, min_horizon=2, "
        "goal_shares=(0.1, 0.8, 0.1), goal_rule='uniform')"
    )
    index = draw(make_table([50, 60]), sampler, size=12, seed=3, step=5)
    assert index.rows.tolist() == [101, 37, 56, 55, 62, 74, 5, 22, 80, 34, 80, 27]
    assert index.rows_k.tolist() == [
        *(106, 40, 66, 68, 66, 96, 17, 24, 104, 48, 102, 29)
    ]
    assert index.rows_i.tolist() == [
        *(103, 38, 65, 61, 64, 94, 12, 23, 101, 47, 99, 28)
    ]
    assert index.goals.tolist() == [*(106, 46, 76, 85, 65, 81, 9, 38, 81, 48, 81, 42)]


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
        SAMPLER.check(np.array([2, 1]), discount=0.99)
    with pytest.raises(DataFormatError, match="max_horizon: expected at most 4"):
        SAMPLER.check(np.array([5, 4]), discount=0.99)
    with pytest.raises(ValueError, match=r"agent's discount 0\.99, got 0\.9;"):
        SAMPLER.check(np.array([50]), discount=0.9)
    with pytest.raises(ValueError, match="expected 1 or 2, got 3"):
        HorizonSampler(max_horizon=3, discount=0.9, min_horizon=3)
    with pytest.raises(ValueError, match="at least 2"):
        HorizonSampler(max_horizon=1, discount=0.9)
    with pytest.raises(ValueError, match="sum to 1"):
        HorizonSampler(max_horizon=3, discount=0.9, goal_shares=(0.5, 0.1, 0.1))
