"""Reference returns of D4RL's data sets: what counts as a score of 0 and of 100."""

import csv
import functools
import importlib.resources
import math

from pipeline.store.errors import UsageError

_FILE = "reference_scores.csv"


def find_reference_scores(dataset: str) -> tuple[float, float] | None:
    """Looks up the reference returns of a published data set.

    Args:
        dataset: Name with its version, such as ``"hopper-medium-v2"``.

    Returns:
        Return of a random policy and of an expert, undiscounted; None if none are
        published for a data set of that name.

    Example:
        >>> find_reference_scores("kitchen-mixed-v0")
        (0.0, 4.0)
    """
    return _read_table().get(dataset)


def check_reference_scores(low: float, high: float) -> tuple[float, float]:
    """Refuses reference returns that no score can be made of.

    Args:
        low: Return that counts as 0.
        high: Return that counts as 100.

    Returns:
        Both.

    Raises:
        UsageError: If they are not finite, or not in this order.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(
            f"--reference-scores: expected the return that counts as 0 and a larger "
            f"one that counts as 100, got {low:g} and {high:g}"
        )
    return float(low), float(high)


@functools.cache
def _read_table() -> dict[str, tuple[float, float]]:
    text = importlib.resources.files(__package__).joinpath(_FILE).read_text("utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if line[:1] != "#")
    return {row["dataset"]: (float(row["low"]), float(row["high"])) for row in rows}
