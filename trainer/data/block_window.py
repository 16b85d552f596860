"""Training on a store larger than memory, through a sliding window of its blocks.

The store is cut into blocks of whole episodes. A schedule, a pure function of (seed,
step), slides a window over an endless stream of shuffled blocks. The same number of
blocks is resident at every step; at fixed intervals the oldest leaves and another one
enters, which a background thread has read ahead. Samples are uniform over the resident
rows.

Dimensions: N blocks, R resident at once.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import PartManifest
from pipeline.store.reader import Store
from pipeline.store.returns import next_solved
from trainer.data.fingerprint import (
    WINDOW,
    fingerprint_rows,
    make_former_fingerprint,
    read_labels,
)
from trainer.data.table import MOST_ROWS, RowTable
from trainer.errors import ConfigError

# Blocks that are read before the schedule asks for them.
_AHEAD = 1
# Blocks that are kept after they have left the window, because a thread may still be
# drawing from the previous window.
_BEHIND = 1


@dataclass(frozen=True)
class ResidentBlock:
    """Whole episodes of one part.

    Attributes:
        part: Part of the store that holds them.
        first: Row of the part that the block starts at.
        lengths: Rows of each episode.
    """

    part: PartManifest
    first: int
    lengths: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Rows of the block."""
        return sum(self.lengths)


@dataclass(frozen=True)
class Schedule:
    """Says which blocks are resident at which step, as a pure function of the step.

    The ``repr`` of a schedule is part of the fingerprint of its rows and so keys the
    random streams: renaming the class or a field changes every batch.

    Attributes:
        blocks: Blocks N of the store.
        resident: Blocks R that are resident at once, at most N.
        swap_every: Steps between two changes of the window.
        seed: Seed of the order of blocks.
    """

    blocks: int
    resident: int
    swap_every: int
    seed: int

    def window(self, step: int) -> range:
        """Returns the R places of the stream of blocks that are resident at a step."""
        first = step // self.swap_every
        return range(first, first + self.resident)

    def block(self, place: int) -> int:
        """Finds the block at a place of the stream.

        Every N places hold each block once.

        Args:
            place: Place, from 0, without end.

        Returns:
            Number of the block, in [0, N).
        """
        epoch, inside = divmod(place, self.blocks)
        # A fresh permutation of all blocks in each epoch could put a block's places of
        # two epochs less than R apart, and the block would be resident twice. Blocks
        # are shuffled within groups of one fixed order instead: a group of N - R + 1
        # places lets a block move by at most N - R, so its places stay R apart.
        size = max(1, self.blocks - self.resident + 1)
        group, position = divmod(inside, size)
        return int(_shuffled(self, epoch, group, size)[position])


@lru_cache(maxsize=64)
def _shuffled(
    schedule: Schedule, epoch: int, group: int, size: int
) -> npt.NDArray[np.int64]:
    # Cached, since a step asks for R places and most of them share a group or two.
    key = [schedule.seed, schedule.blocks, schedule.resident]
    base = np.random.default_rng(key).permutation(schedule.blocks)
    members = base[group * size : (group + 1) * size]
    return np.random.default_rng([*key, epoch, group]).permutation(members)


def cut_blocks(store: Store, *, split: str, block_rows: int) -> list[ResidentBlock]:
    """Cuts a split into blocks of whole episodes, at most ``block_rows`` rows each.

    Args:
        store: A committed store.
        split: ``"train"`` or ``"val"``.
        block_rows: Largest number of rows; a longer episode is a block of its own.

    Returns:
        Blocks in the order of the store.
    """
    # Episodes are never cut, because windows and goals lie within one episode.
    blocks = []
    parts = store.manifest.parts_of(split)
    for part, of_part in zip(parts, store.lengths_of(parts), strict=True):
        first, rows = 0, 0
        lengths: list[int] = []
        for length in of_part.tolist():
            if lengths and rows + length > block_rows:
                blocks.append(ResidentBlock(part, first, tuple(lengths)))
                first, rows, lengths = first + rows, 0, []
            lengths.append(length)
            rows += length
        if lengths:
            blocks.append(ResidentBlock(part, first, tuple(lengths)))
    return blocks


