"""A store larger than memory: which blocks of it are resident at each step.

The store is cut into blocks of whole episodes. A schedule, a pure function of (seed,
step), slides a window over an endless stream of shuffled blocks: at every step the
same number of blocks is resident, every so many steps the oldest leaves and one comes
in, read ahead by a background thread. Samples are uniform over the resident rows.

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
    fingerprint_rows,
    former_fingerprint,
    read_labels,
)
from trainer.data.table import RowTable
from trainer.errors import ConfigError

# Blocks read before the schedule asks for them.
_AHEAD = 1
# Blocks kept after they have left: a thread may still be busy with the last window.
_BEHIND = 1


@dataclass(frozen=True)
class Block:
    """Whole episodes of one part.

    Attributes:
        part: Where they are.
        first: First row within the part.
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
    """Which blocks are resident at which step. Pure.

    Attributes:
        blocks: N.
        resident: R, at most N.
        swap_every: Steps between two changes.
        seed: Of the order.
    """

    blocks: int
    resident: int
    swap_every: int
    seed: int

    def window(self, step: int) -> range:
        """Places in the stream of blocks that are resident at a step: R of them."""
        first = step // self.swap_every
        return range(first, first + self.resident)

    def block(self, place: int) -> int:
        """Number of the block at a place in the stream.

        Every N places hold each block once. Shuffling within groups of a base order
        that never changes keeps two places of one block R apart, so that none is
        resident twice.

        Args:
            place: From 0, without end.

        Returns:
            In [0, N).
        """
        epoch, inside = divmod(place, self.blocks)
        size = max(1, self.blocks - self.resident + 1)
        group, position = divmod(inside, size)
        return int(_shuffled(self, epoch, group, size)[position])


@lru_cache(maxsize=64)
def _shuffled(
    schedule: Schedule, epoch: int, group: int, size: int
) -> npt.NDArray[np.int64]:
    key = [schedule.seed, schedule.blocks, schedule.resident]
    base = np.random.default_rng(key).permutation(schedule.blocks)
    members = base[group * size : (group + 1) * size]
    return np.random.default_rng([*key, epoch, group]).permutation(members)


def cut_blocks(store: Store, *, split: str, block_rows: int) -> list[Block]:
    """Cuts a split into blocks of whole episodes, at most ``block_rows`` rows each.

    Args:
        store: A committed store.
        split: ``"train"`` or ``"val"``.
        block_rows: Rows aimed at; a longer episode is a block of its own.

    Returns:
        Blocks in the order of the store.
    """
    blocks = []
    for part in store.manifest.parts_of(split):
        first, rows = 0, 0
        lengths: list[int] = []
        for length in store.episode_lengths(part).tolist():
            if lengths and rows + length > block_rows:
                blocks.append(Block(part, first, tuple(lengths)))
                first, rows, lengths = first + rows, 0, []
            lengths.append(length)
            rows += length
        if lengths:
            blocks.append(Block(part, first, tuple(lengths)))
    return blocks


