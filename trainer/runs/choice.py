"""Which checkpoint, and which of the seeds trained side by side, is meant."""

from pipeline.store.errors import DataFormatError
from trainer.runs.checkpoints import CheckpointReader


def choose_step(checkpoints: CheckpointReader, step: int | None) -> int:
    """Finds a checkpoint.

    Args:
        checkpoints: Of a run.
        step: Updates done; None for the last one.

    Returns:
        A committed step.

    Raises:
        DataFormatError: If it is not there.
    """
    steps = checkpoints.steps()
    if not steps:
        raise DataFormatError(
            f"{checkpoints.folder}: holds no finished step; training has not reached "
            "its first checkpoint"
        )
    if step is not None and step not in steps:
        raise DataFormatError(
            f"{checkpoints.folder}: expected step to be one of "
            f"{', '.join(map(str, steps))}, got {step}"
        )
    return steps[-1] if step is None else step


def choose_seed(checkpoints: CheckpointReader, seeds: range, seed: int | None) -> int:
    """Finds one of the seeds that were trained side by side.

    Args:
        checkpoints: Of a run, for the error.
        seeds: Of the run.
        seed: Which one; None for the first.

    Returns:
        The seed.

    Raises:
        DataFormatError: If it is none of them.
    """
    if seed is not None and seed not in seeds:
        raise DataFormatError(
            f"{checkpoints.folder}: expected seed to be one of "
            f"{', '.join(map(str, seeds))}, got {seed}"
        )
    return seeds[0] if seed is None else seed
