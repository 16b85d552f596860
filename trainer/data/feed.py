"""The feed: Grain turns step numbers into batches, ahead of the training thread.

One Grain element is one whole call of the trainer, so Grain's cost per element is
paid once for thousands of rows. The iterator's state is one integer.

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
from trainer.data.sampling import Sampler, uniform_numbers
from trainer.data.table import RowTable, load_table
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
    """Opens a task's rows: all in memory, or a window of them under a limit.

    Args:
        store: A committed store.
        config: Of the feed.
        task: Task number, from 1.
        discount: One that the store holds return sums for.
        batch_size: B.
        updates_per_call: M.
        seed: Of the order of blocks.
        progress: Called with the bytes of each request that arrived.

    Returns:
        What ``make_feed`` draws from.

    Raises:
        DataFormatError: If the store lacks task or discount.
        ConfigError: If the limit is too small for a block.
    """
    limit = config.memory_limit_bytes
    needed = store.rows() * store.row_bytes(store.returns_field(discount))
    if limit is None or needed <= limit:
        return load_table(store, task=task, discount=discount, progress=progress)
    return ResidentRows(
        store,
        task=task,
        discount=discount,
        limit_bytes=limit,
        block_rows=config.block_rows,
        batch_size=batch_size,
        reuse=config.reuse,
        # What Grain's threads may be busy with at once.
        span=(config.prefetch_calls + config.threads) * updates_per_call,
        seed=seed,
    )


class BatchSource:
    """Batches of all seeds by step: pure, so that Grain may ask in any order.

    Args:
        rows: Rows of one task.
        sampler: Of the agent.
        seeds: Seed of each run trained side by side.
        batch_size: B of each.
        steps: Length of the source.
        gather: Whether to look rows up here, or leave that to the device.
        part: Seeds and rows of each batch this process holds. A held seed's numbers
            are all drawn, whatever rows are held: processes never change a batch.
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
        # Of all episodes: what holds for the first rows need not for later ones.
        sampler.check(rows.episode_lengths, discount=rows.discount)
        if isinstance(rows, ResidentRows):
            rows.check_windows(sampler.rows_needed)
            if not gather:
                raise ConfigError(
                    "feed.gather: expected 'host' or 'auto' for data above "
                    "feed.memory_limit_bytes, got 'device'"
                )
        self._rows = rows
        self._sampler = sampler
        held, self._held_rows = part
        self._seeds = tuple(seeds)[held]
        self._batch_size = batch_size
        self._steps = steps
        self._gather = gather

    def __len__(self) -> int:
        """Steps there are batches of."""
        return self._steps

    def batches(self, steps: range) -> Any:
        """Batches, or index batches, of M steps: ``[M, Q, B, ...]`` each."""
        if isinstance(self._rows, RowTable):
            # All steps at once: NumPy's cost of a call is paid once for them.
            return self._batches(self._rows, steps)
        each = []
        for step in steps:
            with self._rows.at(step) as table:
                each.append(self._batches(table, range(step, step + 1)))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *each)

    def _batches(self, table: RowTable, steps: range) -> Any:
        numbers = uniform_numbers(
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
    """Builds the iterator the loop reads from; its state is the next call's number.

    Args:
        source: Batches by step.
        config: Threads and prefetching.
        updates_per_call: M.

    Returns:
        An iterator over what ``make_dataset`` has.
    """
    return iter(make_dataset(source, config, updates_per_call=updates_per_call))


def make_dataset(
    source: BatchSource, config: FeedConfig, *, updates_per_call: int
) -> grain.IterDataset[Any]:
    """Makes batches a data set of Grain's.

    Args:
        source: Batches by step.
        config: Threads and prefetching.
        updates_per_call: M.

    Returns:
        Batches (or index batches) of the sampler, with leading axes ``[M, Q]``.
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
        config: Of the feed.
        rows: Rows of one task.

    Returns:
        True for the device: if asked for, or under ``"auto"`` on an accelerator
        that has room. A CPU's own memory is the host's: nothing would be saved.
    """
    if config.gather != "auto":
        return config.gather == "device"
    device = jax.local_devices()[0]
    if device.platform == "cpu" or not isinstance(rows, RowTable):
        return False
    limit = (device.memory_stats() or {}).get("bytes_limit", 0)
    needed = rows.observations.nbytes + rows.actions.nbytes
    return bool(needed <= config.device_share * limit)
