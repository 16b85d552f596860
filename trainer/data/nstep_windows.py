"""The baselines' windows of n steps: one-step rows, n-step returns, action chunks.

Two rules say what happens at an episode's end and after success. ``"exact"`` is the
strict reading; ``"published"`` repeats the code of the n-step and chunked baselines, so
that their published settings apply.

Dimensions: B batch, n steps, S observation, A action.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.store.errors import DataFormatError
from trainer.data.sampling import Array
from trainer.data.table import RowTable
from trainer.errors import ConfigError

WindowRule = Literal["exact", "published"]


class NStepIndex(NamedTuple):
    """Row numbers and scalars of a batch of windows.

    Attributes:
        rows: ``i32[B]``, first row ``t``.
        rows_n: ``i32[B]``, the row to bootstrap from.
        rows_actions: ``i32[B, n]``, rows of the chunk's actions. Beyond the end of the
            episode the last action is repeated; by the published rule the first
            actions of the next episode follow.
        returns_n: ``f32[B]``, discounted sum of the window's rewards.
        bootstraps: ``f32[B]``, factor of the value at ``rows_n``: ``discount`` to the
            power of the window's steps, or 0 after success.
        steps: ``f32[B]``, number of rewards that are summed.
        valid: ``f32[B]``, 0 where the window must not train a critic, else 1.
        valid_actions: ``f32[B, n]``, 0 where the chunk's action lies beyond the end of
            the episode, else 1.
    """

    rows: Array
    rows_n: Array
    rows_actions: Array
    returns_n: Array
    bootstraps: Array
    steps: Array
    valid: Array
    valid_actions: Array


class NStepBatch(NamedTuple):
    """A batch of windows as an agent sees it.

    A critic's target is ``returns_n + bootstraps * value(states_n)``, for one step as
    for many, weighted by ``valid``.

    Attributes:
        observations: ``f32[B, S]``, ``s_t``.
        actions: ``f32[B, A]``, ``a_t``.
        chunks: ``f32[B, n, A]``, ``a_t, ..., a_{t+n-1}``.
        states_n: ``f32[B, S]``, the state to bootstrap from.
        returns_n: ``f32[B]``, see ``NStepIndex``, as are the fields below.
        bootstraps: ``f32[B]``.
        steps: ``f32[B]``.
        valid: ``f32[B]``.
        valid_actions: ``f32[B, n]``.
    """

    observations: Array
    actions: Array
    chunks: Array
    states_n: Array
    returns_n: Array
    bootstraps: Array
    steps: Array
    valid: Array
    valid_actions: Array


@dataclass(frozen=True)
class NStepSampler:
    """Draws windows of n steps, starting at any row that acts, each equally likely.

    Attributes:
        steps: Steps n, at least 1. With 1 both rules draw plain one-step rows.
        discount: Discount of rewards.
        rule: ``"exact"`` counts rewards up to that of the first solved row, and
            shortens a window at an episode's end, bootstrapping from the last state.
            ``"published"`` drops windows that cross an episode's end (``valid`` is 0);
            it adds rewards after success, though it does not bootstrap there; chunks
            that cross an end go on with the next episode's first actions, which train
            no policy (``valid_actions`` is 0); and the last ``n - 1`` transitions of
            the data start no window.

    References:
        Li, Zhou & Levine (2025), Reinforcement Learning with Action Chunking, for
        ``"published"``; Sutton & Barto (2018), eq. 7.1, for ``"exact"``.
    """

    steps: int
    discount: float
    rule: WindowRule = "exact"

    # The start alone. No annotation, since a field would enter the `repr` that keys
    # the random stream.
    numbers = 1

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(
                f"agent.n_step: expected at least 1, got {self.steps}; raise it"
            )

    @property
    def rows_needed(self) -> int:
        """Rows that an episode must have for a window to start in it.

        By the published rule that is a whole window, since it drops shorter ones.
        """
        return 1 + (self.steps if self.rule == "published" else 1)

    def check(self, lengths: npt.NDArray[np.int64], *, discount: float) -> None:
        """Refuses data that no valid window can be drawn from.

        Args:
            lengths: ``i64[E]``, rows of each episode.
            discount: Discount of the data's return sums, which this sampler does not
                read.

        Raises:
            DataFormatError: If no episode has ``rows_needed`` rows.
        """
        longest = int(lengths.max(initial=0))
        if longest < self.rows_needed:
            raise DataFormatError(
                f"expected an episode of at least {self.rows_needed} rows, which a "
                f"window takes, and the longest of {len(lengths)} episodes has "
                f"{longest}; set a smaller agent.n_step, or check the data"
            )

    def draw(self, table: RowTable, uniform: npt.NDArray[np.float64]) -> NStepIndex:
        """Draws windows.

        Args:
            table: Rows of one task.
            uniform: ``f64[1, ...]`` in [0, 1).

        Returns:
            Row numbers and scalars, arrays ``[...]`` or ``[..., n]``.
        """
        start, published = uniform[0], self.rule == "published"
        if published:
            # The published code draws from flat transitions and leaves out the last
            # n - 1 of the data, but not those of each episode.
            total = int((table.episode_lengths - 1).clip(min=0).sum())
            start = start * ((total - self.steps + 1) / total)
        rows, last = table.pick_starts(start, successors=1)
        window = rows[..., None] + np.arange(self.steps)
        # The last row of an episode only holds the final state: its action and reward
        # are padding.
        inside = window < last[..., None]
        window = np.minimum(window, last[..., None] - 1)
        chunk = self._published_chunk(table, start) if published else window
        # Rows beyond the end count as unsolved, so that the cumulative product says
        # whether the part of the window within the episode is alive.
        masks = np.where(inside, table.masks[window], 1.0)
        alive = np.cumprod(masks, axis=-1)
        counted = inside if published else inside & _before(alive)
        discounts = self.discount ** np.arange(self.steps)
        returns = (table.rewards[window] * discounts * counted).sum(axis=-1)
        length = inside.sum(axis=-1)
        whole = length == self.steps
        valid = whole if published else np.ones_like(whole)
        return NStepIndex(
            rows=rows.astype(np.int32),
            rows_n=(rows + length).astype(np.int32),
            rows_actions=chunk.astype(np.int32),
            returns_n=returns.astype(np.float32),
            bootstraps=(alive[..., -1] * self.discount**length).astype(np.float32),
            steps=counted.sum(axis=-1).astype(np.float32),
            valid=valid.astype(np.float32),
            valid_actions=inside.astype(np.float32),
        )

    def _published_chunk(
        self, table: RowTable, start: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.int64]:
        """Finds the rows of n consecutive transitions, across ends of episodes."""
        first = table.choose_start_numbers(start, successors=1)[..., None]
        numbers = first + np.arange(self.steps)
        # Uniform numbers near 1 may be rounded up to a start that is to be left out.
        numbers = np.minimum(numbers, table.count_starts(successors=1) - 1)
        return table.locate_starts(numbers, successors=1)[0]

    def gather(
        self, observations: Array, actions: Array, index: NStepIndex
    ) -> NStepBatch:
        """Looks up the states and actions of a batch.

        Args:
            observations: ``[N, S]``, a NumPy array or one on a device.
            actions: ``[N, A]``, the same kind of array.
            index: Row numbers from ``draw``, with any leading axes.

        Returns:
            The batch, in the same kind of array.
        """
        return NStepBatch(
            observations=observations.take(index.rows, axis=0),
            actions=actions.take(index.rows, axis=0),
            chunks=actions.take(index.rows_actions, axis=0),
            states_n=observations.take(index.rows_n, axis=0),
            returns_n=index.returns_n,
            bootstraps=index.bootstraps,
            steps=index.steps,
            valid=index.valid,
            valid_actions=index.valid_actions,
        )


def _before(alive: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Marks steps up to and including the first solved one: ``bool[..., n]``."""
    before = np.ones_like(alive, bool)
    before[..., 1:] = alive[..., :-1] != 0
    return before
