"""Evaluation of a run as one function."""

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
    candidates: int | None = None,
    environments: int = 8,
    workers: int | None = None,
    reference_scores: tuple[float, float] | None = None,
    again: bool = False,
    output: Output | None = None,
) -> "list[Evaluation]":
    """Plays episodes with the policies of a run's checkpoints.

    Results are appended to the run's ``evaluations.jsonl``, which ``report`` reads. A
    later call leaves out what the file already has.

    The environments live in spawned processes, which import the main script again. A
    script must therefore call this function below ``if __name__ == "__main__":``.

    Args:
        run: Folder of the run, a local path or ``gs://bucket/path``.
        episodes: Number of episodes for each checkpoint and training seed.
        seed: Seed of the start states and of the policy's noise, 0 to 2**32 - 1. The
            same seed gives the same results.
        steps: Steps of the checkpoints to evaluate, or ``"latest"`` or ``"all"``.
        tasks: Numbers of the tasks to act in; empty for the task trained for.
        environment: Environment to act in if it is not the run's: ``"ID"``, or
            ``"MODULE:ID"`` to import the module that registers it.
        candidates: Actions that are drawn at a step, of which the best is executed;
            None for as many as the run's configuration says.
        environments: Number of environments acted in at once, which is the size of the
            policy's batch.
        workers: Number of processes; None starts one for each core. Results do not
            depend on it.
        reference_scores: Returns that count as a normalised score of 0 and of 100; None
            takes the published ones of the data set, if there are any.
        again: Whether to play again what the file already has.
        output: Consoles for progress and warnings; None shows nothing.

    Returns:
        One result for each task, checkpoint and training seed, in that order, with the
        successes (None if the environment reports none), returns and lengths of the
        episodes.

    Raises:
        DataFormatError: If the folder holds no run or no such checkpoint, or the
            environment does not fit the data.
        EvaluationError: If the environment or one of its processes fails.
        UsageError: If a number is out of range, or the agent draws no candidates.
    """
    # Imported here, so that importing the library starts neither JAX nor a simulator.
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
        candidates=candidates,
        again=again,
        # A library prints nothing that its caller has not asked for.
        console=(Output.silent() if output is None else output).progress,
    )
