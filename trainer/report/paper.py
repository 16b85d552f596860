"""The paper's result table as data.

Source: *Horizon Adaptive Offline Policy Learning via Value Stitching*, appendix, table
of full results on OGBench: ten data sets, five tasks each, nine methods.
"""

import csv
import difflib
import functools
import importlib.resources
from dataclasses import dataclass

PAPER = "Horizon Adaptive Offline Policy Learning via Value Stitching"
PAPER_STEPS = 1_000_000
PAPER_SEEDS = 8
METHODS = (
    "IQL",
    "FQL",
    "IFQL",
    "FQL-n",
    "IFQL-n",
    "QC",
    "VALUE-FLOWS",
    "FLOQ",
    "VAST",
)

_FILE = "paper_results.csv"


@dataclass(frozen=True)
class PaperResult:
    """One cell of the paper's table.

    Attributes:
        dataset: Name of the data set, such as ``"cube-single-play"``.
        task: Task number from 1 to 5, or None for the mean over the five as printed.
        method: A method of ``METHODS``.
        mean: Success rate in percent, over 8 training seeds after a million updates;
            None where the paper prints no number.
        std: Standard deviation over the seeds, in percentage points; None where the
            paper prints none.
    """

    dataset: str
    task: int | None
    method: str
    mean: float | None
    std: float | None

    def __str__(self) -> str:
        # As printed: whole numbers have no decimals.
        if self.mean is None:
            return "—"
        return f"{self.mean:g}" + ("" if self.std is None else f" ± {self.std:g}")


@functools.cache
def read_paper_results() -> tuple[PaperResult, ...]:
    """Reads the whole table, means over tasks included.

    Returns:
        540 results, by data set, then method.
    """
    text = importlib.resources.files(__package__).joinpath(_FILE).read_text("utf-8")
    # Lines of comments say where the numbers are from.
    rows = csv.DictReader(line for line in text.splitlines() if line[:1] != "#")
    return tuple(
        PaperResult(
            dataset=row["dataset"],
            task=None if row["task"] == "all" else int(row["task"]),
            method=row["method"],
            mean=_parse_number(row["mean"]),
            std=_parse_number(row["std"]),
        )
        for row in rows
    )


def paper_datasets() -> tuple[str, ...]:
    """Lists the names of the ten data sets, in the order of the table."""
    return tuple(dict.fromkeys(result.dataset for result in read_paper_results()))


def find_paper_result(
    dataset: str, task: int | None, method: str
) -> PaperResult | None:
    """Looks up one cell.

    Args:
        dataset: Name of a data set, of the paper's ten or another.
        task: Task number, or None for the mean over the paper's five.
        method: A method of ``METHODS``, in upper or lower case.

    Returns:
        The cell, or None if the paper does not report that data set and task.

    Raises:
        ValueError: If the table has no such method.
    """
    name = method.upper()
    # A typing error must not look like a task that the paper lacks.
    if name not in _BY_UPPER:
        near = difflib.get_close_matches(name, _BY_UPPER, n=1, cutoff=0.4)
        hint = f"; did you mean {_BY_UPPER[near[0]]!r}?" if near else ""
        raise ValueError(
            f"method: expected one of {', '.join(METHODS)}, got {method!r}{hint}"
        )
    return _index().get((dataset, task, _BY_UPPER[name]))


_BY_UPPER = {method.upper(): method for method in METHODS}


@functools.cache
def _index() -> dict[tuple[str, int | None, str], PaperResult]:
    return {
        (cell.dataset, cell.task, cell.method): cell for cell in read_paper_results()
    }


def _parse_number(text: str) -> float | None:
    return float(text) if text else None
