"""The interface of trackers, and the names and settings that they show."""

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from trainer.runs.evaluations import Evaluation
from trainer.runs.history import VALIDATION
from trainer.runs.run import Run

Json = dict[str, Any]
EVALUATION = "evaluation"

# Vectors of counts by horizon, and the tags of their histograms. Other vectors of a
# record are not tracked.
HISTOGRAMS = {
    "drawn_by_horizon": "horizons/drawn",
    "windows_by_horizon": "horizons/recorded",
}
# Names, or beginnings of names, that say which group of charts a metric belongs to.
_TIME = ("time_s", "updates_per_s", "input_blocked_share", "validation_s")
_VALUES = ("value", "critic", "segment", "field", "over_estimation", "advantage")


class Tracker(Protocol):
    """A destination of the records of training.

    A tracker is made for one start of a run. An earlier start may have written records
    of steps that this start does again; the tracker makes sure that no point is shown
    twice.
    """

    def write(self, records: Sequence[Json]) -> None:
        """Writes the records of a log point.

        Args:
            records: A record for each seed.

        Raises:
            OSError: If the records cannot be written.
        """

    def close(self) -> None:
        """Finishes writing, and waits until it is done."""


def make_tag(name: str) -> str:
    """Makes the tag of a metric: its group and its name, as boards group charts.

    Args:
        name: Name of the metric in a record.

    Returns:
        ``group/name``.

    Example:
        >>> make_tag("critic_loss"), make_tag("updates_per_s")
        ('losses/critic_loss', 'time/updates_per_s')
        >>> make_tag("validation_loss"), make_tag("gradient_norm")
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


def list_scalar_points(record: Json) -> dict[str, float]:
    """Lists the finite numbers of a record by tag; its step and seed are no points."""
    return {
        make_tag(name): number
        for name, number in record.items()
        if name not in ("step", "seed")
        and isinstance(number, int | float)
        and math.isfinite(number)
    }


def list_histogram_points(record: Json) -> dict[str, Sequence[float]]:
    """Lists the counts by horizon of a record by tag; those of nothing are left out."""
    return {
        tag: record[name]
        for name, tag in HISTOGRAMS.items()
        if sum(record.get(name) or ()) > 0
    }


def list_evaluation_points(evaluation: Evaluation, run: Run) -> dict[str, float]:
    """Lists the points of an evaluation that boards show.

    Args:
        evaluation: Evaluation of one checkpoint of one training seed.
        run: The evaluated run.

    Returns:
        Numbers by tag, such as ``evaluation/return``: success if the environment
        reports it, return, and length in steps.
    """
    # A run may be evaluated on other tasks than its own, in another environment, or
    # with another number of candidates; each has a group of charts.
    own, candidates = run.task, evaluation.candidates
    group = EVALUATION
    if evaluation.task != own.task:
        group += f"_task_{evaluation.task}"
    elif own.environment_id and evaluation.environment != own.environment_id:
        group += "_" + re.sub(r"[^\w.-]+", "-", evaluation.environment).strip("-")
    if candidates is not None:
        group += f"_candidates_{candidates}"
    figures = {
        "success": evaluation.success_rate,
        "return": evaluation.mean_return,
        "length": evaluation.mean_length,
    }
    return {f"{group}/{k}": value for k, value in figures.items() if value is not None}


def list_hyperparameters(run: Run, seed: int) -> dict[str, bool | int | float | str]:
    """Lists the settings of one seed's run, by which boards compare runs.

    Args:
        run: The run.
        seed: Training seed.

    Returns:
        Settings by dotted name, such as ``agent.width``; None is left out.
    """
    settings: dict[str, bool | int | float | str] = {
        "dataset": run.dataset,
        "task": run.task.task,
        "seed": seed,
    }
    config = dataclasses.asdict(run.config)
    for table in ("agent", "trainer"):
        for name, setting in _prefix_names(config[table], prefix=table):
            # A sub-run has one seed, so the first seed and the number of seeds of the
            # whole run would only separate sub-runs that are alike.
            if setting is not None and name not in ("trainer.seed", "trainer.seeds"):
                plain = isinstance(setting, bool | int | float | str)
                settings[name] = setting if plain else str(setting)
    return settings


def _prefix_names(table: Json, *, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, setting in table.items():
        yield f"{prefix}.{name}", setting
