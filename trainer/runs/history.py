"""The metrics that training logged, as arrays by step and seed.

Dimensions: N log points, Q training seeds, K maximum horizon.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.store.errors import DataFormatError
from trainer.runs.folder import METRICS_FILE, RunFolder

# Prefix of the names of metrics that were measured on held-out windows.
VALIDATION = "validation_"

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class History:
    """The contents of ``metrics.jsonl`` of one run.

    Attributes:
        steps: ``i64[N]``, updates done at each log point, ascending.
        seeds: Training seeds, ascending.
        records: Records by step and seed.
    """

    steps: npt.NDArray[np.int64]
    seeds: tuple[int, ...]
    records: dict[tuple[int, int], dict[str, Any]]

    def names(self) -> tuple[str, ...]:
        """Names the scalar metrics, in the order in which they were logged."""
        # A dictionary is an ordered set. Records may have different names: validation
        # is not measured at each log point.
        names: dict[str, None] = {}
        for record in self.records.values():
            names |= {
                name: None
                for name, value in record.items()
                if isinstance(value, int | float) and name not in ("step", "seed")
            }
        return tuple(names)

    def scalar(self, name: str) -> Float64:
        """Returns a metric over training: ``f64[Q, N]``, NaN where it is missing."""
        rows = [
            [
                self.records.get((int(step), seed), {}).get(name, np.nan)
                for step in self.steps
            ]
            for seed in self.seeds
        ]
        return np.array(rows, np.float64).reshape(len(self.seeds), len(self.steps))

    def mean(self, name: str) -> tuple[npt.NDArray[np.int64], Float64]:
        """Averages a metric over the seeds, at the log points that have it.

        Returns:
            Steps ``i64[P]`` of these points, and means ``f64[P]``.
        """
        means = np.ma.masked_invalid(self.scalar(name)).mean(axis=0)
        return self.steps[~np.ma.getmaskarray(means)], means.compressed()

    def vector(self, name: str, point: int) -> Float64 | None:
        """Returns a metric by horizon at one log point, summed over seeds.

        Args:
            name: Name of a vector.
            point: Index of the log point; a negative one counts from the last.

        Returns:
            ``f64[K + 1]``, with entry j for horizon j; None if it was not logged.
        """
        if not len(self.steps):
            return None
        step = int(self.steps[point])
        logged = [self.records.get((step, seed), {}).get(name) for seed in self.seeds]
        values = [value for value in logged if isinstance(value, list)]
        return np.sum(values, axis=0, dtype=np.float64) if values else None


def read_history(folder: RunFolder) -> History:
    """Reads the metrics of a run.

    Args:
        folder: Folder of the run, RUN.

    Returns:
        The history, which is empty if nothing was logged yet. Of several records of one
        step and seed it has the last: a resumed run logs some steps again.

    Raises:
        DataFormatError: If a line is no record.
    """
    # Every record is checked here, since charts and tables take their numbers unchecked
    # and a file may be damaged or a stranger's.
    records: dict[tuple[int, int], dict[str, Any]] = {}
    counts: dict[str, int | None] = {}
    for number, record in enumerate(folder.read_lines(METRICS_FILE), start=1):
        where = f"{folder}/{METRICS_FILE}, record {number}"
        records[_key(record, where=where)] = record
        for name, value in record.items():
            count = _count_numbers(value, where=f"{where}: {name}")
            if value is not None and counts.setdefault(name, count) != count:
                raise DataFormatError(
                    f"{where}: {name}: expected as many numbers as in the records "
                    f"before, got {value!r:.80}; the file is damaged, remove the line"
                )
    return History(
        steps=np.array(sorted({step for step, _ in records}), np.int64),
        seeds=tuple(sorted({seed for _, seed in records})),
        records=records,
    )


def _key(record: dict[str, Any], *, where: str) -> tuple[int, int]:
    """Reads step and seed of a record, and refuses one that lacks either."""
    for name in ("step", "seed"):
        number = record.get(name)
        if type(number) is not int or not 0 <= number < 1 << 62:
            raise DataFormatError(
                f"{where}: {name}: expected a whole number of at least 0, got "
                f"{number!r:.80}; the file is damaged, remove the line"
            )
    return record["step"], record["seed"]


def _count_numbers(value: Any, *, where: str) -> int | None:
    """Counts the numbers of a list; None for a number alone."""
    numbers = value if isinstance(value, list) else [value]
    for number in numbers:
        # An int beyond 64 bits would overflow in NumPy. None stands for NaN.
        is_number = isinstance(number, float) or (
            isinstance(number, int) and abs(number) < 1 << 63
        )
        if number is not None and not is_number:
            raise DataFormatError(
                f"{where}: expected a number, or numbers by horizon, got "
                f"{value!r:.80}; the file is damaged, remove the line"
            )
    return len(numbers) if isinstance(value, list) else None
