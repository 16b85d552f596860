"""The paper's result table as data.

Source: *Horizon Adaptive Offline Policy Learning via Value Stitching*, appendix,
table of full results on OGBench: ten data sets, five tasks each, nine methods.
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
        dataset: Such as ``"cube-single-play"``.
        task: 1 to 5, or None for the mean over the five tasks as printed.
        method: One of ``METHODS``.
        mean: Success rate in percent, over 8 training seeds after a million updates;
            None where the paper has none.
        std: Standard deviation over the seeds, in percentage points; None where the
            paper has none.
    """

    dataset: str
    task: int | None
    method: str
    mean: float | None
    std: float | None

    def __str__(self) -> str:
        if self.mean is None:
            return "—"
        return f"{self.mean:g}" + ("" if self.std is None else f" ± {self.std:g}")


@functools.cache
def paper_results() -> tuple[PaperResult, ...]:
    """The whole table, means over tasks included.

    Returns:
        540 results, by data set, then method.
    """
    text = importlib.resources.files(__package__).joinpath(_FILE).read_text("utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if line[:1] != "#")
    return tuple(
        PaperResult(
            dataset=row["dataset"],
            task=None if row["task"] == "all" else int(row["task"]),
            method=row["method"],
            mean=_number(row["mean"]),
            std=_number(row["std"]),
        )
        for row in rows
    )


def paper_datasets() -> tuple[str, ...]:
    """Names of the ten data sets, in the table's order."""
    return tuple(dict.fromkeys(result.dataset for result in paper_results()))


def find_paper_result(
    dataset: str, task: int | None, method: str
) -> PaperResult | None:
    """Looks up one cell.

    Args:
        dataset: Data-set name; the paper has ten, other names are no error.
        task: Task number, or None for the mean over the paper's five.
        method: One of ``METHODS``, in any case.

    Returns:
        The cell, or None if the paper does not report that data set and task.

    Raises:
        ValueError: If the method is none of the table's.
    """
    name = method.upper()
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
    return {(one.dataset, one.task, one.method): one for one in paper_results()}


def _number(text: str) -> float | None:
    return float(text) if text else None
