"""Exact value iteration over recorded episodes of finitely many states.

Knows nothing of grids or networks. Every operator is a pure function from values to
values that reads only windows which were recorded, so its fixed point is what an
agent of that kind would learn from the data without any approximation.

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
    """Recorded episodes, rows one after another as in a trajectory store.

    The next state of row ``t`` is row ``t + 1``. Move and reward of an episode's last
    row lead nowhere.

    Attributes:
        states: ``i64[N]`` in [0, Z).
        moves: ``i64[N]``, not negative.
        rewards: ``f64[N]``, of the step from the row.
        masks: ``f64[N]``, 0 where nothing follows the row's reward, else 1.
        lengths: ``i64[E]``, rows of each episode; they sum to N.
        state_count: Z.
        discount: In (0, 1).
    """

    states: Int64
    moves: Int64
    rewards: Float64
    masks: Float64
    lengths: Int64
    state_count: int
    discount: float


class Windows(NamedTuple):
    """All recorded windows of one length; ``[W]`` each.

    Attributes:
        starts: ``i64``, first row.
        states: ``i64``, state of the first row.
        gained: ``f64``, discounted return of the window, cut after success.
        weights: ``f64``, factor of what follows: ``discount ** n``, or 0 if success
            lies inside the window.
        ends: ``i64``, state reached.
    """

    starts: Int64
    states: Int64
    gained: Float64
    weights: Float64
    ends: Int64


class ActionValues(NamedTuple):
    """Values of what was recorded at each state.

    Attributes:
        states: ``i64[P]``, state of each pair.
        moves: ``i64[P, n]``, moves of each pair: one, or a chunk.
        values: ``f64[P]``.
    """

    states: Int64
    moves: Int64
    values: Float64

    def best(self, state: int) -> tuple[int, ...]:
        """The most valuable recorded moves at a state.

        Args:
            state: One that some pair starts at.

        Returns:
            A move, or a chunk of moves.

        Raises:
            KeyError: If nothing was recorded at the state.
        """
        at = np.flatnonzero(self.states == state)
        if not len(at):
            raise KeyError(f"nothing recorded at state {state}")
        chosen = at[self.values[at].argmax()]
        return tuple(int(move) for move in self.moves[chosen])


def windows(data: FiniteData, steps: int) -> Windows:
    """Cuts every window of one length out of the data, none across episodes.

    Args:
        data: Recorded episodes.
        steps: n, at least 1.

    Returns:
        The windows, in order of their first row.
    """
    sums = _suffix_sums(data)
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
    """The stitching Bellman operator, restricted to recorded windows.

    ``(T V)(s) = max over recorded (k, s_k) of G(s, s_k, k) + discount ** k * V(s_k)``.
    A window is a row of single steps, so for every K the fixed point is that of the
    one-step operator: the best that splicing recorded steps can reach. That needs
    windows of one step: without them no splice right after a state can be seen.

    Args:
        data: Recorded episodes.
        max_horizon: K.
        min_horizon: Shortest window.

    Returns:
        ``f64[Z]`` to ``f64[Z]``; a state that no window starts at gets 0.

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
    """The backup of VAST's value loss, with every network exact.

    ``V(s)`` becomes the expectile of ``G(s, s_k, k) + m * discount ** k * C(s_k)`` over
    the windows that its sampler draws from rows at ``s``, each as likely as drawn, with
    ``C(z)`` the best one-step backup of V at ``z`` and ``m`` the mask of ``s``, or 1
    where ``success`` is mixed. Where episodes pass through solved states, that is
    neither the value of a task that ends there nor of one that goes on: C ends there, V
    does not.

    Args:
        data: Recorded episodes.
        max_horizon: K.
        min_horizon: Shortest window, where success does not end one sooner.
        expectile: τ, in (0, 1).
        success: Of the agent.

    Returns:
        ``f64[Z]`` to ``f64[Z]``; a state that no window starts at gets 0.

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
    going_on = data.discount**horizons * (data.masks[starts] if ends else 1.0)
    states, reached = data.states[starts], data.states[starts + horizons]
    continuation = one_step(data)

    def operator(values: Float64) -> Float64:
        targets = gained + going_on * continuation(values)[reached]
        return _expectile_by_state(
            states, targets, weights, data.state_count, expectile=expectile
        )

    return operator


def _drawn_windows(
    data: FiniteData, *, max_horizon: int, min_horizon: int, ends: bool
) -> tuple[Int64, Int64, Float64]:
    """Starts and horizons of all windows, and how likely each is among its start's."""
    last = np.repeat(np.cumsum(data.lengths) - 1, data.lengths)
    rows = np.arange(len(last))
    rows = rows[rows + min_horizon <= last]
    longest = np.minimum(max_horizon, last[rows] - rows)
    if ends:
        longest = np.minimum(longest, next_solved(data.masks)[rows + 1] - rows)
    shortest = np.minimum(min_horizon, longest)
    counts = longest - shortest + 1
    nth = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts, horizons = np.repeat(rows, counts), np.repeat(shortest, counts) + nth
    return starts, horizons, np.repeat(1 / counts, counts)


