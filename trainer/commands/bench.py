"""``bench``: the speed of this machine."""

from dataclasses import dataclass
from typing import Annotated

import tyro

from pipeline.output import Output
from trainer.commands.bench_feed import BenchFeed
from trainer.commands.bench_step import BenchStep


@dataclass(frozen=True)
class Bench:
    """Measure the feed, or updates on random data, on this machine.

    Attributes:
        measurement: Measurement to make.
    """

    measurement: (
        Annotated[BenchFeed, tyro.conf.subcommand("feed")]
        | Annotated[BenchStep, tyro.conf.subcommand("step")]
    )

    def execute(self, output: Output) -> int:
        """Makes the measurement."""
        return self.measurement.execute(output)
