"""Evaluation as one call."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pipeline.output import Output

if TYPE_CHECKING:
    from pipeline.domains.datasets import TaskEnvironment
    from trainer.runs.evaluations import Evaluation


def evaluate(
    run: str,
    *,
    episodes: int = 50,
    seed: int = 0,
    steps: Sequence[int] | Literal["latest", "all"] = "latest",
    tasks: Sequence[int] = (),
    environment: "TaskEnvironment | str | None" = None,
    environments: int = 8,
    workers: int | None = None,
    reference_scores: tuple[float, float] | None = None,
    again: bool = False,
    output: Output | None = None,
) -> "list[Evaluation]":
    """Plays episodes of a run's checkpoints in its environment.

    Results are added to the run's ``evaluations.jsonl``, which ``report`` reads, and
    are not played again. The environments live in processes that are spawned: a script
    must call this below ``if __name__ == "__main__":``.

    Args:
        run: Folder of the run, a local path or ``gs://bucket/path``.
        episodes: Of each checkpoint and training seed.
        seed: Of start states and of what acting draws, 0 to 2**32 - 1. Results are the
            same for the same seed.
        steps: Checkpoints, by their updates.
        tasks: Numbers of the tasks to act in; the one trained for by default.
        environment: To act in, where that is not the run's: ``"ID"``, or
            ``"MODULE:ID"`` to have the module imported that registers it.
        environments: Acted in at once; the size of the policy's batch.
        workers: Processes; one for each core by default. Results do not depend on it.
        reference_scores: Returns that count as a normalised score of 0 and of 100; the
            published ones of the data set by default, if there are any.
        again: Whether to play what was played before.
        output: Where progress and warnings are shown; nowhere if None.

    Returns:
        For each task, checkpoint and training seed, in that order: successes (None if
        the environment reports none), returns and lengths of the episodes.

    Raises:
        DataFormatError: If the folder holds no run or no such checkpoint, or the
            environment does not fit the data.
        EvaluationError: If the environment or one of the processes fails.
        UsageError: If a number is out of range.
    """
    from pipeline.domains.environments import parse_environment
    from pipeline.domains.reference_scores import check_reference_scores
    from trainer.evaluation.evaluate import evaluate_run
    from trainer.runs.evaluations import EvaluationSettings
    from trainer.runs.folder import RunFolder

    if isinstance(environment, str):
        environment = parse_environment(environment)
    return evaluate_run(
        RunFolder.open(run),
        EvaluationSettings(
            episodes,
            seed,
            environments,
            workers,
            reference_scores and check_reference_scores(*reference_scores),
        ),
        steps=steps,
        tasks=tasks,
        environment=environment,
        again=again,
        console=(Output.silent() if output is None else output).progress,
    )
