"""Measures the feed: how fast it makes batches, and how long the trainer waits.

All figures of a table are measured in one run, so that their ratios hold on a machine
that other programs use too.

Dimensions: B batch, S observation.
"""

import dataclasses
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grain
import jax
import numpy as np
import psutil

from pipeline.store.reader import Store
from trainer.data.block_window import ResidentRows
from trainer.data.feed import BatchSource, make_feed, open_rows
from trainer.data.feed_config import FeedConfig
from trainer.data.horizon_windows import HorizonSampler
from trainer.data.sampling import draw_uniform_numbers
from trainer.data.table import RowTable, load_table

# Seconds that the training thread is busy with each batch while its waits are measured:
# about an update of a narrow network on an accelerator.
_BUSY_S = 0.002


@dataclass(frozen=True)
class FeedFigures:
    """One row of the table.

    Attributes:
        source: Way of making batches that was measured.
        batches_per_s: Batches per second, if they are taken as fast as they come.
        rows_per_s: Windows per second, likewise.
        blocked_ms: Milliseconds that the training thread waits for a batch, if it is
            busy for 2 ms between two batches.
        read_per_useful_byte: Bytes read from the store for each byte of a batch; 0 if
            the data are in memory.
        rss_mib: Resident memory of the process after the measurement, in MiB.
    """

    source: str
    batches_per_s: float
    rows_per_s: float
    blocked_ms: float
    read_per_useful_byte: float
    rss_mib: float


@dataclass(frozen=True)
class FeedReport:
    """Result of ``bench_feed``.

    Attributes:
        rows: Rows of the store.
        batch_size: Windows B of a batch.
        load_s: Seconds to read the store into memory.
        load_mib_per_s: MiB read per second meanwhile.
        figures: Figures of each way of making batches.
    """

    rows: int
    batch_size: int
    load_s: float
    load_mib_per_s: float
    figures: tuple[FeedFigures, ...]


def bench_feed(
    store: Store,
    *,
    task: int = 1,
    batch_size: int = 1024,
    updates_per_call: int = 10,
    max_horizon: int = 25,
    seconds: float = 5.0,
    memory_share: float = 0.25,
    progress: Callable[[str], None] = lambda _: None,
) -> FeedReport:
    """Measures every way of making batches from one store.

    Args:
        store: Finished store.
        task: Task number.
        batch_size: Windows B of a batch.
        updates_per_call: Batches that Grain hands over together.
        max_horizon: Largest horizon K of a window.
        seconds: Seconds that each measurement takes.
        memory_share: Memory limit of the resident window, as a share of the data.
        progress: Callback for the name of each measurement.

    Returns:
        The figures.
    """
    discount = store.manifest.discounts[0]
    sampler = HorizonSampler(max_horizon=max_horizon, discount=discount)
    bench = _Bench(sampler, batch_size, updates_per_call, seconds, progress)
    progress("store to memory")
    read: list[int] = []
    started = time.perf_counter()
    table = load_table(store, task=task, discount=discount, progress=read.append)
    load_s = time.perf_counter() - started
    figures = bench.measure_in_memory(table)
    # Otherwise the table would count as memory of the window, which is measured next.
    del table
    rows = open_rows(
        store,
        FeedConfig(memory_limit_bytes=int(_data_bytes(store) * memory_share)),
        task=task,
        discount=discount,
        batch_size=batch_size,
        updates_per_call=updates_per_call,
        seed=0,
    )
    if isinstance(rows, ResidentRows):
        figures.append(bench.measure_window(rows, store, memory_share))
        rows.close()
    return FeedReport(
        rows=store.rows(),
        batch_size=batch_size,
        load_s=load_s,
        load_mib_per_s=sum(read) / 2**20 / load_s,
        figures=tuple(figures),
    )


@dataclass(frozen=True)
class _Bench:
    """Settings that all measurements share."""

    sampler: HorizonSampler
    batch_size: int
    updates_per_call: int
    seconds: float
    progress: Callable[[str], None]

    def measure_in_memory(self, table: RowTable) -> list[FeedFigures]:
        """Measures Grain's feed beside plain NumPy and Grain with a record a window."""
        return [
            self._measure("Grain, host gather", self._make_feed(table, gather=True)),
            self._measure(
                "Grain, index batches (device gather)",
                self._make_feed(table, gather=False),
            ),
            self._measure(
                "plain NumPy in the training thread",
                _draw_with_numpy(table, self.sampler, self.batch_size),
                batches=1,
            ),
            self._measure(
                "Grain, a record a window",
                _draw_by_records(table, self.sampler, self.batch_size),
                batches=1,
            ),
        ]

    def measure_window(
        self, rows: ResidentRows, store: Store, share: float
    ) -> FeedFigures:
        """Measures the feed through a window of blocks, for data beyond the memory."""
        figures = self._measure(
            f"Grain, window of {share:.0%} of the data",
            self._make_feed(rows, gather=True),
        )
        # A block is read each time that one is swapped for another, and batches are
        # drawn in between.
        schedule = rows.schedule
        read = _data_bytes(store) / schedule.blocks
        useful = schedule.swap_every * self.batch_size * _window_bytes(store)
        return dataclasses.replace(figures, read_per_useful_byte=read / useful)

    def _make_feed(
        self, rows: RowTable | ResidentRows, *, gather: bool
    ) -> Iterator[Any]:
        source = BatchSource(
            rows,
            self.sampler,
            seeds=(0,),
            batch_size=self.batch_size,
            steps=10**9,
            gather=gather,
        )
        feed: Iterator[Any] = make_feed(
            source, FeedConfig(), updates_per_call=self.updates_per_call
        )
        return feed

    def _measure(
        self, name: str, calls: Iterator[Any], *, batches: int | None = None
    ) -> FeedFigures:
        """Measures an iterator; ``batches`` is the number that each step returns.

        None stands for those of one call of the trainer.
        """
        self.progress(name)
        count = self.updates_per_call if batches is None else batches
        return _measure(name, calls, count, self.batch_size, self.seconds)


