import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.store.returns import next_solved, suffix_sums, window_returns

# Differences of suffix sums of magnitude 1 / (1 - discount), in float64.
TOLERANCE = 1e-9


def brute_force(rewards, masks, first, steps, discount):
    """A window's return in long double, step by step, cut after the first solve."""
    total, factor, alive = np.longdouble(0), np.longdouble(1), True
    for row in range(first, first + steps):
        total += factor * np.longdouble(rewards[row])
        factor *= np.longdouble(discount)
        if not masks[row]:
            alive = False
            break
    return total, alive


def windows(rewards, masks, lengths, starts, horizons, discount):
    """Window returns through the stored sums, of one task."""
    sums = suffix_sums(rewards[:, None], masks[:, None], lengths, discount=discount)
    return window_returns(
        sums[:, 0], next_solved(masks), starts, horizons, discount=discount
    )


def test_n1_windows_of_a_long_episode_match_long_double():
    discount, steps = 0.99, 50
    lengths = np.array([4000, 4000])
    random = np.random.default_rng(0)
    rewards = -random.integers(0, 2, lengths.sum()).astype(np.float32)
    masks = np.ones(len(rewards), np.uint8)
    starts = np.concatenate([np.arange(3950), 4000 + np.arange(3950)])
    found, alive = windows(
        rewards, masks, lengths, starts, np.full(len(starts), steps), discount
    )
    expected = [brute_force(rewards, masks, s, steps, discount)[0] for s in starts]
    errors = np.abs(found - np.asarray(expected, np.longdouble))
    assert errors.max() < TOLERANCE
    assert alive.all()
    # The case is not trivial: the obvious forward sums lose all digits of it.
    weights = discount ** np.arange(4000)
    prefix = np.concatenate([[0.0], np.cumsum(weights * rewards[:4000])])
    forward = (prefix[starts[:3950] + steps] - prefix[starts[:3950]]) / weights[:3950]
    assert np.abs(forward - np.asarray(expected[:3950], np.float64)).max() > 10.0


def test_n3_a_window_ends_at_the_first_solved_row():
    rewards = np.array([-1, -1, 0, -1, -1, 0], np.float32)
    masks = np.array([1, 1, 0, 1, 1, 1], np.uint8)
    found, alive = windows(
        rewards, masks, np.array([6]), np.array([0, 0, 3]), np.array([4, 2, 2]), 0.99
    )
    # -1 - 0.99 + 0, and nothing after the success; the rule that sums on gives
    # -2.9603.
    np.testing.assert_allclose(found, [-1.99, -1.99, -1.99], atol=1e-12)
    assert alive.tolist() == [False, True, True]


def test_n4_two_steps_before_the_end_there_are_two_rewards_and_no_end_of_the_task():
    rewards = np.array([-1, -1, -1, -1, 7], np.float32)
    masks = np.ones(5, np.uint8)
    found, alive = windows(
        rewards, masks, np.array([5]), np.array([2]), np.array([2]), 0.9
    )
    np.testing.assert_allclose(found, [-1.9], atol=1e-12)  # the last reward never
    assert alive.tolist() == [True]


def test_the_last_row_of_an_episode_and_one_row_episodes_return_nothing():
    rewards = np.full((6, 2), 3.0, np.float32)
    sums = suffix_sums(
        rewards, np.ones((6, 2), np.uint8), np.array([1, 3, 1, 1]), discount=0.5
    )
    assert sums[:, 0].tolist() == [0.0, 4.5, 3.0, 0.0, 0.0, 0.0]


def test_float32_masks_do_not_round_the_discount():
    lengths = np.array([50])
    rewards = np.ones((50, 1), np.float32)
    sums = [
        suffix_sums(rewards, np.ones((50, 1), dtype), lengths, discount=0.99)
        for dtype in (np.uint8, np.float32)
    ]
    np.testing.assert_array_equal(sums[0], sums[1])


def test_no_rows_are_no_sums():
    sums = suffix_sums(
        np.zeros((0, 3), np.float32),
        np.zeros((0, 3), np.uint8),
        np.zeros(0, np.int64),
        discount=0.9,
    )
    assert sums.shape == (0, 3)


@pytest.mark.parametrize(
    ("rewards", "masks", "lengths", "discount", "message"),
    [
        (np.ones((3, 1)), np.ones((3, 2)), [3], 0.9, "one shape"),
        (np.ones(3), np.ones(3), [3], 0.9, r"\[N, T\]"),
        (np.ones((3, 1)), np.ones((3, 1)), [2], 0.9, "sum to 2"),
        (np.ones((3, 1)), np.ones((3, 1)), [3], 0.0, r"\(0, 1\]"),
        (np.ones((3, 1)), np.ones((3, 1)), [3], 1.5, r"\(0, 1\]"),
    ],
)
def test_arguments_that_disagree_are_refused(
    rewards, masks, lengths, discount, message
):
    with pytest.raises(ValueError, match=message):
        suffix_sums(rewards, masks, np.array(lengths), discount=discount)


episodes = st.lists(
    st.lists(
        st.tuples(st.floats(-2, 2, width=32), st.booleans()), min_size=1, max_size=8
    ),
    min_size=1,
    max_size=5,
)


def flatten(drawn):
    flat = list(itertools.chain.from_iterable(drawn))
    rewards = np.array([reward for reward, _ in flat], np.float32)
    masks = np.array([alive for _, alive in flat], np.uint8)
    return rewards, masks, np.array([len(episode) for episode in drawn])


def all_windows(lengths):
    for start, length in zip(np.cumsum(lengths) - lengths, lengths, strict=True):
        for first in range(length):
            for steps in range(length - first):
                yield start + first, steps


@given(episodes, st.sampled_from([0.5, 0.9, 0.995, 1.0]))
def test_every_window_matches_the_loop(drawn, discount):
    rewards, masks, lengths = flatten(drawn)
    starts, horizons = np.array(list(all_windows(lengths))).T
    found, alive = windows(rewards, masks, lengths, starts, horizons, discount)
    for i, (first, steps) in enumerate(zip(starts, horizons, strict=True)):
        expected, lives = brute_force(rewards, masks, first, steps, discount)
        assert abs(found[i] - expected) < TOLERANCE
        assert alive[i] == lives


@given(episodes, st.sampled_from([0.5, 0.99]), st.data())
def test_a_window_is_its_first_half_and_what_is_left(drawn, discount, data):
    rewards, masks, lengths = flatten(drawn)
    start, k = data.draw(st.sampled_from(list(all_windows(lengths))))
    i = data.draw(st.integers(0, int(k)))
    found, alive = windows(
        rewards,
        masks,
        lengths,
        np.array([start, start, start + i]),
        np.array([k, i, k - i]),
        discount,
    )
    composed = found[1] + discount**i * alive[1] * found[2]
    assert abs(found[0] - composed) < TOLERANCE
    assert alive[0] == (alive[1] and alive[2])


@given(st.lists(st.booleans(), max_size=20))
def test_next_solved_is_the_first_solved_row_from_each_row_on(alive):
    found = next_solved(np.array(alive, np.uint8))
    rows = range(len(alive))
    assert found.tolist() == [
        next((later for later in rows[row:] if not alive[later]), len(alive))
        for row in rows
    ]
