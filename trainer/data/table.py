"""One task of a store in memory: what sampling and gathering read from.

This module knows the store's reader and NumPy, but no samplers, Grain or devices.

Dimensions: N rows, E episodes, S observation, A action.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pipeline.store.errors import DataFormatError
from pipeline.store.returns import next_solved
from trainer.data.fingerprint import fingerprint_rows, make_former_fingerprint
from trainer.errors import ConfigError

# The reader imports pydantic, which programs that train on arrays in memory, such as
# the GPU benchmark, do without.
if TYPE_CHECKING:
    from pipeline.store.reader import Store

Float32 = npt.NDArray[np.float32]

# Largest number of rows in memory, since batches hold row numbers in 32 bits.
MOST_ROWS = int(np.iinfo(np.int32).max)


@dataclass(frozen=True)
class RowTable:
    """Rows of one split and one task, episodes one after another.

    The next state of row ``t`` is row ``t + 1``; the last row of an episode has no
    next one and is never the start of anything.

    Attributes:
        observations: ``f32[N, S]``, or any dtype and trailing shape.
        actions: ``f32[N, A]``.
        rewards: ``f32[N]``, raw.
        masks: ``f32[N]``, 0 where the task is solved, else 1.
        returns: ``f64[N]``, discounted return to the end of the episode.
        next_solved: ``i32[N]``, first solved row at or after each row, which may lie
            in a later episode; N where no solved row follows.
        episode_starts: ``i64[E]``, first row of each episode.
        episode_lengths: ``i64[E]``, rows of each episode.
        discount: Discount of ``returns``.
        fingerprint: Digest of what is read of the store; it keys the random streams.
        former_fingerprint: Fingerprint that earlier versions gave the same data, or
            None; runs of those versions resume under it.
    """

    observations: Float32
    actions: Float32
    rewards: Float32
    masks: Float32
    returns: npt.NDArray[np.float64]
    next_solved: npt.NDArray[np.int32]
    episode_starts: npt.NDArray[np.int64]
    episode_lengths: npt.NDArray[np.int64]
    discount: float
    fingerprint: str
    former_fingerprint: str | None = None

    @property
    def rows(self) -> int:
        """Rows of all episodes, last rows included."""
        return len(self.observations)

    def with_fingerprint(self, fingerprint: str) -> "RowTable":
        """Returns the same rows under another fingerprint, which keys other streams."""
        return replace(self, fingerprint=fingerprint)

    def find_best_return(self) -> float:
        """Finds the largest return to the end of an episode, over rows that act."""
        # The last row of an episode only holds the final state: its action and reward
        # are padding.
        acting = np.ones(self.rows, bool)
        acting[self.episode_starts + self.episode_lengths - 1] = False
        return float(self.returns[acting].max())

    @cached_property
    def terminal_rows(self) -> npt.NDArray[np.int64]:
        """Solved rows with one successor, ``i64[<=E]``: terminal transitions."""
        rows = (self.episode_starts + self.episode_lengths - 2)[
            self.episode_lengths >= 2
        ]
        return rows[self.masks[rows] == 0]

    def pick_starts(
        self, uniform: npt.NDArray[np.float64], *, successors: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Maps uniform numbers to rows that have successors in their episode.

        Args:
            uniform: ``f64[...]`` in [0, 1).
            successors: Rows that must follow in the same episode, at least 0.

        Returns:
            ``i64[...]``, rows, each eligible row equally likely; and ``i64[...]``, the
            last row of the episode of each.
        """
        return self.locate_starts(
            self.choose_start_numbers(uniform, successors=successors),
            successors=successors,
        )

    def count_starts(self, *, successors: int) -> int:
        """Counts the rows that have ``successors`` rows after them in their episode."""
        return int(self._starts(successors)[1][-1])

    def choose_start_numbers(
        self, uniform: npt.NDArray[np.float64], *, successors: int
    ) -> npt.NDArray[np.int64]:
        """Maps uniform numbers to numbers of eligible rows, each equally likely."""
        return (uniform * self.count_starts(successors=successors)).astype(np.int64)

    def locate_starts(
        self, chosen: npt.NDArray[np.int64], *, successors: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Finds eligible rows by their number.

        Args:
            chosen: ``i64[...]``, from 0, counting through one episode after another.
            successors: Rows that must follow in the same episode, at least 0.

        Returns:
            ``i64[...]``, rows; and ``i64[...]``, the last row of the episode of each.
        """
        counts, ends = self._starts(successors)
        # Episodes of most data sets are equally long: a division then finds the
        # episode, without a binary search for every window.
        if counts.min() == counts.max():
            episode = chosen // counts[0]
        else:
            episode = np.searchsorted(ends, chosen, side="right")
        first = self.episode_starts[episode]
        rows = first + chosen - (ends[episode] - counts[episode])
        return rows, first + self.episode_lengths[episode] - 1

    def _starts(
        self, successors: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Counts eligible rows by episode, with their running sum; ``i64[E]`` each."""
        if successors not in self._cached_starts:
            counts = np.maximum(self.episode_lengths - successors, 0)
            self._cached_starts[successors] = counts, np.cumsum(counts)
        return self._cached_starts[successors]

    @cached_property
    def _cached_starts(
        self,
    ) -> dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        # A property, because a field would enter the equality of tables.
        return {}


def find_acting_range(
    store: "Store", field: str, column: int, *, split: str = "train"
) -> tuple[float, float]:
    """Finds the smallest and largest value of a per-task field over rows that act.

    The field is read a part at a time, because the data may exceed memory.

    Args:
        store: A committed store.
        field: Name of the field, such as ``"rewards"``.
        column: Column of the task.
        split: ``"train"`` or ``"val"``.

    Returns:
        Minimum and maximum; the last rows of episodes, which hold no action, are left
        out.

    Raises:
        DataFormatError: If no episode has a transition.
    """
    lows, highs = [], []
    for part in store.manifest.parts_of(split):
        values = np.empty(part.rows, store.manifest.fields[field].dtype)
        store.read_into(part, {field: values}, first=0, column=column)
        acting = np.ones(part.rows, bool)
        acting[np.cumsum(store.episode_lengths(part)) - 1] = False
        if acting.any():
            lows.append(float(values[acting].min()))
            highs.append(float(values[acting].max()))
    if not lows:
        raise DataFormatError(
            f"{store.root}: expected a transition in split {split!r}, and no episode "
            "has one; shard data whose episodes have at least two states"
        )
    return min(lows), max(highs)


def count_unread_successes(store: "Store", column: int) -> tuple[int, int]:
    """Counts the episodes that reach success in their last row, which nothing reads.

    Args:
        store: A committed store.
        column: Column of the task.

    Returns:
        Training episodes of two rows or more that are solved in the last one and not in
        the one before; and those that are solved in any row.
    """
    unread = reaching = 0
    for part in store.manifest.parts_of("train"):
        masks = np.empty(part.rows, store.manifest.fields["masks"].dtype)
        store.read_into(part, {"masks": masks}, first=0, column=column)
        solved, lengths = masks == 0, store.episode_lengths(part)
        last = np.cumsum(lengths) - 1
        acting = lengths > 1
        unread += int((solved[last] & ~solved[last - 1] & acting).sum())
        anywhere = np.logical_or.reduceat(solved, last - lengths + 1)
        reaching += int((anywhere & acting).sum())
    return unread, reaching


def load_table(
    store: "Store",
    *,
    task: int,
    discount: float,
    split: str = "train",
    progress: Callable[[int], None] | None = None,
) -> RowTable:
    """Reads one task of a store into memory.

    Args:
        store: A committed store.
        task: Task number, from 1.
        discount: Discount that the store holds return sums for.
        split: ``"train"`` or ``"val"``.
        progress: Callback that is given the bytes of each request that arrived.

    Returns:
        The table.

    Raises:
        DataFormatError: If the store lacks task, discount or split.
        ConfigError: If the split has too many rows.
    """
    if (rows := store.rows(split)) > MOST_ROWS:
        raise ConfigError(
            f"feed.memory_limit_bytes: expected a limit for {rows:,} rows of split "
            f"{split!r}, as at most {MOST_ROWS:,} can be in memory; set it"
        )
    column, _ = store.task(task)
    returns = store.returns_field(discount)
    episodes = store.episodes(split)
    rewards, masks, sums = (
        store.read(name, split=split, column=column, progress=progress)
        for name in ("rewards", "masks", returns)
    )
    return RowTable(
        observations=store.read("observations", split=split, progress=progress),
        actions=store.read("actions", split=split, progress=progress),
        rewards=rewards,
        masks=masks.astype(np.float32),
        returns=sums,
        next_solved=next_solved(masks),
        episode_starts=episodes.starts,
        episode_lengths=episodes.lengths,
        discount=discount,
        fingerprint=fingerprint_rows(
            store, [(rewards, masks, sums)], split=split, task=task
        ),
        former_fingerprint=make_former_fingerprint(store, split=split, task=task),
    )
