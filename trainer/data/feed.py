"""The feed: Grain turns step numbers into batches, ahead of the training thread.

One Grain element holds the batches of a whole call of the trainer, so Grain's cost per
element is paid once for thousands of rows: with one window per element, Grain was 889
times slower (tests/benchmarks/README.md). The iterator's state is one integer.

Dimensions: M updates per call, Q seeds, B batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import grain
import jax
import numpy as np

from pipeline.store.reader import Store
from trainer.data.block_window import ResidentRows
from trainer.data.feed_config import FeedConfig
from trainer.data.sampling import Sampler, draw_uniform_numbers
from trainer.data.table import MOST_ROWS, RowTable, load_table
from trainer.errors import ConfigError


def open_rows(
    store: Store,
    config: FeedConfig,
    *,
    task: int,
    discount: float,
    batch_size: int,
    updates_per_call: int,
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> RowTable | ResidentRows:
    """Opens a task's rows: all of them in memory, or a sliding window under a limit.

    Args:
        store: A committed store.
        config: Settings of the feed.
        task: Task number, from 1.
        discount: Discount that the store holds return sums for.
        batch_size: Rows B that each seed draws at a step.
        updates_per_call: Updates M of a call.
        seed: Seed of the order of blocks.
        progress: Callback that is given the bytes of each request that arrived.

    Returns:
        Rows for ``BatchSource`` to draw from.

    Raises:
        DataFormatError: If the store lacks the task or the discount.
        ConfigError: If the limit is too small for a block.
    """
    limit = config.memory_limit_bytes
    needed = store.rows() * store.row_bytes(store.returns_field(discount))
    fits = limit is not None and needed <= limit and store.rows() <= MOST_ROWS
    if limit is None or fits:
        return load_table(store, task=task, discount=discount, progress=progress)
    return ResidentRows(
        store,
        task=task,
        discount=discount,
        limit_bytes=limit,
        block_rows=config.block_rows,
        batch_size=batch_size,
        reuse=config.reuse,
        # Grain's threads may ask for the steps of all these calls in any order, so
        # their windows may differ by no more blocks than are kept beside a window.
        span=(config.prefetch_calls + config.threads) * updates_per_call,
        seed=seed,
    )


class BatchSource:
    """Draws the batches of all seeds by step, in any order that Grain asks for them.

    Args:
        rows: Rows of one task.
        sampler: The agent's sampler.
        seeds: Seeds of the runs that are trained side by side, Q of them.
        batch_size: Windows B of each seed at a step.
        steps: Steps that batches can be drawn for.
        gather: Whether rows are looked up here; otherwise the device does that.
        part: Seeds and rows of each batch that this process holds.

    Raises:
        ConfigError: If the device is to look up rows that are not all in memory, or
            too few resident blocks hold a window.
        DataFormatError: If the sampler cannot draw from the episodes.
    """

    def __init__(
        self,
        rows: RowTable | ResidentRows,
        sampler: Sampler[Any, Any],
        *,
        seeds: Sequence[int],
        batch_size: int,
        steps: int,
        gather: bool,
        part: tuple[slice, slice] = (slice(None), slice(None)),
    ) -> None:
        # All episodes are checked, resident or not: a later block may hold only short
        # ones, and a window would then end in another episode.
        sampler.check(rows.episode_lengths, discount=rows.discount)
        if isinstance(rows, ResidentRows):
            rows.check_windows(sampler.rows_needed)
            if not gather:
                raise ConfigError(
                    "feed.gather: expected 'host' or 'auto' for data above "
                    "feed.memory_limit_bytes, got 'device'; drop one of the two"
                )
        self._rows = rows
        self._sampler = sampler
        held, self._held_rows = part
        self._seeds = tuple(seeds)[held]
        self._batch_size = batch_size
        self._steps = steps
        self._gather = gather

    def __len__(self) -> int:
        """Counts the steps that batches can be drawn for."""
        return self._steps

    def batches(self, steps: range) -> Any:
        """Draws the batches, or index batches, of M steps.

        Args:
            steps: Numbers of the updates.

        Returns:
            A NamedTuple of arrays ``[M, Q, B, ...]``.
        """
        if isinstance(self._rows, RowTable):
            # All steps are drawn at once: NumPy's cost of a call is then paid once for
            # all of them, which made index batches three times as fast.
            return self._draw(self._rows, steps)
        # Another block may be resident at the next step, so a step is drawn at a time.
        drawn = []
        for step in steps:
            with self._rows.at(step) as table:
                drawn.append(self._draw(table, range(step, step + 1)))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *drawn)

    def _draw(self, table: RowTable, steps: range) -> Any:
        # All numbers of a seed are drawn and the rows of this process taken from them:
        # how many processes there are must not change a batch.
        numbers = draw_uniform_numbers(
            table,
            self._sampler,
            seeds=self._seeds,
            steps=steps,
            batch_size=self._batch_size,
        )
        index = self._sampler.draw(table, numbers[..., self._held_rows])
        if not self._gather:
            return index
        return self._sampler.gather(table.observations, table.actions, index)


def make_feed(
    source: BatchSource, config: FeedConfig, *, updates_per_call: int
) -> grain.DatasetIterator:
    """Builds the iterator that the training loop reads from.

    The iterator's state is the number of the next call.

    Args:
        source: Batches by step.
        config: Threads and prefetching.
        updates_per_call: Updates M of a call.

    Returns:
        An iterator over the elements of ``make_dataset``.
    """
    return iter(make_dataset(source, config, updates_per_call=updates_per_call))


def make_dataset(
    source: BatchSource, config: FeedConfig, *, updates_per_call: int
) -> grain.IterDataset[Any]:
    """Makes a Grain data set of a source of batches.

    Args:
        source: Batches by step.
        config: Threads and prefetching.
        updates_per_call: Updates M of a call.

    Returns:
        A data set with an element for each call: batches (or index batches) of the
        sampler with leading axes ``[M, Q]``.
    """

    def batches(call: int) -> Any:
        first = int(call) * updates_per_call
        return source.batches(range(first, first + updates_per_call))

    return (
        grain.MapDataset.range(len(source) // updates_per_call)
        .map(batches)
        .to_iter_dataset(
            grain.ReadOptions(
                num_threads=config.threads,
                prefetch_buffer_size=config.prefetch_calls,
            )
        )
    )


def gather_on_device(config: FeedConfig, rows: RowTable | ResidentRows) -> bool:
    """Decides where rows are looked up.

    Args:
        config: Settings of the feed.
        rows: Rows of one task.

    Returns:
        True for the device: if the configuration says so, or under ``"auto"`` if an
        accelerator has room for the table.
    """
    if config.gather != "auto":
        return config.gather == "device"
    device = jax.local_devices()[0]
    # A CPU device shares the host's memory, so a second copy there saves no transfer.
    if device.platform == "cpu" or not isinstance(rows, RowTable):
        return False
    # A device that reports no limit counts as full: looking up on the host is slower,
    # but never runs out of memory.
    limit = (device.memory_stats() or {}).get("bytes_limit", 0)
    needed = rows.observations.nbytes + rows.actions.nbytes
    return bool(needed <= config.device_share * limit)
