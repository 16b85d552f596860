"""VAST's windows: of random horizon, with an intermediate row and a goal.

Dimensions: B batch, S observation, A action, K maximum horizon.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.store.errors import DataFormatError
from pipeline.store.returns import window_returns
from trainer.data.sampling import Array, scale_to_integers
from trainer.data.table import RowTable
from trainer.errors import ConfigError

GoalRule = Literal["uniform", "geometric", "horizon"]

# The fields of a batch that hold states.
STATE_FIELDS = ("observations", "next_observations", "states_k", "states_i", "goals")


class HorizonIndex(NamedTuple):
    """Row numbers and scalars of windows, arrays ``[..., B]``.

    Attributes:
        rows: ``i32``, first row ``t`` of each window.
        rows_k: ``i32``, last row ``t + k`` of each window.
        rows_i: ``i32``, an intermediate row ``t + i``.
        goals: ``i32``, row of the goal state.
        returns_k: ``f32``, discounted return of the window, cut after success.
        alive_k: ``f32``, 0 where the task is solved inside the window, else 1.
        alive_i: ``f32``, the same for the window's first ``i`` rows.
        rewards: ``f32``, raw reward of row ``t``.
        masks: ``f32``, 0 where the task is solved at row ``t``, else 1.
    """

    rows: Array
    rows_k: Array
    rows_i: Array
    goals: Array
    returns_k: Array
    alive_k: Array
    alive_i: Array
    rewards: Array
    masks: Array


class HorizonBatch(NamedTuple):
    """A batch of windows as an agent sees it.

    Attributes:
        observations: ``f32[B, S]``, ``s_t``.
        actions: ``f32[B, A]``, ``a_t``.
        rewards: ``f32[B]``, raw reward of row ``t``.
        masks: ``f32[B]``, 0 where the task is solved at ``s_t``, else 1.
        next_observations: ``f32[B, S]``, ``s_{t+1}``.
        horizons: ``f32[B]``, whole numbers ``k`` up to K.
        intermediates: ``f32[B]``, whole numbers ``i`` in [1, k - 1]; 1 where k = 1.
        states_k: ``f32[B, S]``, ``s_{t+k}``.
        states_i: ``f32[B, S]``, ``s_{t+i}``.
        returns_k: ``f32[B]``, discounted return of the window, cut after success.
        alive_k: ``f32[B]``, 0 where the task is solved inside the window, else 1.
        alive_i: ``f32[B]``, the same for the window's first ``i`` rows.
        goals: ``f32[B, S]``, goal state of the execution policy.
    """

    observations: Array
    actions: Array
    rewards: Array
    masks: Array
    next_observations: Array
    horizons: Array
    intermediates: Array
    states_k: Array
    states_i: Array
    returns_k: Array
    alive_k: Array
    alive_i: Array
    goals: Array


@dataclass(frozen=True)
class HorizonSampler:
    """Draws windows of random horizon, with an intermediate row and a goal.

    ``t`` is uniform over the rows that have ``min_horizon`` successors in their
    episode, ``k`` uniform on ``{min_horizon..min(K, L - t)}`` where ``L`` is the
    episode's last row, ``i`` uniform on ``{1..k-1}``.

    Attributes:
        max_horizon: Maximum horizon K.
        discount: Discount of the table's return sums.
        min_horizon: Shortest window: 2, so that there is an intermediate row, or 1.
            A window of one step has ``i = k = 1``; the rest of it is empty.
        goal_shares: Probabilities that a goal is the current state, a later state of
            the episode, or any state of the data; they sum to 1.
        goal_rule: Distribution of later states: ``"uniform"`` over rows ``t+1..L``;
            ``"geometric"``, ``t`` plus a geometric step of parameter
            ``1 - discount``, at most ``L``; ``"horizon"``, uniform over the next K
            rows of the episode.

    References:
        Horizon Adaptive Offline Policy Learning via Value Stitching, appendix B,
        "Value learning" and the general hyperparameters (sub-goal sample probability).
    """

    max_horizon: int
    discount: float
    min_horizon: int = 2
    goal_shares: tuple[float, float, float] = (0.1, 0.8, 0.1)
    goal_rule: GoalRule = "uniform"

    # Start, horizon, intermediate row, kind of goal, later state, any state. No
    # annotation, since a field would enter the `repr` that keys the random stream.
    numbers = 6

    def __post_init__(self) -> None:
        if self.min_horizon not in (1, 2):
            raise ConfigError(
                f"agent.min_horizon: expected 1 or 2, got {self.min_horizon}; set one "
                "of these"
            )
        if self.max_horizon < 2:
            raise ConfigError(
                f"agent.max_horizon: expected at least 2, got {self.max_horizon}; "
                "raise it"
            )
        if abs(sum(self.goal_shares) - 1) > 1e-6 or min(self.goal_shares) < 0:
            raise ConfigError(
                "agent.goal_current, goal_future and goal_random: expected "
                f"probabilities that sum to 1, got {self.goal_shares}; set all three"
            )

    @property
    def rows_needed(self) -> int:
        """Rows that an episode must have for a window to start in it."""
        return self.min_horizon + 1

    def check(self, lengths: npt.NDArray[np.int64], *, discount: float) -> None:
        """Refuses data that this sampler cannot draw from.

        Args:
            lengths: ``i64[E]``, rows of each episode.
            discount: Discount of the data's return sums.

        Raises:
            DataFormatError: If no episode is long enough for a window, or none is as
                long as the largest horizon.
            ValueError: If the return sums are of another discount.
        """
        # A caller's bug and no user's: the table is loaded by the agent's own discount.
        if discount != self.discount:
            raise ValueError(
                f"expected return sums of the agent's discount {self.discount}, got "
                f"{discount}; load the table with the agent's"
            )
        longest = int(lengths.max(initial=0))
        # The smallest K is 2, which takes 3 rows also where windows may have one step.
        if longest < 3:
            raise DataFormatError(
                "expected an episode of at least 3 rows, which a window of 2 steps "
                f"takes, and the longest of {len(lengths)} episodes has {longest}; "
                "train an agent without horizons on it, such as iql"
            )
        # Such a horizon could never be drawn, though networks would be scaled by it.
        if longest <= self.max_horizon:
            raise DataFormatError(
                f"agent.max_horizon: expected at most {longest - 1}, as the longest "
                f"episode has {longest} rows, got {self.max_horizon}; lower it"
            )

    def draw(self, table: RowTable, uniform: npt.NDArray[np.float64]) -> HorizonIndex:
        """Draws windows.

        Args:
            table: Rows of one task.
            uniform: ``f64[6, ...]`` in [0, 1).

        Returns:
            Row numbers and scalars, arrays ``[...]``.
        """
        start, horizon, between, which, later, anywhere = uniform
        rows, last = self._pick_starts(table, start)
        # Windows that end at success may be shorter than the minimum.
        longest = self._longest(table, rows, last)
        shortest = np.minimum(self.min_horizon, longest)
        k = shortest + scale_to_integers(horizon, longest - shortest + 1)
        i = 1 + scale_to_integers(between, np.maximum(k - 1, 1))
        # Both kinds of goals are drawn for every window and one is kept: the numbers
        # that a window takes must not depend on its kind of goal.
        goals = np.select(
            [
                which < self.goal_shares[0],
                which < self.goal_shares[0] + self.goal_shares[1],
            ],
            [rows, self._later(later, rows, last)],
            table.pick_starts(anywhere, successors=0)[0],
        )
        returns_k, alive_k = window_returns(
            table.returns, table.next_solved, rows, k, discount=self.discount
        )
        # The task is solved between two rows exactly if their next solved rows differ.
        alive_i = table.next_solved[rows + i] == table.next_solved[rows]
        return HorizonIndex(
            rows=rows.astype(np.int32),
            rows_k=(rows + k).astype(np.int32),
            rows_i=(rows + i).astype(np.int32),
            goals=goals.astype(np.int32),
            returns_k=returns_k.astype(np.float32),
            alive_k=alive_k.astype(np.float32),
            alive_i=alive_i.astype(np.float32),
            rewards=table.rewards[rows],
            masks=table.masks[rows],
        )

    def gather(
        self, observations: Array, actions: Array, index: HorizonIndex
    ) -> HorizonBatch:
        """Looks up the states and actions of a batch.

        Args:
            observations: ``[N, S]``, a NumPy array or one on a device.
            actions: ``[N, A]``, the same kind of array.
            index: Row numbers from ``draw``, with any leading axes.

        Returns:
            The batch, in the same kind of array.
        """
        rows = index.rows
        # `take` and `astype` are methods of both NumPy's and JAX's arrays, so the host
        # and a device gather with one function.
        return HorizonBatch(
            observations=observations.take(rows, axis=0),
            actions=actions.take(rows, axis=0),
            rewards=index.rewards,
            masks=index.masks,
            next_observations=observations.take(rows + 1, axis=0),
            horizons=(index.rows_k - rows).astype(np.float32),
            intermediates=(index.rows_i - rows).astype(np.float32),
            states_k=observations.take(index.rows_k, axis=0),
            states_i=observations.take(index.rows_i, axis=0),
            returns_k=index.returns_k,
            alive_k=index.alive_k,
            alive_i=index.alive_i,
            goals=observations.take(index.goals, axis=0),
        )

    def _pick_starts(
        self, table: RowTable, uniform: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Picks start rows; also returns the last rows of their episodes."""
        return table.pick_starts(uniform, successors=self.min_horizon)

    def _longest(
        self,
        table: RowTable,
        rows: npt.NDArray[np.int64],
        last: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Computes the longest window from each row, in steps: ``i64[...]``."""
        return np.minimum(self.max_horizon, last - rows)

    def _later(
        self,
        uniform: npt.NDArray[np.float64],
        rows: npt.NDArray[np.int64],
        last: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Picks a later row of the same episode by ``goal_rule``: ``i64[...]``."""
        if self.goal_rule == "uniform":
            return rows + 1 + scale_to_integers(uniform, last - rows)
        if self.goal_rule == "horizon":
            return (
                rows
                + 1
                + scale_to_integers(uniform, np.minimum(self.max_horizon, last - rows))
            )
        if self.discount == 1:  # Steps of parameter 0 are endless.
            return last
        # Inverse distribution function of the geometric distribution on {1, 2, ...}.
        steps = 1 + np.floor(np.log1p(-uniform) / np.log(self.discount))
        geometric: npt.NDArray[np.int64] = rows + steps.astype(np.int64)
        return np.minimum(geometric, last)


@dataclass(frozen=True)
class EndingHorizonSampler(HorizonSampler):
    """Draws windows that end at success: none goes past a solved row after its start.

    ``k`` is uniform on ``{min_horizon..min(K, L - t, f - t)}``, where ``f`` is the
    first solved row after ``t``, and ``k = 1`` where ``f = t + 1``. All else is as in
    ``HorizonSampler``, but the random stream is another one.

    Attributes:
        terminal_starts: Whether a solved row with one successor starts a window, too.
            Data of transitions have the reward and the mask of a terminal state there,
            which no other window reaches.
    """

    # A class and not a field of `HorizonSampler`: a field would change the `repr` that
    # keys the streams of runs from before this choice existed. Of data without such
    # rows, both choices draw the same windows.
    terminal_starts: bool = field(default=True, repr=False)

    def _pick_starts(
        self, table: RowTable, uniform: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Picks start rows; also returns the last rows of their episodes."""
        more = table.terminal_rows if self.terminal_starts else ()
        if self.min_horizon == 1 or not len(more):
            return super()._pick_starts(table, uniform)
        count = table.count_starts(successors=self.min_horizon)
        number = scale_to_integers(uniform, np.int64(count + len(more)))
        rows, last = table.locate_starts(
            np.minimum(number, count - 1), successors=self.min_horizon
        )
        terminal = number >= count
        rows[terminal] = more[number[terminal] - count]
        last[terminal] = rows[terminal] + 1
        return rows, last

    def _longest(
        self,
        table: RowTable,
        rows: npt.NDArray[np.int64],
        last: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Computes the longest window from each row, in steps: ``i64[...]``."""
        # From the row after the start: a start that is solved itself has windows, too.
        ahead = table.next_solved[rows + 1] - rows
        return np.minimum(super()._longest(table, rows, last), ahead)