def one_step(data: FiniteData) -> Operator:
    """The Bellman optimality operator in the support of the data.

    Args:
        data: Recorded episodes.

    Returns:
        ``f64[Z]`` to ``f64[Z]``; a state that no step starts at gets 0.
    """
    return stitching(data, max_horizon=1)


def backup(
    data: FiniteData, values: Float64, *, steps: int, chunked: bool
) -> ActionValues:
    """Action values by an n-step backup of state values.

    Not chunked, a pair is a state and its first move, and the mean is taken over all
    windows that begin so, whatever they do next: the later moves are those of the
    data (n-step backups). Chunked, a pair is a state and all n moves. With one step
    both are the plain Bellman backup (eq. 12 of the paper).

    Args:
        data: Recorded episodes.
        values: ``f64[Z]``, value of each state.
        steps: n.
        chunked: Whether a value belongs to all n moves or to the first.

    Returns:
        One value for each recorded pair.

    References:
        Horizon Adaptive Offline Policy Learning via Value Stitching, eq. 2 and 3.
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
    """The best action value of ``backup`` at each state.

    Args:
        data: Recorded episodes.
        steps: n.
        chunked: As for ``backup``.

    Returns:
        ``f64[Z]`` to ``f64[Z]``; a state that no window starts at gets 0.
    """

    def operator(values: Float64) -> Float64:
        pairs = backup(data, values, steps=steps, chunked=chunked)
        return _max_by_state(pairs.states, pairs.values, data.state_count)

    return operator


def fixed_point(
    operator: Operator, state_count: int, *, tolerance: float = 1e-12
) -> Float64:
    """Applies a contraction until values stand still.

    Args:
        operator: Of ``stitching``, ``one_step`` or ``fixed_horizon``.
        state_count: Z.
        tolerance: Largest change of the last application.

    Returns:
        ``f64[Z]``.

    Raises:
        ValueError: If values still move after 100,000 applications.
    """
    values = np.zeros(state_count)
    for _ in range(100_000):
        following = operator(values)
        if np.abs(following - values).max(initial=0.0) <= tolerance:
            return following
        values = following
    raise ValueError("no fixed point found: is the discount below 1?")


def random_data(
    rng: np.random.Generator,
    *,
    states: int,
    moves: int,
    episodes: int,
    longest: int,
    discount: float,
) -> FiniteData:
    """Draws episodes with nothing in common but their state space.

    States, moves, rewards in [-1, 1) and masks (0 in a fifth of the rows) are all
    independent, so one pair of state and move may lead anywhere.

    Args:
        rng: Source of everything.
        states: Z.
        moves: Number of different moves.
        episodes: E.
        longest: Most rows of an episode, at least 2.
        discount: In (0, 1).

    Returns:
        The data.
    """
    lengths = rng.integers(2, longest + 1, episodes)
    rows = int(lengths.sum())
    return FiniteData(
        states=rng.integers(0, states, rows),
        moves=rng.integers(0, moves, rows),
        rewards=rng.uniform(-1, 1, rows),
        masks=(rng.random(rows) >= 0.2).astype(np.float64),
        lengths=lengths,
        state_count=states,
        discount=discount,
    )


def _suffix_sums(data: FiniteData) -> Float64:
    """Discounted return from each row on: ``f64[N]``."""
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
    """Expectile of the targets of each state, 0 where there is none."""
    found = np.zeros(state_count)
    # A mean weighted by which side each target lies on; sides soon change no more.
    while True:
        sided = weights * np.where(targets < found[states], 1 - expectile, expectile)
        totals = np.bincount(states, sided, state_count)
        sums = np.bincount(states, sided * targets, state_count)
        following = np.divide(sums, totals, out=np.zeros(state_count), where=totals > 0)
        if np.abs(following - found).max(initial=0.0) <= 1e-13 * np.abs(sums).max():
            return following
        found = following


def _max_by_state(states: Int64, targets: Float64, state_count: int) -> Float64:
    """Maximum of the targets of each state, 0 where there is none."""
    best = np.full(state_count, -np.inf)
    np.maximum.at(best, states, targets)
    return np.where(np.isneginf(best), 0.0, best)
