"""Windows of random horizon, with an intermediate row and a goal, for VAST.

Dimensions: B batch, S observation, A action, K maximum horizon.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.store.errors import DataFormatError
from pipeline.store.returns import window_returns
from trainer.data.sampling import Array, uniform_integers
from trainer.data.table import RowTable
from trainer.errors import ConfigError

GoalRule = Literal["uniform", "geometric", "horizon"]

# The fields of a batch that hold states.
STATE_FIELDS = ("observations", "next_observations", "states_k", "states_i", "goals")


class HorizonIndex(NamedTuple):
    """Row numbers and scalars of windows; ``[..., B]`` each.

    Attributes:
        rows: ``i32``, first row ``t`` of each window.
        rows_k: ``i32``, its last row ``t + k``.
        rows_i: ``i32``, a row ``t + i`` between them.
        goals: ``i32``, row of the goal state.
        returns_k: ``f32``, discounted return of the window, cut after success.
        alive_k: ``f32``, 0 where the task is solved inside the window, else 1.
        alive_i: ``f32``, the same for its first ``i`` rows.
        rewards: ``f32``, of row ``t``.
        masks: ``f32``, of row ``t``: 0 where the task is solved there.
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
        masks: ``f32[B]``, 0 where the task is solved at ``s_t``.
        next_observations: ``f32[B, S]``, ``s_{t+1}``.
        horizons: ``f32[B]``, whole numbers ``k`` up to K.
        intermediates: ``f32[B]``, whole numbers ``i`` in [1, k - 1]; 1 where ``k`` is.
        states_k: ``f32[B, S]``, ``s_{t+k}``.
        states_i: ``f32[B, S]``, ``s_{t+i}``.
        returns_k: ``f32[B]``, discounted return of the window, cut after success.
        alive_k: ``f32[B]``, 0 where the task is solved inside the window, else 1.
        alive_i: ``f32[B]``, the same for its first ``i`` rows.
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
        max_horizon: K.
        discount: Of the table's return sums.
        min_horizon: Shortest window: 2, so that there is an intermediate row, or 1.
            A window of one step has ``i = k = 1``, and composes with one of none.
        goal_shares: Probabilities of a goal being the current state, a later state
            of the episode, or any state of the data; they sum to 1.
        goal_rule: Which later state: ``"uniform"`` over rows ``t+1..L``;
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

    numbers = 6

    def __post_init__(self) -> None:
        if self.min_horizon not in (1, 2):
            raise ConfigError(
                f"agent.min_horizon: expected 1 or 2, got {self.min_horizon}"
            )
        if self.max_horizon < 2:
            raise ConfigError(
                f"agent.max_horizon: expected at least 2, got {self.max_horizon}"
            )
        if abs(sum(self.goal_shares) - 1) > 1e-6 or min(self.goal_shares) < 0:
            raise ConfigError(
                "agent.goal_current, goal_future and goal_random: expected "
                f"probabilities that sum to 1, got {self.goal_shares}"
            )

    @property
    def rows_needed(self) -> int:
        """Rows of an episode that a window can start in."""
        return self.min_horizon + 1

    def check(self, lengths: npt.NDArray[np.int64], *, discount: float) -> None:
        """Refuses data this sampler cannot draw from.

        Args:
            lengths: ``i64[E]``, rows of all episodes.
            discount: Of the data's return sums.

        Raises:
            DataFormatError: If no episode is long enough for a window.
            ValueError: If the return sums are of another discount.
        """
        if discount != self.discount:
            raise ValueError(
                f"the table's return sums are of discount {discount}, and the "
                f"agent's is {self.discount}; load the table with the agent's"
            )
        longest = int(lengths.max(initial=0))
        if longest < self.rows_needed:
            raise DataFormatError(
                f"every window needs {self.rows_needed} rows of one episode, and the "
                f"longest of {len(lengths)} episodes has {longest}; this data set "
                "cannot be trained on with horizons"
            )
        if longest <= self.max_horizon:
            raise DataFormatError(
                f"agent.max_horizon is {self.max_horizon}, and the longest episode has "
                f"only {longest} rows; set it to at most {longest - 1}"
            )

    def draw(self, table: RowTable, uniform: npt.NDArray[np.float64]) -> HorizonIndex:
        """Draws windows.

        Args:
            table: Rows of one task.
            uniform: ``f64[6, ...]`` in [0, 1).

        Returns:
            Row numbers and scalars, ``[...]`` each.
        """
        start, horizon, between, which, later, anywhere = uniform
        rows, last = table.pick_starts(start, successors=self.min_horizon)
        longest = self._longest(table, rows, last)
        shortest = np.minimum(self.min_horizon, longest)
        k = shortest + uniform_integers(horizon, longest - shortest + 1)
        i = 1 + uniform_integers(between, np.maximum(k - 1, 1))
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
            observations: ``[N, S]``, NumPy or on a device.
            actions: ``[N, A]``, the same kind of array.
            index: What ``draw`` returned, any leading axes.

        Returns:
            The batch, of the same kind of array.
        """
        rows = index.rows
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

    def _longest(
        self,
        table: RowTable,
        rows: npt.NDArray[np.int64],
        last: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Steps of the longest window from each row."""
        return np.minimum(self.max_horizon, last - rows)

    def _later(
        self,
        uniform: npt.NDArray[np.float64],
        rows: npt.NDArray[np.int64],
        last: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """A later row of the same episode, by the configured rule."""
        if self.goal_rule == "uniform":
            return rows + 1 + uniform_integers(uniform, last - rows)
        if self.goal_rule == "horizon":
            return (
                rows
                + 1
                + uniform_integers(uniform, np.minimum(self.max_horizon, last - rows))
            )
        # Inverse distribution function of the geometric distribution on {1, 2, ...}.
        steps = 1 + np.floor(np.log1p(-uniform) / np.log(self.discount))
        geometric: npt.NDArray[np.int64] = rows + steps.astype(np.int64)
        return np.minimum(geometric, last)


@dataclass(frozen=True)
class EndingHorizonSampler(HorizonSampler):
    """Draws windows that end at success: none goes past a solved row after its start.

    ``k`` is uniform on ``{min_horizon..min(K, L - t, f - t)}``, ``f`` being the first
    solved row after ``t``, and 1 where ``f`` is the next row: such a window composes
    with one of no steps. All else is as in ``HorizonSampler``, from other streams.
    """

    def _longest(
        self,
        table: RowTable,
        rows: npt.NDArray[np.int64],
        last: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.int64]:
        """Steps of the longest window from each row."""
        ahead = table.next_solved[rows + 1] - rows
        return np.minimum(super()._longest(table, rows, last), ahead)
