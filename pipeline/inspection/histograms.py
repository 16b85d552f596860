"""How a store's rows are distributed, counted in bounded memory. Draws nothing."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.store import arrays, schema
from pipeline.store.reader import Store

BINS = 60
# Cells along the longer side of a map.
_MAP_CELLS = 80
# OGBench's name for positions; a maze's first two are those on its floor.
_QPOS = "qpos"

Floats = npt.NDArray[np.floating]


class Histogram(NamedTuple):
    """Counts along one axis.

    Attributes:
        shares: ``f64[N]``, of all that was counted, in [0, 1].
        edges: ``f64[N + 1]``.
        whole: Whether each bin is one whole number.
    """

    shares: Floats
    edges: Floats
    whole: bool


class PlaceMap(NamedTuple):
    """Counts over the floor of a maze.

    Attributes:
        rows: ``f64[X, Y]``.
        extent: Left, right, bottom and top, in metres.
    """

    rows: Floats
    extent: tuple[float, float, float, float]


def count_labels(store: Store, field: str, column: int) -> Histogram:
    """Counts rewards or returns of one task over the rows to train on.

    Args:
        store: The store.
        field: Of one number a row and task.
        column: Of the task.

    Returns:
        The histogram. Whole rewards get a bin each where they are few.
    """
    known = store.manifest.statistics[field]
    low, high = known.minimum[column], known.maximum[column]
    whole = field == schema.REWARDS and float(low).is_integer() and high - low < BINS
    edges = _whole_edges(low, high) if whole else _even_edges(low, high)
    counts = np.zeros(len(edges) - 1)
    for rows in _blocks(store, field):
        counts += np.histogram(rows[:, column], edges)[0]
    return Histogram(counts / max(1.0, counts.sum()), edges, whole)


def count_lengths(store: Store) -> Histogram:
    """Counts episodes to train on by their transitions."""
    steps = store.episodes().lengths - 1
    low, high = int(steps.min()), int(steps.max())
    whole = high - low < BINS
    edges = _whole_edges(low, high) if whole else _even_edges(low, high)
    counts = np.histogram(steps, edges)[0]
    return Histogram(counts / len(steps), edges, whole)


def count_places(store: Store) -> PlaceMap | None:
    """Counts rows by where on the floor they are; None if the store is of no maze."""
    field = store.manifest.statistics.get(_QPOS)
    if field is None or {task.recipe for task in store.manifest.tasks} != {"maze"}:
        return None
    (left, bottom), (right, top) = field.minimum[:2], field.maximum[:2]
    cell = max(right - left, top - bottom) / _MAP_CELLS or 1.0
    edges = [
        low + cell * np.arange(math.ceil((high - low) / cell + 1e-6) + 1)
        for low, high in ((left, right), (bottom, top))
    ]
    counts = np.zeros([len(each) - 1 for each in edges])
    for rows in _blocks(store, _QPOS):
        counts += np.histogram2d(rows[:, 0], rows[:, 1], edges)[0]
    x, y = edges
    return PlaceMap(counts, (x[0], x[-1], y[0], y[-1]))


def _blocks(store: Store, field: str) -> Iterator[npt.NDArray[Any]]:
    """Rows to train on, a shard at a time."""
    step = arrays.shard_rows(store.manifest.fields[field])
    for part in store.manifest.parts_of("train"):
        for first in range(0, part.rows, step):
            yield store.read_rows(part, field, first, min(first + step, part.rows))


def _whole_edges(low: float, high: float) -> Floats:
    return np.arange(math.floor(low), math.ceil(high) + 2) - 0.5


def _even_edges(low: float, high: float) -> Floats:
    margin = 0.5 if low == high else 0.0
    return np.linspace(low - margin, high + margin, BINS + 1)
