"""One task of a store in memory: what sampling and gathering read from.

Knows the store's reader and NumPy; nothing of samplers, Grain or devices.

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
from trainer.data.fingerprint import fingerprint_rows, former_fingerprint

if TYPE_CHECKING:  # It brings pydantic, which updating on arrays does without.
    from pipeline.store.reader import Store

Float32 = npt.NDArray[np.float32]


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
        next_solved: ``i32[N]``, first solved row at or after each row, be it of a later
            episode; a row past the data where there is none.
        episode_starts: ``i64[E]``.
        episode_lengths: ``i64[E]``, rows.
        discount: Of ``returns``.
        fingerprint: Of what is read of the store; it keys what is drawn.
        former_fingerprint: What earlier versions called the same data, if they did.
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

    def named(self, fingerprint: str) -> "RowTable":
        """The same rows under another fingerprint, which other rows are drawn by."""
        return replace(self, fingerprint=fingerprint)

    def best_return(self) -> float:
        """Largest discounted return to the end of an episode, over rows that act."""
        acting = np.ones(self.rows, bool)
        acting[self.episode_starts + self.episode_lengths - 1] = False
        return float(self.returns[acting].max())

    def pick_starts(
        self, uniform: npt.NDArray[np.float64], *, successors: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Maps uniform numbers to rows that their episode goes on after.

        Args:
            uniform: ``f64[...]`` in [0, 1).
            successors: Rows that must follow in the same episode, at least 1.

        Returns:
            ``i64[...]``, rows, each such row equally likely; and ``i64[...]``, the
            last row of each one's episode.
        """
        return self.locate_starts(
            self.start_numbers(uniform, successors=successors), successors=successors
        )

    def start_count(self, *, successors: int) -> int:
        """Rows that so many rows follow in their episode."""
        return int(self._starts(successors)[1][-1])

    def start_numbers(
        self, uniform: npt.NDArray[np.float64], *, successors: int
    ) -> npt.NDArray[np.int64]:
        """Maps uniform numbers to numbers of possible starts, each equally likely."""
        return (uniform * self.start_count(successors=successors)).astype(np.int64)

    def locate_starts(
        self, chosen: npt.NDArray[np.int64], *, successors: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Rows of possible starts by their number.

        Args:
            chosen: ``i64[...]``, from 0, one episode after another.
            successors: Rows that must follow in the same episode, at least 1.

        Returns:
            ``i64[...]``, rows; and ``i64[...]``, the last row of each one's episode.
        """
        counts, ends = self._starts(successors)
        if counts.min() == counts.max():  # Most data sets: a division, not a search.
            episode = chosen // counts[0]
        else:
            episode = np.searchsorted(ends, chosen, side="right")
        first = self.episode_starts[episode]
        rows = first + chosen - (ends[episode] - counts[episode])
        return rows, first + self.episode_lengths[episode] - 1

    def _starts(
        self, successors: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Possible starts by episode and their running sum; made once a distance."""
        if successors not in self._starts_made:
            counts = np.maximum(self.episode_lengths - successors, 0)
            self._starts_made[successors] = counts, np.cumsum(counts)
        return self._starts_made[successors]

    @cached_property
    def _starts_made(
        self,
    ) -> dict[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        return {}


def acting_range(
    store: "Store", field: str, column: int, *, split: str = "train"
) -> tuple[float, float]:
    """Smallest and largest value of a per-task field over rows that act.

    Read a part at a time: the data may exceed memory.

    Args:
        store: A committed store.
        field: Such as ``"rewards"``.
        column: Of the task.
        split: ``"train"`` or ``"val"``.

    Returns:
        Minimum and maximum, the last rows of episodes left out.
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
            f"{store.root}: no episode of split {split!r} has a transition; there is "
            "nothing to train on"
        )
    return min(lows), max(highs)


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
        discount: One that the store holds return sums for.
        split: ``"train"`` or ``"val"``.
        progress: Called with the bytes of each request that arrived.

    Returns:
        The table.

    Raises:
        DataFormatError: If the store lacks task, discount or split.
    """
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
        former_fingerprint=former_fingerprint(store, split=split, task=task),
    )
