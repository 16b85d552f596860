"""Windows of the ``val`` split, to measure with: drawn by streams of their own.

A batch is a pure function of (fingerprint of the split, sampler, seed, step), as those
of training are, and the split is part of the fingerprint: what is drawn here moves
nothing that is drawn there.

Dimensions: M batches, Q seeds, B batch.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from trainer.data.feed_config import FeedConfig
from trainer.data.sampling import Array, Sampler, uniform_numbers
from trainer.data.table import RowTable, load_table

SPLIT = "val"


class HeldOutBatches(NamedTuple):
    """Batches of windows that nothing is trained on.

    Attributes:
        batches: Of the agent's sampler, ``[M, Q, B, ...]`` each.
        returns: ``f32[M, Q, B]``, stored return from each window's first row to the
            end of its episode.
    """

    batches: Any
    returns: Array


class HeldOutSource:
    """Batches of held-out windows by step.

    Args:
        table: The ``val`` split of a task.
        sampler: Of the agent.
        seeds: Seed of each run trained side by side.
        batch_size: B of each.
        batches: M, of each step.
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
        """Draws the batches of a step."""
        numbers = uniform_numbers(
            self._table,
            self._sampler,
            seeds=self._seeds,
            steps=range(step, step + self._batches),
            batch_size=self._batch_size,
        )
        table = self._table
        index = self._sampler.draw(table, numbers[..., self._held_rows])
        return HeldOutBatches(
            self._sampler.gather(table.observations, table.actions, index),
            table.returns[index.rows].astype(np.float32),
        )


def find_obstacle(
    store: Store, config: FeedConfig, sampler: Sampler[Any, Any], *, discount: float
) -> str | None:
    """Says why nothing can be held out of a store, if that is so.

    Args:
        store: A committed store.
        config: Of the feed; its limit of memory holds for the split on its own.
        sampler: Of the agent.
        discount: Of the agent.

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
    """Reads the ``val`` split of a task into memory, see ``load_table``."""
    return load_table(
        store, task=task, discount=discount, split=SPLIT, progress=progress
    )
