"""Evaluates the checkpoints that a run has.

Composition only: which checkpoints, in which tasks.
"""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from rich.console import Console
from rich.progress import Progress

from pipeline.domains.datasets import TaskEnvironment
from pipeline.output import say
from pipeline.store.errors import DataFormatError
from trainer.evaluation.evaluator import Evaluator, episode_bars, make_evaluators
from trainer.evaluation.watch import restore_unless_deleted
from trainer.runs.checkpoints import CheckpointReader
from trainer.runs.evaluations import (
    Evaluation,
    EvaluationSettings,
    Key,
    append_evaluation,
    read_evaluations,
)
from trainer.runs.folder import RunFolder
from trainer.runs.run import Run, read_run

Steps = Sequence[int] | Literal["latest", "all"]


def evaluate_run(
    folder: RunFolder,
    settings: EvaluationSettings,
    *,
    steps: Steps = "latest",
    tasks: Sequence[int] = (),
    environment: TaskEnvironment | None = None,
    again: bool = False,
    console: Console | None = None,
) -> list[Evaluation]:
    """Evaluates checkpoints of a run, all of its training seeds.

    Each result is added to ``RUN/evaluations.jsonl`` as soon as it is there. What that
    holds already, with as many episodes and the same seed, is not played again.

    Args:
        folder: RUN.
        settings: How each is evaluated.
        steps: Checkpoints: ``"latest"``, ``"all"``, or their steps.
        tasks: Task numbers to act in, by default the one trained for. What a result
            in another one means: see ``evaluator.task_environment``.
        environment: To act in, where that is not what the run says.
        again: Whether to play what was played before.
        console: Where progress, results and warnings are shown; None shows nothing.

    Returns:
        One evaluation for each task, checkpoint and training seed, in that order,
        those of before among them.

    Raises:
        DataFormatError: If the folder is no run's, has no such checkpoint, or the
            environment does not fit the data.
        EvaluationError: If the environment or its process fails.
        UsageError: If a number is out of range.
    """
    console = Console(quiet=True) if console is None else console
    run = read_run(folder)
    seeds = run.config.trainer.seed_range
    evaluators = make_evaluators(
        folder,
        run,
        tasks,
        settings=settings,
        environment=environment,
        console=console,
    )
    evaluations: list[Evaluation] = []
    with CheckpointReader(folder) as checkpoints:
        chosen = choose_steps(checkpoints, steps)
    recorded = {} if again else {each.key: each for each in read_evaluations(folder)}
    for evaluator in evaluators:
        missing = {
            step: [seed for seed in seeds if evaluator.key(step, seed) not in recorded]
            for step in chosen
        }
        there = [step for step in chosen if not missing[step]]
        if there:
            steps_there = ", ".join(f"{step:,}" for step in there)
            say(
                console,
                f"evaluated already: step {steps_there}; --again plays it anew",
            )
        made: dict[Key, Evaluation] = {}
        if any(missing.values()):  # Environments take seconds to start.
            with evaluator, episode_bars(console) as progress:
                for step in chosen:
                    made |= _play(folder, run, evaluator, step, missing[step], progress)
        keys = [evaluator.key(step, seed) for step in chosen for seed in seeds]
        played = recorded | made
        evaluations += [
            _score_anew(folder, evaluator, played[key]) for key in keys if key in played
        ]
    return evaluations


def _score_anew(
    folder: RunFolder, evaluator: Evaluator, evaluation: Evaluation
) -> Evaluation:
    """An evaluation by the reference scores asked for: nothing is played for them."""
    reference = evaluator.reference_scores
    if reference is None or evaluation.reference_scores == reference:
        return evaluation
    scored = dataclasses.replace(evaluation, reference_scores=reference)
    append_evaluation(folder, scored)
    return scored


def _play(
    folder: RunFolder,
    run: Run,
    evaluator: Evaluator,
    step: int,
    seeds: Sequence[int],
    progress: Progress,
) -> dict[Key, Evaluation]:
    """Plays training seeds of a checkpoint, unless its trainer has deleted it."""
    if not seeds:
        return {}
    params = restore_unless_deleted(folder, step, run, progress.console)
    if params is None:
        return {}
    played = evaluator.evaluate(step, params, seeds, progress)
    return {each.key: each for each in played}


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
