"""Reference returns of D4RL's data sets, which define normalised scores 0 and 100."""

import csv
import functools
import importlib.resources
import math

from pipeline.store.errors import UsageError

_FILE = "reference_scores.csv"


def find_reference_scores(dataset: str) -> tuple[float, float] | None:
    """Looks up the reference returns of a published data set.

    Args:
        dataset: Name with version, such as ``"hopper-medium-v2"``.

    Returns:
        Undiscounted returns of a random policy and of an expert; None if D4RL
        publishes none for the name.

    Example:
        >>> find_reference_scores("kitchen-mixed-v0")
        (0.0, 4.0)
    """
    return _read_table().get(dataset)


def check_reference_scores(low: float, high: float) -> tuple[float, float]:
    """Refuses reference returns from which no score can be computed.

    Args:
        low: Return that counts as score 0.
        high: Return that counts as score 100.

    Returns:
        Both returns.

    Raises:
        UsageError: If a return is not finite, or ``low`` is not below ``high``.
    """
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(
            f"--reference-scores: expected the return that counts as 0 and a larger "
            f"one that counts as 100, got {low:g} and {high:g}; correct them"
        )
    return float(low), float(high)


@functools.cache
def _read_table() -> dict[str, tuple[float, float]]:
    """Reads the table of returns that is shipped with the package."""
    # Lines with # in the table tell where its numbers come from.
    text = importlib.resources.files(__package__).joinpath(_FILE).read_text("utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if line[:1] != "#")
    return {row["dataset"]: (float(row["low"]), float(row["high"])) for row in rows}
