"""Discounted returns of episodes and of windows inside them, in float64 NumPy.

The return of a window is the difference of two suffix sums (sums from a row to the end
of its episode), so that no window has to be summed. Prefix sums would not do: a
difference of two prefix sums has to be divided by ``discount ** t``, which on a
4000-step episode at 0.99 loses every digit of a 50-step window even in float64. Window
returns from suffix sums are exact to 1e-12.

Dimensions: N rows, T tasks, E episodes, B windows.
"""

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


def suffix_sums(
    rewards: npt.NDArray[np.floating],
    masks: npt.NDArray[np.generic],
    lengths: Int64,
    *,
    discount: float,
) -> Float64:
    """Computes the discounted return from every row to success or the episode's end.

    ``R_t = r_t + discount * m_t * R_{t+1}``. R is 0 at the last row of an episode, from
    which no transition starts.

    Args:
        rewards: ``f32[N, T]``, raw rewards; row ``t`` holds the reward of state
            ``s_t``.
        masks: ``[N, T]``, 0 where the task is solved at ``s_t``, else 1.
        lengths: ``i64[E]``, rows of each episode; their sum is N.
        discount: Discount per step, in (0, 1].

    Returns:
        ``f64[N, T]``, one return per row and task, in the units of ``rewards``.

    Raises:
        ValueError: If shapes disagree or the discount is out of range.

    Example:
        >>> r = np.array([[1.0], [2.0], [4.0], [9.0]])
        >>> suffix_sums(r, np.ones((4, 1)), np.array([4]), discount=0.5)[:, 0].tolist()
        [3.0, 4.0, 4.0, 0.0]
    """
    if rewards.shape != masks.shape or rewards.ndim != 2:
        raise ValueError(
            f"expected rewards and masks of one shape [N, T], got {rewards.shape} and "
            f"{masks.shape}"
        )
    if lengths.sum() != len(rewards):
        raise ValueError(
            f"expected lengths of episodes that sum to {len(rewards)} rows, got "
            f"lengths that sum to {lengths.sum()}"
        )
    if not 0.0 < discount <= 1.0:
        raise ValueError(f"expected a discount in (0, 1], got {discount}")
    # The recursion runs backwards in time, one vectorised step for all episodes at
    # once, because a Python loop over rows would be far slower. Rows are permuted so
    # that all rows with the same number of steps left lie side by side,
    # those of the longest episodes first: the rows one step earlier are then a prefix
    # of equally ordered episodes, and no step needs an index array.
    order = np.argsort(-lengths, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    back = np.repeat(np.cumsum(lengths), lengths) - np.arange(1, len(rewards) + 1)
    going = np.bincount(back)
    ends = np.cumsum(going)
    packed = (ends - going)[back] + np.repeat(rank, lengths)
    sums = np.zeros(rewards.shape, np.float64)
    reward, weight = np.empty_like(sums), np.empty_like(sums)
    reward[packed] = rewards
    weight[packed] = np.multiply(masks, discount, dtype=np.float64)
    # Step 0, the last rows of all episodes, keeps its zeros.
    for step in range(1, len(going)):
        first, last = ends[step - 1], ends[step]
        after = first - going[step - 1]
        rows = sums[first:last]
        np.multiply(weight[first:last], sums[after : after + len(rows)], out=rows)
        rows += reward[first:last]
    return np.asarray(sums[packed])


def next_solved(masks: npt.NDArray[np.generic]) -> npt.NDArray[np.int32]:
    """Finds the first solved row at or after each row.

    Two uses share this one table, which costs 4 bytes a row. If two rows of an episode
    have the same next solved row, no row between them is solved. And a window that
    starts at row ``t`` has to end at the next solved row of ``t + 1``.

    Args:
        masks: ``[N]``, 0 where the task is solved, else 1.

    Returns:
        ``i32[N]``, row numbers, which may lie in a later episode; N where no solved row
        follows.

    Example:
        >>> next_solved(np.array([1, 0, 0, 1])).tolist()
        [1, 1, 2, 4]
    """
    rows = np.arange(len(masks), dtype=np.int32)
    solved = np.where(np.asarray(masks) == 0, rows, np.int32(len(masks)))
    return np.asarray(np.minimum.accumulate(solved[::-1])[::-1], np.int32)


def window_returns(
    sums: npt.NDArray[np.float64],
    solved: npt.NDArray[np.int32],
    starts: npt.NDArray[np.integer],
    horizons: npt.NDArray[np.integer],
    *,
    discount: float,
) -> tuple[Float64, npt.NDArray[np.bool_]]:
    """Computes the discounted returns of windows, each cut after its first solved row.

    ``return_k = R_t - discount ** k * alive_k * R_{t+k}``.

    Args:
        sums: ``f64[N]`` of one task, from ``suffix_sums``.
        solved: ``i32[N]`` of the same task, from ``next_solved``.
        starts: ``[B]``, first row of each window.
        horizons: ``[B]``, steps of each window; ``start + horizon`` is a row of the
            same episode.
        discount: The discount with which ``sums`` was computed.

    Returns:
        ``f64[B]``, the returns, and ``bool[B]``, whether each window is alive: no row
        of the window before its last is solved.

    References:
        Horizon Adaptive Offline Policy Learning via Value Stitching, section 3,
        definition 1.
    """
    ends = starts + horizons
    alive = solved[ends] == solved[starts]
    # np.power is exact enough: horizons are at most a few hundred steps, and there its
    # error is below 1e-14. Each power is computed once, in a table, because a batch has
    # far fewer distinct horizons than windows.
    powers = np.power(discount, np.arange(np.max(horizons, initial=0) + 1, dtype=float))
    return sums[starts] - powers[horizons] * alive * sums[ends], alive