def _measure(
    name: str, calls: Iterator[Any], batches: int, batch_size: int, seconds: float
) -> FeedFigures:
    """Measures an iterator that returns ``batches`` batches at each step."""
    # Grain starts its threads at the first step, and fills its buffers at the next.
    for _ in range(3):
        next(calls)
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        next(calls)
        count += batches
    rate = count / (time.perf_counter() - started)
    # The trainer is busy elsewhere, as it is while an accelerator computes. The feed
    # can then prepare batches ahead, unless it is too slow.
    blocked, waits = 0.0, 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        time.sleep(_BUSY_S * batches)
        waiting = time.perf_counter()
        next(calls)
        blocked += time.perf_counter() - waiting
        waits += batches
    return FeedFigures(
        source=name,
        batches_per_s=rate,
        rows_per_s=rate * batch_size,
        blocked_ms=1e3 * blocked / max(1, waits),
        read_per_useful_byte=0.0,
        rss_mib=psutil.Process().memory_info().rss / 2**20,
    )


def _data_bytes(store: Store) -> int:
    """Computes the bytes of the data in memory, with the rewards of one task."""
    returns = store.returns_field(store.manifest.discounts[0])
    return store.rows() * store.row_bytes(returns)


def _window_bytes(store: Store) -> int:
    """Computes the bytes of a window: five states, an action and seven scalars."""
    fields = store.manifest.fields
    sizes = {
        name: np.dtype(fields[name].dtype).itemsize * int(np.prod(fields[name].shape))
        for name in ("observations", "actions")
    }
    return 5 * sizes["observations"] + sizes["actions"] + 7 * 4


def _draw_with_numpy(
    table: RowTable, sampler: HorizonSampler, batch_size: int
) -> Iterator[Any]:
    """Draws windows with the same fields in plain NumPy, as published code does."""
    rng = np.random.default_rng(0)
    ends = table.episode_starts + table.episode_lengths - 1
    last_of = np.repeat(ends, table.episode_lengths)
    possible = np.flatnonzero(np.arange(table.rows) + 2 <= last_of)
    while True:
        rows = possible[rng.integers(len(possible), size=batch_size)]
        last = last_of[rows]
        k = rng.integers(2, np.minimum(sampler.max_horizon, last - rows) + 1)
        i = rng.integers(1, k)
        later = rng.integers(rows + 1, last + 1)
        anywhere = rng.integers(table.rows, size=batch_size)
        # Goals are the row itself, a later one of its episode, or any row of the data.
        kind = rng.random(batch_size)
        goals = np.where(kind < 0.1, rows, np.where(kind < 0.9, later, anywhere))
        alive = table.next_solved[rows + k] == table.next_solved[rows]
        yield {
            "observations": table.observations[rows],
            "actions": table.actions[rows],
            "rewards": table.rewards[rows],
            "masks": table.masks[rows],
            "next_observations": table.observations[rows + 1],
            "states_k": table.observations[rows + k],
            "states_i": table.observations[rows + i],
            "goals": table.observations[goals],
            "returns_k": table.returns[rows]
            - sampler.discount**k * alive * table.returns[rows + k],
            "alive_k": alive,
            "horizons": k,
            "intermediates": i,
        }


def _draw_by_records(
    table: RowTable, sampler: HorizonSampler, batch_size: int
) -> Iterator[Any]:
    """Draws each window as a record of its own, which Grain joins to batches.

    Grain's own examples are written in this way; the trainer's feed draws a whole batch
    at once instead.
    """

    def draw_window(number: int) -> Any:
        steps = range(int(number), int(number) + 1)
        numbers = draw_uniform_numbers(
            table, sampler, seeds=(0,), steps=steps, batch_size=1
        )
        index = sampler.draw(table, numbers[:, 0, 0])
        batch = sampler.gather(table.observations, table.actions, index)
        return jax.tree.map(lambda values: values[0], batch)

    return iter(
        grain.MapDataset.range(10**9)
        .map(draw_window)
        .batch(batch_size)
        .to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=8))
    )
