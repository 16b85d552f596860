"""``launch``: starts a stage on machines of a cloud provider."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from infra.commands.evaluate import Evaluate
from infra.commands.pipeline import Pipeline
from infra.commands.sweep import Sweep
from infra.commands.train import Train
from pipeline.output import Output


@dataclass(frozen=True)
class Launch:
    """Starts a stage on machines of a cloud provider.

    With --dry-run, it prints the submission to standard output and what that would take
    to standard error, and stops.

    Attributes:
        stage: Stage to start.
    """

    stage: (
        Annotated[Pipeline, tyro.conf.subcommand("pipeline")]
        | Annotated[Train, tyro.conf.subcommand("train")]
        | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
        | Annotated[Sweep, tyro.conf.subcommand("sweep")]
    )

    def execute_with(self, output: Output, more: Sequence[str]) -> int:
        """Starts the stage."""
        return self.stage.execute_with(output, more)
