"""``evaluate``: roll out a run's checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from pipeline.output import Output, show
from trainer.commands.arguments import read_environment

if TYPE_CHECKING:
    from rich.table import Table

    from trainer.runs.evaluations import Evaluation


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
        environment: Environment to act in, where that is not the run's: ID, or
            MODULE:ID to have the module imported that registers it.
        environment_arguments: Arguments of the environment, such as size=3.
        reference_scores: Returns LOW and HIGH that count as a normalised score of 0
            and of 100, as D4RL has them; known for its own data sets.
        environments: Environments acted in at once.
        workers: Environment processes; one for each core if not given. Results do
            not depend on it.
        again: Play what was played before, with as many episodes and the same seed; it
            is left out otherwise, and by --watch always.
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
    environment: str | None = None
    environment_arguments: tuple[str, ...] = ()
    reference_scores: tuple[float, float] | None = None
    environments: int = 8
    workers: int | None = None
    again: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    watch: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    poll: float = 10.0
    timeout: float = 60.0

    def execute(self, output: Output) -> int:
        """Plays the episodes, then prints a table of what came of them."""
        from pipeline.domains.reference_scores import check_reference_scores
        from trainer.evaluation.evaluate import evaluate_run
        from trainer.evaluation.watch import Patience, watch_run
        from trainer.runs.evaluations import EvaluationSettings
        from trainer.runs.folder import RunFolder

        folder = RunFolder.open(self.run)
        environment = read_environment(self.environment, self.environment_arguments)
        settings = EvaluationSettings(
            self.episodes,
            self.seed,
            self.environments,
            self.workers,
            self.reference_scores and check_reference_scores(*self.reference_scores),
        )
        if self.watch:
            evaluations = watch_run(
                folder,
                settings,
                steps=self.steps or "all",
                tasks=self.tasks,
                environment=environment,
                patience=Patience(poll_s=self.poll, timeout_s=60 * self.timeout),
                console=output.progress,
            )
        else:
            evaluations = evaluate_run(
                folder,
                settings,
                steps="all" if self.all_steps else self.steps or "latest",
                tasks=self.tasks,
                environment=environment,
                again=self.again,
                console=output.progress,
            )
        if evaluations:
            show(output.results, _make_table(evaluations))
        return 0


def _make_table(evaluations: "Sequence[Evaluation]") -> "Table":
    """A line for each checkpoint, training seed and task that was evaluated."""
    from rich.table import Table

    from trainer.runs.returns import show_interval, show_score
    from trainer.runs.success_rates import Score

    headings = ["step", "seed", "task", "success", "95 % interval"]
    headings += ["return", "95 % interval", "steps"]
    scored = any(each.reference_scores is not None for each in evaluations)
    table = Table(*headings, *(["normalised score"] if scored else []))
    for each in evaluations:
        returns = each.score
        success, interval = "not reported", "n/a"
        if each.successes is not None:
            score = Score.of(each.successes)
            low, high = score.interval
            success = f"{score.successes} of {score.episodes}, {100 * score.rate:.0f} %"
            interval = f"{100 * low:.0f} to {100 * high:.0f} %"
        table.add_row(
            f"{each.step:,}",
            f"{each.seed}",
            f"{each.task}",
            success,
            interval,
            f"{returns.mean:.2f}",
            show_interval(returns.interval, "n/a", digits=2),
            f"{each.mean_length:.0f}",
            *([show_score(returns, "n/a")] if scored else []),
        )
    return table
