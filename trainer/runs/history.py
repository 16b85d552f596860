"""The figures logged in training, as arrays by step and seed.

Dimensions: N log points, Q training seeds, K maximum horizon.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.store.errors import DataFormatError
from trainer.runs.folder import METRICS_FILE, RunFolder

# Of the names of figures that were measured on held-out windows.
VALIDATION = "validation_"

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class History:
    """What ``metrics.jsonl`` of one run says.

    Attributes:
        steps: ``i64[N]``, ascending: updates done at each log point.
        seeds: Training seeds, ascending.
        records: By (step, seed).
    """

    steps: npt.NDArray[np.int64]
    seeds: tuple[int, ...]
    records: dict[tuple[int, int], dict[str, Any]]

    def names(self) -> tuple[str, ...]:
        """Names of the scalar figures, in the order they were logged."""
        found: dict[str, None] = {}
        for record in self.records.values():
            found |= {
                name: None
                for name, value in record.items()
                if isinstance(value, int | float) and name not in ("step", "seed")
            }
        return tuple(found)

    def scalar(self, name: str) -> Float64:
        """One figure over training: ``f64[Q, N]``; NaN where it was not logged."""
        rows = [
            [
                self.records.get((int(step), seed), {}).get(name, np.nan)
                for step in self.steps
            ]
            for seed in self.seeds
        ]
        return np.array(rows, np.float64).reshape(len(self.seeds), len(self.steps))

    def vector(self, name: str, point: int) -> Float64 | None:
        """One figure by horizon at one log point, summed over seeds.

        Args:
            name: Of a vector.
            point: Index of the log point; negative counts from the last.

        Returns:
            ``f64[K + 1]``, entry j of horizon j; None if it was not logged.
        """
        if not len(self.steps):
            return None
        step = int(self.steps[point])
        logged = [self.records.get((step, seed), {}).get(name) for seed in self.seeds]
        values = [value for value in logged if isinstance(value, list)]
        return np.sum(values, axis=0, dtype=np.float64) if values else None


def read_history(folder: RunFolder) -> History:
    """Reads the metrics of a run; one that logged nothing yet is empty.

    Args:
        folder: RUN.

    Returns:
        Its history. Of several records of one step and seed, the last.

    Raises:
        DataFormatError: If a line is no record.
    """
    records: dict[tuple[int, int], dict[str, Any]] = {}
    kinds: dict[str, int | None] = {}
    for number, record in enumerate(folder.read_lines(METRICS_FILE), start=1):
        where = f"{folder}/{METRICS_FILE}, record {number}"
        records[_key(record, where=where)] = record
        for name, value in record.items():
            kind = _kind(value, where=f"{where}: {name}")
            if value is not None and kinds.setdefault(name, kind) != kind:
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
    """Step and seed of a record, which it needs."""
    for name in ("step", "seed"):
        number = record.get(name)
        if type(number) is not int or not 0 <= number < 1 << 62:
            raise DataFormatError(
                f"{where}: {name}: expected a number from 0, got {number!r:.80}; the "
                "file is damaged, remove the line"
            )
    return record["step"], record["seed"]


def _kind(value: Any, *, where: str) -> int | None:
    """How many numbers of a list, or None of a number alone."""
    numbers = value if isinstance(value, list) else [value]
    for each in numbers:
        is_number = isinstance(each, float) or (
            isinstance(each, int) and abs(each) < 1 << 63
        )
        if each is not None and not is_number:
            raise DataFormatError(
                f"{where}: expected a number, or numbers by horizon, got "
                f"{value!r:.80}; the file is damaged, remove the line"
            )
    return len(numbers) if isinstance(value, list) else None
