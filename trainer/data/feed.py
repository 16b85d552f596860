"""The feed: Grain turns step numbers into batches, ahead of the training thread.

One Grain element is one whole call of the trainer, so Grain's cost per element is
paid once for thousands of rows. The iterator's state is one integer.

Dimensions: M updates per call, Q seeds, B batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import grain
import jax
import numpy as np

from trainer.data.sampler import HorizonIndex, HorizonSampler, step_generator
from trainer.data.table import RowTable

GatherWhere = Literal["auto", "host", "device"]


@dataclass(frozen=True)
class FeedConfig:
    """How batches reach the devices; nothing here changes what is in them.

    Attributes:
        gather: Where rows are looked up: ``"host"``, ``"device"`` (the table lives
            there and only row numbers travel), or ``"auto"``, on an accelerator that
            the table fits.
        threads: Reading threads. Sampling and gathering release the GIL in part.
        prefetch_calls: Calls of the trainer prepared ahead.
        device_share: Largest share of a device's memory for the table under
            ``"auto"``.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    gather: GatherWhere = "auto"
    threads: int = 2
    prefetch_calls: int = 4
    device_share: float = 0.5

    def __post_init__(self) -> None:
        if self.threads < 1 or self.prefetch_calls < 1:
            raise ValueError(
                "feed.threads and feed.prefetch_calls: expected at least 1, got "
                f"{self.threads} and {self.prefetch_calls}"
            )


class IndexSource:
    """Index batches of all seeds by step: a random-access source for Grain.

    Args:
        table: Rows of one task.
        sampler: Of the agent.
        seeds: Seed of each run trained side by side.
        batch_size: B of each.
        steps: Length of the source.
    """

    def __init__(
        self,
        table: RowTable,
        sampler: HorizonSampler,
        *,
        seeds: Sequence[int],
        batch_size: int,
        steps: int,
    ) -> None:
        sampler.check(table)
        self._table = table
        self._sampler = sampler
        self._seeds = tuple(seeds)
        self._batch_size = batch_size
        self._steps = steps

    def __len__(self) -> int:
        return self._steps

    def __getitem__(self, step: Any) -> HorizonIndex:
        """Index batch of one step, ``[Q, B]`` each."""
        drawn = [
            self._sampler.draw(
                self._table,
                step_generator(self._table, self._sampler, seed=seed, step=int(step)),
                self._batch_size,
            )
            for seed in self._seeds
        ]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *drawn)


def make_feed(
    source: IndexSource,
    config: FeedConfig,
    *,
    updates_per_call: int,
    gather_from: RowTable | None,
    sampler: HorizonSampler,
) -> grain.DatasetIterator:
    """Builds the iterator the loop reads from.

    Args:
        source: Index batches by step.
        config: Threads and prefetching.
        updates_per_call: M.
        gather_from: The table to look rows up in on the host; None leaves that to
            the device.
        sampler: Whose ``gather`` looks rows up.

    Returns:
        An iterator over ``HorizonBatch`` (or ``HorizonIndex``) with leading axes
        ``[M, Q]``; its state is the number of the next call.
    """
    calls = grain.MapDataset.source(source).batch(updates_per_call, drop_remainder=True)
    if gather_from is not None:
        observations, actions = gather_from.observations, gather_from.actions
        calls = calls.map(lambda index: sampler.gather(observations, actions, index))
    return iter(
        calls.to_iter_dataset(
            grain.ReadOptions(
                num_threads=config.threads,
                prefetch_buffer_size=config.prefetch_calls,
            )
        )
    )


def gather_on_device(config: FeedConfig, table: RowTable) -> bool:
    """Decides where rows are looked up.

    Args:
        config: Of the feed.
        table: Rows of one task.

    Returns:
        True for the device: if asked for, or under ``"auto"`` on an accelerator
        that has room. A CPU's own memory is the host's: nothing would be saved.
    """
    if config.gather != "auto":
        return config.gather == "device"
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return False
    limit = (device.memory_stats() or {}).get("bytes_limit", 0)
    needed = table.observations.nbytes + table.actions.nbytes
    return bool(needed <= config.device_share * limit)
