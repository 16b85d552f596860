"""``evaluate``: roll out a run's checkpoints."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console


@dataclass(frozen=True)
class Evaluate:
    """Roll out a run's checkpoints in its environment.

    Attributes:
        run: Folder of the run.
        episodes: Episodes of each checkpoint and training seed.
        seed: Of the evaluation: start states and the policy's noise.
        steps: Checkpoints to evaluate, by step; the latest if none is given.
        all_steps: Evaluate every checkpoint there is.
        environments: Environments acted in at once.
        workers: Environment processes; one for each core if not given. Results do
            not depend on it.
    """

    run: Annotated[Path, tyro.conf.Positional]
    episodes: int = 50
    seed: int = 0
    steps: tuple[int, ...] = ()
    all_steps: bool = False
    environments: int = 8
    workers: int | None = None

    def execute(self, console: Console) -> int:
        """Runs the command; its exit code is returned."""
        from trainer.evaluation.evaluate import evaluate_run

        evaluate_run(
            self.run,
            episodes=self.episodes,
            steps="all" if self.all_steps else self.steps or "latest",
            evaluation_seed=self.seed,
            environments=self.environments,
            workers=self.workers,
            console=console,
        )
        return 0
