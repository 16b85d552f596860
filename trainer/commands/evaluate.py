"""``evaluate``: roll out a run's checkpoints."""

from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console


@dataclass(frozen=True)
class Evaluate:
    """Roll out a run's checkpoints in its environment.

    With ``--watch``, do so while it is trained: each checkpoint once it is there, until
    the run's last step. Repeated, it goes on where it was.

    Attributes:
        run: Folder of the run, a local path or gs://bucket/path.
        episodes: Episodes of each checkpoint and training seed.
        seed: Of the evaluation: start states and the policy's noise.
        steps: Checkpoints to evaluate, by step; the latest if none is given, or with
            --watch every one.
        all_steps: Evaluate every checkpoint there is.
        tasks: Task numbers to act in; the one trained for if none is given. The policy
            is shown no goal: in another task it still does what pays in its own, and
            its successes there are accidents, recorded under that task's number.
        environments: Environments acted in at once.
        workers: Environment processes; one for each core if not given. Results do
            not depend on it.
        watch: Wait for checkpoints to come, and for the run itself.
        poll: Seconds between two looks, with --watch.
        timeout: Minutes without a new checkpoint until --watch gives up.
    """

    run: Annotated[str, tyro.conf.Positional]
    episodes: int = 50
    seed: int = 0
    steps: tuple[int, ...] = ()
    all_steps: bool = False
    tasks: tuple[int, ...] = ()
    environments: int = 8
    workers: int | None = None
    watch: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    poll: float = 10.0
    timeout: float = 60.0

    def execute(self, console: Console) -> int:
        """Runs the command; its exit code is returned."""
        from trainer.evaluation.evaluate import evaluate_run
        from trainer.evaluation.watch import Patience, watch_run

        if self.watch:
            watch_run(
                self.run,
                episodes=self.episodes,
                steps=self.steps or "all",
                tasks=self.tasks,
                evaluation_seed=self.seed,
                environments=self.environments,
                workers=self.workers,
                patience=Patience(poll_s=self.poll, timeout_s=60 * self.timeout),
                console=console,
            )
            return 0
        evaluate_run(
            self.run,
            episodes=self.episodes,
            steps="all" if self.all_steps else self.steps or "latest",
            tasks=self.tasks,
            evaluation_seed=self.seed,
            environments=self.environments,
            workers=self.workers,
            console=console,
        )
        return 0
