"""The evaluation of the checkpoints that a run has: which ones, and in which tasks."""

import dataclasses
from collections.abc import Sequence
from typing import Literal

from rich.console import Console
from rich.progress import Progress

from pipeline.domains.datasets import TaskEnvironment
from pipeline.output import say
from pipeline.store.errors import DataFormatError
from trainer.evaluation.evaluator import Evaluator, make_episode_bars, make_evaluators
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
    candidates: int | None = None,
    again: bool = False,
    console: Console | None = None,
) -> list[Evaluation]:
    """Evaluates checkpoints of a run, with all of its training seeds.

    Each result is added to ``RUN/evaluations.jsonl`` at once. Evaluations that the file
    holds already, with as many episodes and candidates and the same seed, are not
    played again.

    Args:
        folder: Folder of the run, RUN.
        settings: Settings of the evaluation.
        steps: Checkpoints to evaluate: ``"latest"``, ``"all"``, or their steps.
        tasks: Task numbers to act in; by default the task that was trained for. See
            ``evaluator.find_task_environment`` for the meaning of other tasks.
        environment: Environment to act in; None for that of the run.
        candidates: Actions that are drawn at a step, of which the best is executed;
            None for as many as the run's configuration says.
        again: Whether to play again what is recorded already.
        console: Console for progress, results and warnings; None shows nothing.

    Returns:
        One evaluation for each task, checkpoint and training seed, in that order,
        including those that were recorded before.

    Raises:
        DataFormatError: If the folder holds no run, has no such checkpoint, or the
            environment does not fit the data.
        EvaluationError: If the environment or its process fails.
        UsageError: If a number is out of range, or the agent draws no candidates.
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
        candidates=candidates,
        console=console,
    )
    evaluations: list[Evaluation] = []
    with CheckpointReader(folder) as checkpoints:
        chosen = choose_steps(checkpoints, steps)
    recorded: dict[Key, Evaluation] = {}
    if not again:
        recorded = {known.key: known for known in read_evaluations(folder)}
    for evaluator in evaluators:
        missing = {
            step: [seed for seed in seeds if evaluator.key(step, seed) not in recorded]
            for step in chosen
        }
        complete = [step for step in chosen if not missing[step]]
        if complete:
            listed = ", ".join(f"{step:,}" for step in complete)
            say(console, f"evaluated already: step {listed}; --again plays it anew")
        made: dict[Key, Evaluation] = {}
        # Entered only if there is something to play: environments take seconds to
        # start.
        if any(missing.values()):
            with evaluator, make_episode_bars(console) as progress:
                for step in chosen:
                    made |= _play(folder, run, evaluator, step, missing[step], progress)
        # A checkpoint that its trainer has deleted meanwhile has no evaluation.
        keys = [evaluator.key(step, seed) for step in chosen for seed in seeds]
        played = recorded | made
        evaluations += [
            _update_score(folder, evaluator, played[key])
            for key in keys
            if key in played
        ]
    return evaluations


def _update_score(
    folder: RunFolder, evaluator: Evaluator, evaluation: Evaluation
) -> Evaluation:
    """Records an evaluation with other reference scores, if others are asked for."""
    # Scores follow from the recorded returns, so nothing is played for them.
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
    """Evaluates training seeds of a checkpoint, unless its trainer has deleted it."""
    if not seeds:
        return {}
    params = restore_unless_deleted(folder, step, run, progress.console)
    if params is None:
        return {}
    played = evaluator.evaluate(step, params, seeds, progress)
    return {evaluation.key: evaluation for evaluation in played}


def choose_steps(checkpoints: CheckpointReader, steps: Steps) -> list[int]:
    """Chooses the checkpoints to evaluate.

    Args:
        checkpoints: Checkpoints of a run.
        steps: ``"latest"``, ``"all"``, or steps.

    Returns:
        The steps, ascending.

    Raises:
        DataFormatError: If a step has no checkpoint.
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
