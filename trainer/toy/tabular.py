"""Exact value iteration over recorded episodes of finitely many states.

This module knows nothing of grids or networks. Every operator is a pure function from
values to values that reads recorded windows only, so its fixed point is what an agent
with the same backup would learn from the data without approximation.

Dimensions: N rows, E episodes, Z states, n steps of a window, W windows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.store.returns import next_solved, suffix_sums, window_returns

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Operator = Callable[[Float64], Float64]


@dataclass(frozen=True)
class FiniteData:
    """Recorded episodes, whose rows lie one after another as in a trajectory store.

    The next state of row ``t`` is the state of row ``t + 1``. Move and reward of an
    episode's last row are not used, because no next state was recorded.

    Attributes:
        states: ``i64[N]``, states in [0, Z).
        moves: ``i64[N]``, moves, not negative.
        rewards: ``f64[N]``, reward of the step from each row.
        masks: ``f64[N]``, 0 where the task is solved, so that nothing is bootstrapped
            beyond the row's reward, else 1.
        lengths: ``i64[E]``, rows of each episode; they sum to N.
        state_count: Number Z of states.
        discount: Discount of rewards, in (0, 1).
    """

    states: Int64
    moves: Int64
    rewards: Float64
    masks: Float64
    lengths: Int64
    state_count: int
    discount: float


class Windows(NamedTuple):
    """All recorded windows of one length, as arrays ``[W]``.

    Attributes:
        starts: ``i64[W]``, first row of each window.
        states: ``i64[W]``, state of the first row.
        gained: ``f64[W]``, discounted return of the window, cut after success.
        weights: ``f64[W]``, factor of the value at the end: ``discount ** n``, or 0 if
            success lies inside the window.
        ends: ``i64[W]``, state that the window leads to.
    """

    starts: Int64
    states: Int64
    gained: Float64
    weights: Float64
    ends: Int64


class ActionValues(NamedTuple):
    """Values of the P recorded pairs of a state and a move, or a chunk of moves.

    Attributes:
        states: ``i64[P]``, state of each pair.
        moves: ``i64[P, n]``, the n moves of each pair; n is 1 without chunks.
        values: ``f64[P]``, value of each pair.
    """

    states: Int64
    moves: Int64
    values: Float64

    def best(self, state: int) -> tuple[int, ...]:
        """Finds the recorded move, or chunk of moves, with the highest value.

        Args:
            state: State, in [0, Z).

        Returns:
            The n moves.

        Raises:
            KeyError: If no pair starts at the state.
        """
        pairs = np.flatnonzero(self.states == state)
        if not len(pairs):
            raise KeyError(
                f"state {state}: expected a recorded move there, got none; follow "
                "policies along recorded states only"
            )
        best = pairs[self.values[pairs].argmax()]
        return tuple(int(move) for move in self.moves[best])


def windows(data: FiniteData, steps: int) -> Windows:
    """Cuts every window of one length out of the data.

    Args:
        data: Recorded episodes.
        steps: Length n of the windows, at least 1.

    Returns:
        The windows, in the order of their first rows.
    """
    sums = _suffix_sums(data)
    # A window ends within its episode: the row after the last starts another one.
    last = np.repeat(np.cumsum(data.lengths) - 1, data.lengths)
    starts = np.flatnonzero(np.arange(len(last)) + steps <= last)
    gained, alive = window_returns(
        sums,
        next_solved(data.masks),
        starts,
        np.full(len(starts), steps),
        discount=data.discount,
    )
    return Windows(
        starts=starts,
        states=data.states[starts],
        gained=gained,
        weights=np.asarray(data.discount**steps * alive, np.float64),
        ends=data.states[starts + steps],
    )


def stitching(data: FiniteData, *, max_horizon: int, min_horizon: int = 1) -> Operator:
    """Builds the stitching Bellman operator, restricted to recorded windows.

    ``(T V)(s) = max over recorded (k, s_k) of G(s, s_k, k) + discount ** k * V(s_k)``.
    A window is a sequence of single steps, so for every K the fixed point equals that
    of the one-step operator: the best return that splicing recorded steps can reach.
    This holds only if windows of one step are included, because without them no path
    can be spliced one step after a state.

    Args:
        data: Recorded episodes.
        max_horizon: Longest window K.
        min_horizon: Shortest window.

    Returns:
        An operator from ``f64[Z]`` to ``f64[Z]``; a state that no window starts at gets
        the value 0.

    References:
        Horizon Adaptive Offline Policy Learning via Value Stitching, eq. 13 and
        theorem 2.
    """
    cuts = [windows(data, k) for k in range(min_horizon, max_horizon + 1)]
    all_windows = Windows(*(np.concatenate(parts) for parts in zip(*cuts, strict=True)))

    def operator(values: Float64) -> Float64:
        targets = all_windows.gained + all_windows.weights * values[all_windows.ends]
        return _max_by_state(all_windows.states, targets, data.state_count)

    return operator


def expectile_stitching(
    data: FiniteData,
    *,
    max_horizon: int,
    min_horizon: int,
    expectile: float,
    success: Literal["ends", "mixed"],
) -> Operator:
    """Builds the backup of VAST's value loss for exact networks.

    ``V(s)`` becomes the expectile of ``G(s, s_k, k) + m * discount ** k * C(s_k)`` over
    the windows that VAST's sampler draws from rows at ``s``, weighted by their
    probability. ``C(z)`` is the best one-step backup of V at ``z``, and ``m`` is the
    mask of ``s``, or 1 if ``success`` is ``"mixed"``. If episodes pass through solved
    states, the mixed value belongs neither to a task that ends there nor to a task that
    continues: C ends at a solved state, and V does not.

    Args:
        data: Recorded episodes.
        max_horizon: Longest window K.
        min_horizon: Shortest window, unless success ends a window sooner.
        expectile: Expectile τ, in (0, 1).
        success: Option ``success`` of the agent.

    Returns:
        An operator from ``f64[Z]`` to ``f64[Z]``; a state that no window starts at gets
        the value 0.

    References:
        Horizon Adaptive Offline Policy Learning via Value Stitching, eq. 17 and 26.
    """
    ends = success == "ends"
    starts, horizons, weights = _drawn_windows(
        data, max_horizon=max_horizon, min_horizon=min_horizon, ends=ends
    )
    gained, _ = window_returns(
        _suffix_sums(data),
        next_solved(data.masks),
        starts,
        horizons,
        discount=data.discount,
    )
    discounts = data.discount**horizons * (data.masks[starts] if ends else 1.0)
    states, reached = data.states[starts], data.states[starts + horizons]
    # Q is backed up by one step and the policy maximises Q, so the value of continuing
    # from a sub-goal is the one-step optimality backup of V.
    continuation = one_step(data)

    def operator(values: Float64) -> Float64:
        targets = gained + discounts * continuation(values)[reached]
        return _expectile_by_state(
            states, targets, weights, data.state_count, expectile=expectile
        )

    return operator


def _drawn_windows(
    data: FiniteData, *, max_horizon: int, min_horizon: int, ends: bool
) -> tuple[Int64, Int64, Float64]:
    """Lists all windows that VAST's sampler can draw.

    Returns:
        First rows ``i64[W]``, horizons ``i64[W]``, and the probability ``f64[W]`` of
        each window among those with its first row.
    """
    last = np.repeat(np.cumsum(data.lengths) - 1, data.lengths)
    rows = np.arange(len(last))
    starts_here = rows + min_horizon <= last
    if ends:
        # A terminal transition, a solved row with one successor, is a window itself.
        starts_here |= (rows + 1 == last) & (data.masks == 0)
    rows = rows[starts_here]
    longest = np.minimum(max_horizon, last[rows] - rows)
    if ends:
        # Windows end at the next solved row, even below the smallest horizon. A window
        # from a solved row ends at the next solved row after it.
        longest = np.minimum(longest, next_solved(data.masks)[rows + 1] - rows)
    shortest = np.minimum(min_horizon, longest)
    counts = longest - shortest + 1
    # Numbers 0, 1, ... within each row's windows, without a loop over rows.
    nth = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts, horizons = np.repeat(rows, counts), np.repeat(shortest, counts) + nth
    return starts, horizons, np.repeat(1 / counts, counts)


def one_step(data: FiniteData) -> Operator:
    """Builds the Bellman optimality operator within the support of the data.

    Args:
        data: Recorded episodes.

    Returns:
        An operator from ``f64[Z]`` to ``f64[Z]``; a state that no step starts at gets
        the value 0.
    """
    return stitching(data, max_horizon=1)


def backup(
    data: FiniteData, values: Float64, *, steps: int, chunked: bool
) -> ActionValues:
    """Computes action values by an n-step backup of state values.

    Without chunks, a pair is a state and the first move, and its value is the mean over
    all windows that begin with the pair, whatever their later moves (n-step backups).
    With chunks, a pair is a state and all n moves. For one step both are the plain
    Bellman backup (eq. 12 of the paper).

    Args:
        data: Recorded episodes.
        values: ``f64[Z]``, value of each state.
        steps: Number n of steps.
        chunked: Whether a value belongs to all n moves instead of the first.

    Returns:
        The values of all recorded pairs.

    References:
        Horizon Adaptive Offline Policy Learning via Value Stitching, eq. 3 and 5.
    """
    cut = windows(data, steps)
    targets = cut.gained + cut.weights * values[cut.ends]
    length = steps if chunked else 1
    moves = data.moves[cut.starts[:, None] + np.arange(length)]
    pairs, inverse = np.unique(
        np.column_stack([cut.states, moves]), axis=0, return_inverse=True
    )
    totals = np.bincount(inverse, weights=targets, minlength=len(pairs))
    return ActionValues(pairs[:, 0], pairs[:, 1:], totals / np.bincount(inverse))


def fixed_horizon(data: FiniteData, *, steps: int, chunked: bool) -> Operator:
    """Builds the operator that takes the best action value of ``backup`` at each state.

    Args:
        data: Recorded episodes.
        steps: Number n of steps.
        chunked: Whether a value belongs to all n moves instead of the first.

    Returns:
        An operator from ``f64[Z]`` to ``f64[Z]``; a state that no window starts at gets
        the value 0.
    """

    def operator(values: Float64) -> Float64:
        pairs = backup(data, values, steps=steps, chunked=chunked)
        return _max_by_state(pairs.states, pairs.values, data.state_count)

    return operator


def fixed_point(
    operator: Operator, state_count: int, *, tolerance: float = 1e-12
) -> Float64:
    """Applies a contraction until values no longer change.

    Args:
        operator: An operator of this module.
        state_count: Number Z of states.
        tolerance: Largest change of a value in the last application.

    Returns:
        ``f64[Z]``, the fixed point.

    Raises:
        ValueError: If values still change after 100,000 applications.
    """
    values = np.zeros(state_count)
    for _ in range(100_000):
        following = operator(values)
        if np.abs(following - values).max(initial=0.0) <= tolerance:
            return following
        values = following
    raise ValueError(
        "fixed point: expected values to change by at most "
        f"{tolerance:g} within 100,000 applications, got "
        f"{np.abs(operator(values) - values).max():g}; choose a smaller discount"
    )


def _suffix_sums(data: FiniteData) -> Float64:
    """Computes the discounted return from each row to the end: ``f64[N]``."""
    sums = suffix_sums(
        data.rewards[:, None],
        data.masks[:, None],
        data.lengths,
        discount=data.discount,
    )
    return sums[:, 0]


def _expectile_by_state(
    states: Int64,
    targets: Float64,
    weights: Float64,
    state_count: int,
    *,
    expectile: float,
) -> Float64:
    """Computes the expectile of each state's targets, 0 for a state without targets."""
    expectiles = np.zeros(state_count)
    # An expectile is the mean of the targets, weighted by the side of it on which they
    # lie. Each iteration takes the sides from the previous mean; after a few, the sides
    # no longer change.
    while True:
        below = targets < expectiles[states]
        sided = weights * np.where(below, 1 - expectile, expectile)
        totals = np.bincount(states, sided, state_count)
        sums = np.bincount(states, sided * targets, state_count)
        following = np.divide(sums, totals, out=np.zeros(state_count), where=totals > 0)
        change = np.abs(following - expectiles).max(initial=0.0)
        if change <= 1e-13 * np.abs(sums).max():
            return following
        expectiles = following


def _max_by_state(states: Int64, targets: Float64, state_count: int) -> Float64:
    """Computes the maximum of each state's targets, 0 for a state without targets."""
    best = np.full(state_count, -np.inf)
    np.maximum.at(best, states, targets)
    return np.where(np.isneginf(best), 0.0, best)
