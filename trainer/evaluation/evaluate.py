"""Evaluates the checkpoints that a run has.

Composition only: which checkpoints, in which tasks.
"""

from collections.abc import Sequence
from typing import Literal

from rich.console import Console

from pipeline.store.errors import DataFormatError
from trainer.evaluation.evaluator import episode_bars, make_evaluators
from trainer.evaluation.watch import restore_unless_deleted
from trainer.runs.checkpoints import CheckpointReader
from trainer.runs.evaluations import Evaluation, EvaluationSettings
from trainer.runs.folder import RunFolder
from trainer.runs.run import read_run

Steps = Sequence[int] | Literal["latest", "all"]


def evaluate_run(
    folder: RunFolder,
    settings: EvaluationSettings,
    *,
    steps: Steps = "latest",
    tasks: Sequence[int] = (),
    console: Console | None = None,
) -> list[Evaluation]:
    """Evaluates checkpoints of a run, all of its training seeds.

    Each result is added to ``RUN/evaluations.jsonl`` as soon as it is there.

    Args:
        folder: RUN.
        settings: How each is evaluated.
        steps: Checkpoints: ``"latest"``, ``"all"``, or their steps.
        tasks: Task numbers to act in, by default the one trained for. What a result
            in another one means: see ``evaluator.task_environment``.
        console: Where progress, results and warnings are shown; None shows nothing.

    Returns:
        One evaluation for each task, checkpoint and training seed, in that order.

    Raises:
        DataFormatError: If the folder is no run's, has no such checkpoint, or the
            environment does not fit the data.
        EvaluationError: If the environment or its process fails.
        UsageError: If a number is out of range.
    """
    console = Console(quiet=True) if console is None else console
    run = read_run(folder)
    seeds = run.config.trainer.seed_range
    evaluators = make_evaluators(folder, run, tasks, settings=settings, console=console)
    evaluations: list[Evaluation] = []
    with CheckpointReader(folder) as checkpoints:
        chosen = choose_steps(checkpoints, steps)
    for evaluator in evaluators:
        with evaluator, episode_bars(console) as progress:
            for step in chosen:
                params = restore_unless_deleted(folder, step, run, console)
                if params is not None:
                    evaluations += evaluator.evaluate(step, params, seeds, progress)
    return evaluations


def choose_steps(checkpoints: CheckpointReader, steps: Steps) -> list[int]:
    """Finds the checkpoints asked for.

    Args:
        checkpoints: Of a run.
        steps: ``"latest"``, ``"all"``, or their steps.

    Returns:
        Their steps, ascending.

    Raises:
        DataFormatError: If one is not there.
    """
    available = checkpoints.steps()
    if not available:
        raise DataFormatError(
            f"{checkpoints.folder}: expected a finished checkpoint, found none; wait "
            "for the first one, or set a smaller trainer.checkpoint_every"
        )
    if steps == "latest":
        return available[-1:]
    if steps == "all":
        return available
    chosen = sorted({int(step) for step in steps})
    missing = [step for step in chosen if step not in available]
    if missing or not chosen:
        raise DataFormatError(
            f"{checkpoints.folder}: expected steps of {available}, got "
            f"{missing or 'none'}; choose among those"
        )
    return chosen
