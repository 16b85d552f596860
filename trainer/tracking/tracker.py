"""What a tracker is, and what it is told of a run."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from trainer.runs.evaluations import Evaluation
from trainer.runs.history import VALIDATION
from trainer.runs.run import Run

Json = dict[str, Any]
EVALUATION = "evaluation"

# Counts by horizon: trackers that draw histograms get these as such.
HISTOGRAMS = {
    "drawn_by_horizon": "horizons/drawn",
    "windows_by_horizon": "horizons/recorded",
}
_TIME = ("time_s", "updates_per_s", "input_blocked_share", "validation_s")
_VALUES = ("value", "critic", "segment", "field", "over_estimation", "advantage")


class Tracker(Protocol):
    """One place where the records of training go.

    A tracker is made for one start of a run. Records of steps after the one that
    training goes on from may be there from an earlier start; it is the tracker's
    business that no point is shown twice.
    """

    def write(self, records: Sequence[Json]) -> None:
        """Adds the records of a log point, one for each seed.

        Raises:
            OSError: If they cannot be written.
        """

    def close(self) -> None:
        """Finishes what was written."""


def group_tag(name: str) -> str:
    """Name of a figure within its group, as boards show groups.

    Example:
        >>> group_tag("critic_loss"), group_tag("updates_per_s")
        ('losses/critic_loss', 'time/updates_per_s')
        >>> group_tag("validation_loss"), group_tag("gradient_norm")
        ('validation/loss', 'training/gradient_norm')
    """
    if name in _TIME:
        return f"time/{name}"
    if name.startswith(VALIDATION):
        return f"validation/{name.removeprefix(VALIDATION)}"
    if name == "loss" or name.endswith("_loss"):
        return f"losses/{name}"
    group = "values" if name.startswith(_VALUES) else "training"
    return f"{group}/{name}"


def evaluation_figures(evaluation: Evaluation, *, own_task: int) -> dict[str, float]:
    """What boards show of an evaluation.

    Args:
        evaluation: One checkpoint of one training seed.
        own_task: Task number that the run was trained for; others are groups of their
            own.

    Returns:
        Figures by tag, such as ``evaluation/return``: success if it was reported,
        return, and length in steps.
    """
    task = evaluation.task
    group = EVALUATION if task == own_task else f"{EVALUATION}_task_{task}"
    figures = {
        "success": evaluation.success_rate,
        "return": evaluation.mean_return,
        "length": evaluation.mean_length,
    }
    return {f"{group}/{k}": value for k, value in figures.items() if value is not None}


def hyperparameters(run: Run, seed: int) -> dict[str, bool | int | float | str]:
    """Settings of one seed's run, flat, as boards compare runs by them.

    Args:
        run: The run.
        seed: Training seed.

    Returns:
        Values by name, such as ``agent.width``; what is not set is left out.
    """
    found: dict[str, bool | int | float | str] = {
        "dataset": run.dataset,
        "task": run.task.task,
        "seed": seed,
    }
    config = dataclasses.asdict(run.config)
    for table in ("agent", "trainer"):
        for name, value in _flat(config[table], prefix=table):
            if value is not None and name not in ("trainer.seed", "trainer.seeds"):
                plain = isinstance(value, bool | int | float | str)
                found[name] = value if plain else str(value)
    return found


def _flat(table: Json, *, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        yield f"{prefix}.{name}", value