class ResidentRows:
    """The resident rows of one task of a store, kept within a limit of memory.

    Args:
        store: A committed store.
        task: Task number, from 1.
        discount: Discount that the store holds return sums for.
        limit_bytes: Memory for rows, including the blocks that are being read.
        block_rows: Largest number of rows of a block.
        batch_size: Rows B that each seed draws at a step.
        reuse: Number of times that a row is drawn, on average, before its block leaves.
        span: Steps that may be asked for out of order, at most ``swap_every``.
        seed: Seed of the order of blocks.
        split: ``"train"`` or ``"val"``.

    Raises:
        DataFormatError: If the store lacks the task, the discount or the split.
        ConfigError: If the limit is too small for a single block, or blocks would be
            exchanged too often for the steps that are prepared ahead.
    """

    def __init__(
        self,
        store: Store,
        *,
        task: int,
        discount: float,
        limit_bytes: int,
        block_rows: int,
        batch_size: int,
        reuse: float,
        span: int,
        seed: int,
        split: str = "train",
    ) -> None:
        self._store = store
        self._column, _ = store.task(task)
        self._returns = store.returns_field(discount)
        self.discount = discount
        self._blocks = cut_blocks(store, split=split, block_rows=block_rows)
        if not self._blocks:
            raise DataFormatError(
                f"{store.root}: expected episodes in split {split!r}, found none; "
                "shard or append some"
            )
        # All slots are as large as the largest block: blocks then come and go without
        # memory being allocated, moved or fragmented.
        self._slot_rows = max(block.rows for block in self._blocks)
        swap_every = max(1, round(reuse * self._slot_rows / batch_size))
        if span > swap_every:
            raise ConfigError(
                f"feed: expected at most one exchange of blocks among the {span} steps "
                f"that are prepared at once, got one every {swap_every}; raise "
                "feed.block_rows or feed.reuse, or lower feed.prefetch_calls"
            )
        row_bytes = store.row_bytes(self._returns)
        fitting = min(
            limit_bytes // (self._slot_rows * row_bytes), MOST_ROWS // self._slot_rows
        )
        # The number of resident blocks depends on the limit alone: threads and
        # prefetching must not change what is trained on.
        resident = min(len(self._blocks), fitting - _AHEAD - _BEHIND)
        if resident < 1:
            needed = (1 + _AHEAD + _BEHIND) * self._slot_rows * row_bytes
            raise ConfigError(
                f"feed.memory_limit_bytes: expected at least {needed:,} for blocks of "
                f"{self._slot_rows:,} rows, got {limit_bytes:,}; raise it, or set a "
                "smaller feed.block_rows"
            )
        self.schedule = Schedule(len(self._blocks), resident, swap_every, seed)
        # Uniform numbers choose among the resident rows, so another window makes other
        # batches of the same numbers; the fingerprint has to tell the two apart.
        window = f"{WINDOW}{self.schedule}/{block_rows}"
        labels = read_labels(store, self._returns, self._column, split=split)
        now = fingerprint_rows(store, labels, split=split, task=task)
        before = make_former_fingerprint(store, split=split, task=task)
        self.fingerprint = f"{now}{window}"
        self.former_fingerprint = f"{before}{window}"
        self._slots = resident + _AHEAD + _BEHIND
        rows = self._slots * self._slot_rows
        self._arrays: dict[str, Any] = {
            "observations": store.empty("observations", rows),
            "actions": store.empty("actions", rows),
            "rewards": np.empty(rows, np.float32),
            "masks": np.empty(rows, np.float32),
            "returns": np.empty(rows, np.float64),
            "next_solved": np.empty(rows, np.int32),
        }
        self._changed = threading.Condition()
        self._turn = threading.Lock()
        self._in_use: Counter[int] = Counter()
        self._loads: dict[int, Future[None]] = {}
        self._tables: dict[int, RowTable] = {}
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="read-blocks")

    @property
    def nbytes(self) -> int:
        """Bytes of the resident arrays, all of them allocated from the start."""
        return sum(array.nbytes for array in self._arrays.values())

    @property
    def episode_lengths(self) -> npt.NDArray[np.int64]:
        """``i64[E]``, rows of each episode, resident or not."""
        return np.array([n for block in self._blocks for n in block.lengths], np.int64)

    def with_fingerprint(self, fingerprint: str) -> "ResidentRows":
        """Puts these rows under another fingerprint, as ``RowTable`` does, in place."""
        with self._changed:
            self.fingerprint = fingerprint
            # Tables that were lent before carry the old fingerprint.
            self._tables.clear()
        return self

    def check_windows(self, rows_needed: int) -> None:
        """Refuses a schedule under which no resident episode may be long enough.

        Args:
            rows_needed: Rows that an episode must have for a window to start in it.

        Raises:
            ConfigError: If the blocks without such an episode could fill the window.
        """
        # The seed decides which blocks are resident together. A run must not fail, days
        # in, because of its seed, so the worst case is what counts.
        short = sum(max(block.lengths) < rows_needed for block in self._blocks)
        resident = self.schedule.resident
        if short >= resident:
            raise ConfigError(
                f"feed: expected fewer than {resident:,} blocks (as many as are "
                f"resident) without an episode of {rows_needed} rows, which a window "
                f"takes, got {short:,} of {len(self._blocks):,}; raise feed.block_rows "
                "or feed.memory_limit_bytes"
            )

    @contextmanager
    def at(self, step: int) -> Iterator[RowTable]:
        """Lends the rows that are resident at a step, until the context ends.

        Args:
            step: Number of the update.

        Yields:
            A table of the resident episodes.
        """
        places = self.schedule.window(step)
        # A window is lent only once all its blocks are in memory. A thread that holds a
        # window therefore never waits for a block, and the reader, which waits until
        # nobody holds the slot it needs, cannot deadlock with it. Only one thread may
        # wait: two that wait for windows far apart would evict each other's blocks.
        if not self._acquire(places):
            with self._turn:
                while not self._acquire(places):
                    for load in self._ask_for(places):
                        load.result()
        try:
            yield self._table(places)
        finally:
            with self._changed:
                self._in_use[places.start] -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """Stops reading blocks ahead."""
        self._reader.shutdown(cancel_futures=True)

    def _ask_for(self, places: range) -> list[Future[None]]:
        """Starts reading a window and one block ahead; returns the window's reads."""
        with self._changed:
            for place in range(places.start, places.stop + _AHEAD):
                if place not in self._loads:
                    self._loads[place] = self._reader.submit(self._load, place)
            return [self._loads[place] for place in places]

    def _acquire(self, places: range) -> bool:
        """Holds a window if all its blocks are in memory; says whether it does.

        The block after the window is then read ahead.
        """
        with self._changed:
            for place in places:
                load = self._loads.get(place)
                if load is None or not load.done() or load.exception() is not None:
                    return False
            self._in_use[places.start] += 1
        self._ask_for(places)
        return True

    def _shares_slot(self, first: int, place: int) -> bool:
        """Says whether the window at ``first`` has another block in a place's slot."""
        # Places that are a multiple of the number of slots apart share a slot, so this
        # is the window's only candidate.
        earliest = first + (place - first) % self._slots
        return earliest < first + self.schedule.resident and earliest != place

    def _holds_slot_of(self, place: int) -> bool:
        return any(
            users > 0 and self._shares_slot(first, place)
            for first, users in self._in_use.items()
        )

    def _load(self, place: int) -> None:
        """Reads the block at a place into its slot, once no window uses the slot."""
        with self._changed:
            self._changed.wait_for(lambda: not self._holds_slot_of(place))
            # Whatever was read into this slot is forgotten before it is overwritten;
            # the lock is not held while reading, which may take seconds.
            for other in list(self._loads):
                if other != place and (other - place) % self._slots == 0:
                    del self._loads[other]
            for first in list(self._tables):
                if self._shares_slot(first, place):
                    del self._tables[first]
        block = self._blocks[self.schedule.block(place)]
        start = (place % self._slots) * self._slot_rows
        rows = slice(start, start + block.rows)
        # Stores hold masks as bytes, tables as float32; the rest is read in place.
        masks = np.empty(block.rows, np.uint8)
        reads = {
            "observations": self._arrays["observations"][rows],
            "actions": self._arrays["actions"][rows],
            "rewards": self._arrays["rewards"][rows],
            "masks": masks,
            self._returns: self._arrays["returns"][rows],
        }
        self._store.read_into(block.part, reads, first=block.first, column=self._column)
        self._arrays["masks"][rows] = masks
        self._arrays["next_solved"][rows] = start + next_solved(masks)

    def _table(self, places: range) -> RowTable:
        # A table is kept while its window lasts: what it counts of its episodes is then
        # computed once and not at each step.
        cached = self._tables.get(places.start)
        if cached is not None:
            return cached
        lengths, starts = [], []
        for place in places:
            counts = np.asarray(
                self._blocks[self.schedule.block(place)].lengths, np.int64
            )
            lengths.append(counts)
            first = (place % self._slots) * self._slot_rows
            starts.append(first + np.cumsum(counts) - counts)
        table = RowTable(
            **self._arrays,
            episode_starts=np.concatenate(starts),
            episode_lengths=np.concatenate(lengths),
            discount=self.discount,
            fingerprint=self.fingerprint,
        )
        self._tables[places.start] = table
        return table
