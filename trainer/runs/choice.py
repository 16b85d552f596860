"""The choice of a checkpoint, and of one of the seeds that were trained together."""

from pipeline.store.errors import DataFormatError
from trainer.runs.checkpoints import CheckpointReader


def choose_step(checkpoints: CheckpointReader, step: int | None) -> int:
    """Chooses a checkpoint.

    Args:
        checkpoints: Checkpoints of a run.
        step: Step of the checkpoint; None for the last one.

    Returns:
        A committed step.

    Raises:
        DataFormatError: If the run has no such checkpoint.
    """
    steps = checkpoints.steps()
    if not steps:
        raise DataFormatError(
            f"{checkpoints.folder}: expected a finished checkpoint, found none; wait "
            "until training has reached its first"
        )
    if step is not None and step not in steps:
        raise DataFormatError(
            f"{checkpoints.folder}: expected step to be one of "
            f"{', '.join(map(str, steps))}, got {step}; choose one of these"
        )
    return steps[-1] if step is None else step


def choose_seed(checkpoints: CheckpointReader, seeds: range, seed: int | None) -> int:
    """Chooses one of the seeds that were trained side by side.

    Args:
        checkpoints: Checkpoints of the run, for the error message.
        seeds: Training seeds of the run.
        seed: Seed to choose; None for the first.

    Returns:
        The seed.

    Raises:
        DataFormatError: If the run has no such seed.
    """
    if seed is not None and seed not in seeds:
        raise DataFormatError(
            f"{checkpoints.folder}: expected seed to be one of "
            f"{', '.join(map(str, seeds))}, got {seed}; choose one of these"
        )
    return seeds[0] if seed is None else seed
