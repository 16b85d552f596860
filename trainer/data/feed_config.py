"""Settings of the feed; this module needs neither JAX nor Grain.

A launcher reads and checks them on machines where neither is installed.
"""

import math
from dataclasses import dataclass
from typing import Literal

from trainer.errors import ConfigError

GatherWhere = Literal["auto", "host", "device"]


@dataclass(frozen=True)
class FeedConfig:
    """Settings of how batches are prepared and reach the devices.

    Only ``memory_limit_bytes``, ``block_rows`` and ``reuse`` change the contents of
    batches, and only where the data exceed the limit.

    Attributes:
        gather: Place where rows are looked up: ``"host"``, ``"device"`` (the table
            lies in the device's memory and only row numbers are sent), or ``"auto"``:
            on an accelerator whose memory the table fits, else on the host.
        threads: Threads that prepare batches; sampling and gathering release the GIL
            in part.
        prefetch_calls: Calls of the trainer whose batches are prepared ahead.
        device_share: Largest share of a device's memory for the table under
            ``"auto"``.
        memory_limit_bytes: Memory of this host for rows. Larger data are trained on
            through a sliding window of resident blocks; None keeps all of them in
            memory.
        block_rows: Rows of a block of that window.
        reuse: Number of times that a row is drawn, on average, before its block leaves
            the window.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    gather: GatherWhere = "auto"
    threads: int = 2
    prefetch_calls: int = 4
    # The other half is for the state, batches and activations.
    device_share: float = 0.5
    memory_limit_bytes: int | None = None
    block_rows: int = 65_536
    reuse: float = 8.0

    def __post_init__(self) -> None:
        if self.threads < 1 or self.prefetch_calls < 1:
            raise ConfigError(
                "feed.threads and feed.prefetch_calls: expected at least 1 each, got "
                f"{self.threads} and {self.prefetch_calls}; raise the smaller one"
            )
        # Comparisons with NaN are False, so that these refuse it as well.
        if self.block_rows < 1 or not 0 < self.reuse < math.inf:
            raise ConfigError(
                "feed.block_rows and feed.reuse: expected numbers above 0, got "
                f"{self.block_rows} and {self.reuse}; set others"
            )
        if not 0 <= self.device_share <= 1:
            raise ConfigError(
                "feed.device_share: expected a share in [0, 1], got "
                f"{self.device_share}; set another, or feed.gather to where rows are "
                "to be looked up"
            )
