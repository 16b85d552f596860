"""How batches reach the devices, as a run is told; it needs neither JAX nor Grain."""

from dataclasses import dataclass
from typing import Literal

from trainer.errors import ConfigError

GatherWhere = Literal["auto", "host", "device"]


@dataclass(frozen=True)
class FeedConfig:
    """How batches reach the devices.

    Only ``memory_limit_bytes``, ``block_rows`` and ``reuse`` change what is in them,
    and only where the data exceed the limit.

    Attributes:
        gather: Where rows are looked up: ``"host"``, ``"device"`` (the table lives
            there and only row numbers travel), or ``"auto"``, on an accelerator that
            the table fits.
        threads: Reading threads. Sampling and gathering release the GIL in part.
        prefetch_calls: Calls of the trainer prepared ahead.
        device_share: Largest share of a device's memory for the table under
            ``"auto"``.
        memory_limit_bytes: Memory of this host for rows. Data that exceed it are
            trained on through a sliding window of resident blocks; None has them all
            in memory.
        block_rows: Rows of a block of that window.
        reuse: How often a row is drawn, on average, before its block leaves.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    gather: GatherWhere = "auto"
    threads: int = 2
    prefetch_calls: int = 4
    device_share: float = 0.5
    memory_limit_bytes: int | None = None
    block_rows: int = 65_536
    reuse: float = 8.0

    def __post_init__(self) -> None:
        if self.threads < 1 or self.prefetch_calls < 1:
            raise ConfigError(
                "feed.threads and feed.prefetch_calls: expected at least 1, got "
                f"{self.threads} and {self.prefetch_calls}"
            )
        if self.block_rows < 1 or self.reuse <= 0:
            raise ConfigError(
                "feed.block_rows and feed.reuse: expected above 0, got "
                f"{self.block_rows} and {self.reuse}"
            )
