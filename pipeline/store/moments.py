"""Mergeable count, mean, variance, minimum and maximum, in float64 NumPy.

Merging is associative and commutative up to rounding, so that any grouping of blocks
and parts gives the same statistics to about 12 digits.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pipeline.store import schema
from pipeline.store.manifest import PartManifest, Statistics

# 4096 rows of a hundred float64 components are 3.3 MB, which a core's cache holds: the
# four passes over a piece then read memory once.
_PIECE_ROWS = 4096

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Moments of a set of rows, for each of the D flattened components of a row.

    Attributes:
        count: Number of rows.
        mean: ``f64[D]``.
        squares: ``f64[D]``, sum of squared distances from the mean.
        minimum: ``f64[D]``.
        maximum: ``f64[D]``.
    """

    count: int
    mean: Float64
    squares: Float64
    minimum: Float64
    maximum: Float64

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> Self:
        """Computes the moments of a block of rows.

        Args:
            values: ``[n, ...]``, at least one row.

        Returns:
            The moments of the flattened components.
        """
        flat = values.reshape(len(values), -1)
        pieces = (
            cls._of_piece(flat[first : first + _PIECE_ROWS])
            for first in range(0, len(flat), _PIECE_ROWS)
        )
        return functools.reduce(cls.merge, pieces)

    @classmethod
    def _of_piece(cls, flat: npt.NDArray[Any]) -> Self:
        # Transposed, so that every component is contiguous: NumPy reduces along
        # contiguous memory several times faster than across it.
        columns = np.ascontiguousarray(flat.T).astype(np.float64)
        minimum, maximum = columns.min(axis=1), columns.max(axis=1)
        mean = columns.mean(axis=1)
        # The mean is subtracted before squaring. In E[x^2] - E[x]^2 a small variance
        # around a large mean would cancel to nothing.
        columns -= mean[:, None]
        return cls(
            count=len(flat),
            mean=mean,
            squares=np.einsum("ij,ij->i", columns, columns),
            minimum=minimum,
            maximum=maximum,
        )

    @classmethod
    def from_statistics(cls, statistics: Statistics) -> Self:
        """Converts statistics of a manifest back to moments."""
        std = np.asarray(statistics.std)
        return cls(
            count=statistics.count,
            mean=np.asarray(statistics.mean),
            squares=np.square(std) * statistics.count,
            minimum=np.asarray(statistics.minimum),
            maximum=np.asarray(statistics.maximum),
        )

    def merge(self, other: Self) -> Self:
        """Combines the moments of two disjoint sets of rows into those of their union.

        References:
            Chan, Golub & LeVeque (1979), Updating formulae and a pairwise algorithm
            for computing sample variances.
        """
        count = self.count + other.count
        delta = other.mean - self.mean
        return type(self)(
            count=count,
            mean=self.mean + delta * (other.count / count),
            squares=self.squares
            + other.squares
            + np.square(delta) * (self.count * other.count / count),
            minimum=np.minimum(self.minimum, other.minimum),
            maximum=np.maximum(self.maximum, other.maximum),
        )

    def to_statistics(self) -> Statistics:
        """Converts the moments to the statistics that a manifest holds."""
        return Statistics(
            count=self.count,
            mean=tuple(self.mean.tolist()),
            std=tuple(np.sqrt(self.squares / self.count).tolist()),
            minimum=tuple(self.minimum.tolist()),
            maximum=tuple(self.maximum.tolist()),
        )


class Summary:
    """Gathers the statistics of every field, block by block."""

    def __init__(self) -> None:
        self._moments: dict[str, Moments] = {}

    def add(self, columns: Mapping[str, Array], lengths: Int64) -> None:
        """Adds a block of whole episodes.

        Fields of several axes, such as images, are summarised over all but their last
        axis: statistics of each pixel would be as large as the pixels' images.
        Actions that `schema.find_unused` finds are left out.

        Args:
            columns: ``[n, ...]`` for each field.
            lengths: ``i64[E]``, rows of each episode; their sum is n.
        """
        for name, values in columns.items():
            if name == schema.ACTIONS:
                unused = schema.find_unused(values, lengths)
                values = values[~unused] if unused.any() else values
            # Episodes of a single row may leave no action at all.
            if not len(values):
                continue
            if values.ndim > 2:
                values = values.reshape(-1, values.shape[-1])
            moments = Moments.of(values)
            known = self._moments.get(name)
            self._moments[name] = moments if known is None else known.merge(moments)

    def statistics(self) -> dict[str, Statistics]:
        """Converts what was gathered to the statistics that a manifest holds."""
        return {
            name: moments.to_statistics() for name, moments in self._moments.items()
        }


def merge_statistics(parts: Sequence[PartManifest]) -> dict[str, Statistics]:
    """Merges the statistics of all parts of the ``train`` split.

    Args:
        parts: Parts of any split; those of other splits are passed over.

    Returns:
        Statistics by field name; empty if no part belongs to ``train``.
    """
    # The order of the parts, not that in which they were written, decides the
    # rounding: the manifest must have the same bytes after every run.
    merged: dict[str, Moments] = {}
    for part in parts:
        if part.split != "train":
            continue
        for name, statistics in part.statistics.items():
            moments = Moments.from_statistics(statistics)
            known = merged.get(name)
            merged[name] = moments if known is None else known.merge(moments)
    return {name: moments.to_statistics() for name, moments in merged.items()}