class ResidentRows:
    """The resident part of a store, one task of it, kept within a limit of memory.

    Args:
        store: A committed store.
        task: Task number, from 1.
        discount: One that the store holds return sums for.
        limit_bytes: Memory for rows, blocks being read included.
        block_rows: Rows aimed at for a block.
        batch_size: B, rows drawn by each seed at a step.
        reuse: How often a row is drawn, on average, before its block leaves.
        span: Steps that may be asked for out of order, at most `swap_every`.
        seed: Of the order of blocks.
        split: ``"train"`` or ``"val"``.

    Raises:
        DataFormatError: If store, task or discount do not fit.
        ConfigError: If the limit is too small for a single block, or a block would be
            changed too often for what is prepared ahead.
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
            raise DataFormatError(f"{store.root}: split {split!r} is empty")
        self._slot_rows = max(block.rows for block in self._blocks)
        swap_every = max(1, round(reuse * self._slot_rows / batch_size))
        if span > swap_every:
            raise ConfigError(
                f"feed: up to {span} steps are prepared at once and a block is changed "
                f"every {swap_every}; expected no more than one change among them. "
                "Raise feed.block_rows or feed.reuse, or lower feed.prefetch_calls"
            )
        row_bytes = store.row_bytes(self._returns)
        fitting = limit_bytes // (self._slot_rows * row_bytes)
        # How many depends on the limit alone: threads and prefetching must not change
        # what is trained on.
        resident = min(len(self._blocks), fitting - _AHEAD - _BEHIND)
        if resident < 1:
            needed = (1 + _AHEAD + _BEHIND) * self._slot_rows * row_bytes
            raise ConfigError(
                f"feed.memory_limit_bytes: expected at least {needed:,} for blocks of "
                f"{self._slot_rows:,} rows, got {limit_bytes:,}; raise it, or set a "
                "smaller feed.block_rows"
            )
        self.schedule = Schedule(len(self._blocks), resident, swap_every, seed)
        window = f"resident/{self.schedule}/{block_rows}"
        labels = read_labels(store, self._returns, self._column, split=split)
        now = fingerprint_rows(store, labels, split=split, task=task)
        before = former_fingerprint(store, split=split, task=task)
        self.fingerprint = f"{now}/{window}"
        self.former_fingerprint = f"{before}/{window}"
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
        """``i64[E]``, rows of all episodes, resident or not."""
        return np.array([n for block in self._blocks for n in block.lengths], np.int64)

    def named(self, fingerprint: str) -> "ResidentRows":
        """These rows, from now on under another fingerprint: as of `RowTable`."""
        with self._changed:
            self.fingerprint = fingerprint
            self._tables.clear()
        return self

    def check_windows(self, rows_needed: int) -> None:
        """Refuses a schedule under which there may be nothing to draw from.

        Which blocks are resident together is a matter of the seed. With any seed at
        least one of them is to hold an episode that is long enough.

        Args:
            rows_needed: Rows of an episode that something is drawn from.

        Raises:
            ConfigError: If so many blocks hold none that they may be all there is.
        """
        short = sum(max(block.lengths) < rows_needed for block in self._blocks)
        resident = self.schedule.resident
        if short >= resident:
            raise ConfigError(
                f"feed: {short:,} of {len(self._blocks):,} blocks hold no episode of "
                f"{rows_needed} rows, which a window takes, and {resident:,} are "
                "resident at a time, so that at times there would be nothing to draw; "
                "raise feed.block_rows or feed.memory_limit_bytes"
            )

    @contextmanager
    def at(self, step: int) -> Iterator[RowTable]:
        """Lends the rows resident at a step; they stay until the context ends.

        Args:
            step: Number of the update.

        Yields:
            A table of the resident episodes.
        """
        places = self.schedule.window(step)
        # Rows are lent only once all of them are there: whoever holds a window never
        # waits for a block, so the reader never waits for ever for a slot. And one
        # thread waits at a time, or two far apart would push out each other's blocks.
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
        """Stops reading."""
        self._reader.shutdown(cancel_futures=True)

    def _ask_for(self, places: range) -> list[Future[None]]:
        """Has the blocks of a window read, and one ahead; those of the window."""
        with self._changed:
            for place in range(places.start, places.stop + _AHEAD):
                if place not in self._loads:
                    self._loads[place] = self._reader.submit(self._load, place)
            return [self._loads[place] for place in places]

    def _acquire(self, places: range) -> bool:
        """Holds a window if all of it is there, and has the next block read ahead."""
        with self._changed:
            for place in places:
                load = self._loads.get(place)
                if load is None or not load.done() or load.exception() is not None:
                    return False
            self._in_use[places.start] += 1
        self._ask_for(places)
        return True

    def _shares_slot(self, first: int, place: int) -> bool:
        """Whether a window has another block where a place's block goes."""
        earliest = first + (place - first) % self._slots
        return earliest < first + self.schedule.resident and earliest != place

    def _holds_slot_of(self, place: int) -> bool:
        return any(
            users > 0 and self._shares_slot(first, place)
            for first, users in self._in_use.items()
        )

    def _load(self, place: int) -> None:
        """Reads the block at a place into its slot, once nobody needs what is there."""
        with self._changed:
            self._changed.wait_for(lambda: not self._holds_slot_of(place))
            for other in list(self._loads):
                if other != place and (other - place) % self._slots == 0:
                    del self._loads[other]
            for first in list(self._tables):
                if self._shares_slot(first, place):
                    del self._tables[first]
        block = self._blocks[self.schedule.block(place)]
        start = (place % self._slots) * self._slot_rows
        rows = slice(start, start + block.rows)
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
        known = self._tables.get(places.start)
        if known is not None:
            return known
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
