"""``describe``: what a configuration comes to."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console


@dataclass(frozen=True)
class Describe:
    """Print a configuration as resolved for a task.

    Attributes:
        config: Configuration file.
        task: Task number, 1 to 5.
    """

    config: Annotated[Path, tyro.conf.Positional]
    task: int = 1

    def execute(self, console: Console) -> int:
        """Runs the command; its exit code is returned."""
        from trainer import config as configuration

        config = configuration.load(self.config, task=self.task)
        Console().print_json(json.dumps(configuration.encode(config)))
        return 0
