"""Measuring the feed: how fast batches come, and what of it the trainer waits for.

Every figure of one table is from one run, so that ratios hold on a noisy machine.

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
from trainer.data.sampling import uniform_numbers
from trainer.data.table import RowTable, load_table

# What a trainer is busy with between two batches while blocked time is measured.
_BUSY_S = 0.002


@dataclass(frozen=True)
class FeedFigures:
    """One row of the table.

    Attributes:
        source: What was measured.
        batches_per_s: Batches as fast as they come.
        rows_per_s: The same in windows.
        blocked_ms: Time the training thread spends on a batch when it is busy with
            something else for 2 ms a batch in between.
        read_per_useful_byte: Bytes read from the store for a byte of a batch; 0 where
            the store is in memory.
        rss_mib: Resident memory of the process, after.
    """

    source: str
    batches_per_s: float
    rows_per_s: float
    blocked_ms: float
    read_per_useful_byte: float
    rss_mib: float


@dataclass(frozen=True)
class FeedReport:
    """All of it.

    Attributes:
        rows: Of the store.
        batch_size: B.
        load_s: Store to memory.
        load_mib_per_s: Rate of that.
        figures: By source.
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
    """Measures every way of feeding from one store.

    Args:
        store: A committed store.
        task: Task number.
        batch_size: B.
        updates_per_call: M, batches that Grain hands over together.
        max_horizon: K.
        seconds: Time given to each measurement.
        memory_share: Memory limit of the resident window, as a share of the data.
        progress: Called with what is being measured.

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
    figures = bench.in_memory(table)
    del table  # The window's own memory is measured next.
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
        figures.append(bench.window(rows, store, memory_share))
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
    """What all measurements share."""

    sampler: HorizonSampler
    batch_size: int
    updates_per_call: int
    seconds: float
    progress: Callable[[str], None]

    def in_memory(self, table: RowTable) -> list[FeedFigures]:
        return [
            self._measure("Grain, host gather", self._grain(table, gather=True)),
            self._measure(
                "Grain, index batches (device gather)", self._grain(table, gather=False)
            ),
            self._measure(
                "plain NumPy in the training thread",
                _plain_numpy(table, self.sampler, self.batch_size),
                batches=1,
            ),
            self._measure(
                "Grain, a record a window",
                _record_by_record(table, self.sampler, self.batch_size),
                batches=1,
            ),
        ]

    def window(self, rows: ResidentRows, store: Store, share: float) -> FeedFigures:
        figures = self._measure(
            f"Grain, window of {share:.0%} of the data", self._grain(rows, gather=True)
        )
        schedule = rows.schedule
        read = _data_bytes(store) / schedule.blocks
        useful = schedule.swap_every * self.batch_size * _window_bytes(store)
        return dataclasses.replace(figures, read_per_useful_byte=read / useful)

    def _grain(self, rows: RowTable | ResidentRows, *, gather: bool) -> Iterator[Any]:
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
        """Measures what hands over so many batches at once, a call's if not given."""
        self.progress(name)
        together = self.updates_per_call if batches is None else batches
        return _measure(name, calls, together, self.batch_size, self.seconds)


def _measure(
    name: str, calls: Iterator[Any], batches: int, batch_size: int, seconds: float
) -> FeedFigures:
    """Measures an iterator that hands over so many batches at once."""
    for _ in range(3):
        next(calls)
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        next(calls)
        count += batches
    rate = count / (time.perf_counter() - started)
    # With the trainer busy elsewhere, as it is on an accelerator.
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
    """Bytes of one task of the data in memory."""
    returns = store.returns_field(store.manifest.discounts[0])
    return store.rows() * store.row_bytes(returns)


def _window_bytes(store: Store) -> int:
    """Bytes of one window of a batch: five states, an action, seven scalars."""
    fields = store.manifest.fields
    sizes = {
        name: np.dtype(fields[name].dtype).itemsize * int(np.prod(fields[name].shape))
        for name in ("observations", "actions")
    }
    return 5 * sizes["observations"] + sizes["actions"] + 7 * 4


def _plain_numpy(
    table: RowTable, sampler: HorizonSampler, batch_size: int
) -> Iterator[Any]:
    """Draws the same content as published code does, an array at a time."""
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
        which = rng.random(batch_size)
        goals = np.where(which < 0.1, rows, np.where(which < 0.9, later, anywhere))
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


def _record_by_record(
    table: RowTable, sampler: HorizonSampler, batch_size: int
) -> Iterator[Any]:
    """Draws the same content as a Grain pipeline of windows that Grain batches."""

    def window(number: int) -> Any:
        steps = range(int(number), int(number) + 1)
        numbers = uniform_numbers(table, sampler, seeds=(0,), steps=steps, batch_size=1)
        index = sampler.draw(table, numbers[:, 0, 0])
        batch = sampler.gather(table.observations, table.actions, index)
        return jax.tree.map(lambda values: values[0], batch)

    return iter(
        grain.MapDataset.range(10**9)
        .map(window)
        .batch(batch_size)
        .to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=8))
    )
