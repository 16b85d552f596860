"""Mergeable count, mean, variance, minimum and maximum. Pure NumPy, float64.

Merging is associative and commutative up to rounding, so any grouping of blocks and
parts gives the same figures to about 12 digits.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pipeline.store.manifest import PartManifest, Statistics

# What fits a core's cache in float64, for a hundred components.
_PIECE_ROWS = 4096

Array = npt.NDArray[Any]
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Moments of rows seen so far, per flattened component.

    Attributes:
        count: Rows.
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
        """Summarises a block.

        Args:
            values: ``[n, ...]``, at least one row.

        Returns:
            Moments of its flattened components.
        """
        flat = values.reshape(len(values), -1)
        pieces = (
            cls._of_piece(flat[first : first + _PIECE_ROWS])
            for first in range(0, len(flat), _PIECE_ROWS)
        )
        return functools.reduce(cls.merge, pieces)

    @classmethod
    def _of_piece(cls, flat: npt.NDArray[Any]) -> Self:
        # One component after another in memory: reductions along rows are several
        # times faster than across them.
        columns = np.ascontiguousarray(flat.T).astype(np.float64)
        minimum, maximum = columns.min(axis=1), columns.max(axis=1)
        mean = columns.mean(axis=1)
        # Shifted by the mean before squaring, or variance drowns in the square of it.
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
        """Reads moments back from a manifest."""
        std = np.asarray(statistics.std)
        return cls(
            count=statistics.count,
            mean=np.asarray(statistics.mean),
            squares=np.square(std) * statistics.count,
            minimum=np.asarray(statistics.minimum),
            maximum=np.asarray(statistics.maximum),
        )

    def merge(self, other: Self) -> Self:
        """Moments of the union of two disjoint sets of rows.

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
        """The values as they stand in a manifest."""
        return Statistics(
            count=self.count,
            mean=tuple(self.mean.tolist()),
            std=tuple(np.sqrt(self.squares / self.count).tolist()),
            minimum=tuple(self.minimum.tolist()),
            maximum=tuple(self.maximum.tolist()),
        )


class Summary:
    """Statistics of every field, gathered block by block."""

    def __init__(self) -> None:
        self._moments: dict[str, Moments] = {}

    def add(self, columns: Mapping[str, Array]) -> None:
        """Adds rows: ``[n, ...]`` for each field.

        Fields of several axes, such as images, are summarised by their last axis.
        """
        for name, values in columns.items():
            if values.ndim > 2:
                values = values.reshape(-1, values.shape[-1])
            found = Moments.of(values)
            known = self._moments.get(name)
            self._moments[name] = found if known is None else known.merge(found)

    def statistics(self) -> dict[str, Statistics]:
        """What was gathered, as it stands in a manifest."""
        return {name: each.to_statistics() for name, each in self._moments.items()}


def merge_statistics(parts: Sequence[PartManifest]) -> dict[str, Statistics]:
    """Merges the statistics of the parts to train on, in order.

    Args:
        parts: Parts of any split.

    Returns:
        Statistics of the ``train`` split by field name; empty if it has no part.
    """
    merged: dict[str, Moments] = {}
    for part in parts:
        if part.split != "train":
            continue
        for name, statistics in part.statistics.items():
            found = Moments.from_statistics(statistics)
            known = merged.get(name)
            merged[name] = found if known is None else known.merge(found)
    return {name: moments.to_statistics() for name, moments in merged.items()}
