"""``evaluate``: rollouts of a run's checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from pipeline.output import Output, show
from pipeline.store.errors import UsageError
from trainer.commands.arguments import RunPath, read_environment

if TYPE_CHECKING:
    from rich.table import Table

    from trainer.runs.evaluations import Evaluation


@dataclass(frozen=True)
class Evaluate:
    """Roll out the policies of a run's checkpoints in its environment.

    With --watch, evaluate a run while it is trained: every checkpoint as soon as it
    is written, up to the run's last step. A repeated command leaves out what has been
    evaluated.

    Attributes:
        run: Folder of the run, a local path or gs://bucket/path.
        episodes: Episodes for each checkpoint and training seed.
        seed: Seed of the start states and of the policy's noise.
        steps: Steps of the checkpoints to evaluate; the latest if none is given, or
            with --watch all of them.
        all_steps: Evaluate every checkpoint of the run.
        tasks: Task numbers to act in; the one trained for if none is given. A policy
            does not observe the goal: in another task it still pursues its own, and
            its successes are accidents. They are recorded under that task's number.
        environment: Environment to act in if it is not the run's: ID, or MODULE:ID to
            import the module that registers it.
        environment_arguments: Arguments of the environment, such as size=3.
        candidates: Actions drawn at a step, of which the best is executed; as many as
            in the run's configuration if not given. Only the agent's acting changes.
        reference_scores: Returns LOW and HIGH that count as a normalised score of 0
            and of 100, as in D4RL; known for D4RL's data sets.
        environments: Number of environments acted in at once.
        workers: Number of processes; one for each core if not given. Results do not
            depend on it.
        again: Play again what has been evaluated with as many episodes and candidates
            and the same seed. Without this option, and always with --watch, it is
            left out.
        watch: Wait for checkpoints, and for the run itself if it has not started.
        poll: Seconds between two looks at the folder, with --watch; 10 if not given.
        timeout: Minutes without a new checkpoint after which --watch gives up; 60 if
            not given.
    """

    run: RunPath
    episodes: int = 50
    seed: int = 0
    steps: tuple[int, ...] = ()
    all_steps: bool = False
    tasks: tuple[int, ...] = ()
    environment: str | None = None
    environment_arguments: tuple[str, ...] = ()
    candidates: int | None = None
    reference_scores: tuple[float, float] | None = None
    environments: int = 8
    workers: int | None = None
    again: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    watch: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    poll: float | None = None
    timeout: float | None = None

    def execute(self, output: Output) -> int:
        """Plays the episodes, then prints a table of the results."""
        from pipeline.domains.reference_scores import check_reference_scores
        from trainer.evaluation.evaluate import evaluate_run
        from trainer.evaluation.watch import Patience, watch_run
        from trainer.runs.evaluations import EvaluationSettings
        from trainer.runs.folder import RunFolder

        self._check_options()
        folder = RunFolder.open(self.run)
        environment = read_environment(self.environment, self.environment_arguments)
        settings = EvaluationSettings(
            self.episodes,
            self.seed,
            self.environments,
            self.workers,
            self.reference_scores and check_reference_scores(*self.reference_scores),
        )
        # A run that is being trained has no latest checkpoint yet, so --watch evaluates
        # all of them by default.
        if self.watch:
            evaluations = watch_run(
                folder,
                settings,
                steps=self.steps or "all",
                tasks=self.tasks,
                environment=environment,
                candidates=self.candidates,
                patience=Patience(
                    poll_s=10.0 if self.poll is None else self.poll,
                    timeout_s=60 * (60.0 if self.timeout is None else self.timeout),
                ),
                console=output.progress,
            )
        else:
            evaluations = evaluate_run(
                folder,
                settings,
                steps="all" if self.all_steps else self.steps or "latest",
                tasks=self.tasks,
                environment=environment,
                candidates=self.candidates,
                again=self.again,
                console=output.progress,
            )
        if evaluations:
            show(output.results, _make_table(evaluations))
        return 0

    def _check_options(self) -> None:
        """Refuses options that would be ignored beside or without others."""
        if self.all_steps and self.steps:
            raise UsageError(
                "--all-steps: expected no --steps beside it, got "
                f"{' '.join(map(str, self.steps))}; leave one of them out"
            )
        waits = {"poll": self.poll, "timeout": self.timeout}
        if not self.watch and (given := [n for n, v in waits.items() if v is not None]):
            raise UsageError(
                f"--{given[0]}: expected --watch beside it, which waits for "
                "checkpoints; add it, or leave this option out"
            )


def _make_table(evaluations: "Sequence[Evaluation]") -> "Table":
    """Makes a table with a row for each checkpoint, training seed and task."""
    from rich.table import Table

    from trainer.runs.returns import show_interval, show_score
    from trainer.runs.success_rates import Score

    # Some environments report rewards only, and only data sets with reference scores
    # have a normalised score. A column without content would narrow all others.
    judged = any(result.successes is not None for result in evaluations)
    scored = any(result.reference_scores is not None for result in evaluations)
    table = Table(
        *("step", "seed", "task"),
        *(["success"] if judged else []),
        *("return", "steps"),
        *(["normalised score"] if scored else []),
        caption="95 % intervals in parentheses",
    )
    for result in evaluations:
        returns = result.score
        success = "not reported"
        if result.successes is not None:
            score = Score.of(result.successes)
            low, high = score.interval
            success = (
                f"{score.successes} of {score.episodes}, {100 * score.rate:.0f} % "
                f"({100 * low:.0f} to {100 * high:.0f} %)"
            )
        table.add_row(
            f"{result.step:,}",
            f"{result.seed}",
            f"{result.task}",
            *([success] if judged else []),
            f"{returns.mean:.2f} ({show_interval(returns.interval, 'n/a', digits=2)})",
            f"{result.mean_length:.0f}",
            *([show_score(returns, "n/a")] if scored else []),
        )
    return table
