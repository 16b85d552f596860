"""Windows of the ``val`` split, which losses are measured on and nothing is trained on.

A batch is a pure function of (fingerprint of the split, sampler, seed, step), as are
batches of training. The name of the split is part of the fingerprint, so measuring
changes no batch of training.

Dimensions: M batches, Q seeds, B batch.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from trainer.data.feed_config import FeedConfig
from trainer.data.sampling import Array, Sampler, draw_uniform_numbers
from trainer.data.table import RowTable, load_table

SPLIT = "val"


class HeldOutBatches(NamedTuple):
    """Batches of windows that nothing is trained on.

    Attributes:
        batches: Batches of the agent's sampler, arrays ``[M, Q, B, ...]``.
        returns: ``f32[M, Q, B]``, stored return from each window's first row to the
            end of its episode.
    """

    batches: Any
    returns: Array


class HeldOutSource:
    """Draws the held-out windows of a step.

    Args:
        table: The ``val`` split of a task.
        sampler: The agent's sampler.
        seeds: Seeds of the runs that are trained side by side, Q of them.
        batch_size: Windows B of each seed in a batch.
        batches: Batches M of each step.
        part: Seeds and rows of each batch that this process holds.
    """

    def __init__(
        self,
        table: RowTable,
        sampler: Sampler[Any, Any],
        *,
        seeds: Sequence[int],
        batch_size: int,
        batches: int,
        part: tuple[slice, slice] = (slice(None), slice(None)),
    ) -> None:
        self._table = table
        self._sampler = sampler
        held, self._held_rows = part
        self._seeds = tuple(seeds)[held]
        self._batch_size = batch_size
        self._batches = batches

    def at(self, step: int) -> HeldOutBatches:
        """Draws the batches of a step.

        Args:
            step: Updates done.

        Returns:
            The M batches.
        """
        table = self._table
        # Batch m of a step is drawn as batch 0 of step + m is, so measurements share
        # batches only if they lie fewer than M updates apart.
        numbers = draw_uniform_numbers(
            table,
            self._sampler,
            seeds=self._seeds,
            steps=range(step, step + self._batches),
            batch_size=self._batch_size,
        )
        # Numbers of all rows are drawn before this process takes its own, so that a
        # batch does not depend on how many processes share it.
        index = self._sampler.draw(table, numbers[..., self._held_rows])
        return HeldOutBatches(
            self._sampler.gather(table.observations, table.actions, index),
            table.returns[index.rows].astype(np.float32),
        )


def find_obstacle(
    store: Store, config: FeedConfig, sampler: Sampler[Any, Any], *, discount: float
) -> str | None:
    """Finds out why a store's ``val`` split cannot be measured on, if it cannot.

    Args:
        store: A committed store.
        config: Settings of the feed; the memory limit applies to this split alone.
        sampler: The agent's sampler.
        discount: The agent's discount.

    Returns:
        What is missing and what to do; None if the split can be drawn from.
    """
    if not store.manifest.parts_of(SPLIT):
        return (
            f"{store.root} has no split {SPLIT!r}; files named *-val.npz, "
            "`shard --val`, `append --val` and `collect --val-episodes` make one"
        )
    try:
        sampler.check(store.episodes(SPLIT).lengths, discount=discount)
    except DataFormatError as error:
        return f"split {SPLIT!r} of {store.root}: {error}"
    # The split is loaded whole beside the rows that are trained on, so it has to fit
    # the limit by itself.
    needed = store.rows(SPLIT) * store.row_bytes(store.returns_field(discount))
    limit = config.memory_limit_bytes
    if limit is not None and needed > limit:
        return (
            f"split {SPLIT!r} of {store.root} takes {needed:,} bytes of memory besides "
            f"the rows trained on, and feed.memory_limit_bytes is {limit:,}; raise it"
        )
    return None


def load_held_out(
    store: Store,
    *,
    task: int,
    discount: float,
    progress: Callable[[int], None] | None = None,
) -> RowTable:
    """Reads the ``val`` split of a task into memory; arguments as in ``load_table``."""
    return load_table(
        store, task=task, discount=discount, split=SPLIT, progress=progress
    )
