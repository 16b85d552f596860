"""Evaluates the checkpoints that a run has.

Composition only: which checkpoints, in which tasks.
"""

import contextlib
from collections.abc import Sequence
from typing import Literal

from rich.console import Console

from pipeline.store.errors import DataFormatError
from trainer.evaluation.evaluator import episode_bars, make_evaluators
from trainer.evaluation.rollouts import DEFAULT_ENVIRONMENTS
from trainer.evaluation.watch import restore_unless_deleted
from trainer.runs.checkpoints import Checkpoints
from trainer.runs.evaluations import Evaluation
from trainer.runs.folder import FolderLike, open_folder
from trainer.runs.run import read_run

Steps = Sequence[int] | Literal["latest", "all"]


def evaluate_run(
    folder: FolderLike,
    *,
    episodes: int,
    steps: Steps = "latest",
    tasks: Sequence[int] = (),
    evaluation_seed: int = 0,
    environments: int = DEFAULT_ENVIRONMENTS,
    workers: int | None = None,
    console: Console | None = None,
) -> list[Evaluation]:
    """Evaluates checkpoints of a run, all of its training seeds.

    Each result is added to ``RUN/evaluations.jsonl`` as soon as it is there.

    Args:
        folder: RUN.
        episodes: Of each checkpoint and training seed; exactly these are counted.
        steps: Checkpoints: ``"latest"``, ``"all"``, or their steps.
        tasks: Task numbers to act in, by default the one trained for. What a result
            in another one means: see ``evaluator.task_environment``.
        evaluation_seed: Fixes how every episode starts and what acting draws: the same
            for all checkpoints and training seeds, so they face equal episodes.
        environments: Acted in at once; the size of the policy's batch.
        workers: Processes; by default one for each usable core. Results do not depend
            on it.
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
    folder = open_folder(folder)
    run = read_run(folder)
    seeds = run.config.trainer.seed_range
    evaluators = make_evaluators(
        folder,
        run,
        tasks,
        episodes=episodes,
        evaluation_seed=evaluation_seed,
        environments=environments,
        workers=workers,
        console=console,
    )
    evaluations: list[Evaluation] = []
    with contextlib.closing(Checkpoints(folder)) as checkpoints:
        chosen = choose_steps(checkpoints, steps)
    for evaluator in evaluators:
        with evaluator, episode_bars(console) as progress:
            for step in chosen:
                params = restore_unless_deleted(folder, step, run, console)
                if params is not None:
                    evaluations += evaluator.evaluate(step, params, seeds, progress)
    return evaluations


def choose_steps(checkpoints: Checkpoints, steps: Steps) -> list[int]:
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
