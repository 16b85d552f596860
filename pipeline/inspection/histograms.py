"""Counts of a store's rows and episodes, in bounded memory. Draws nothing."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.store import arrays, schema
from pipeline.store.manifest import Statistics
from pipeline.store.reader import Store

BINS = 60
# Cells along the longer side of a map.
_MAP_CELLS = 80
# OGBench's name for positions; a maze's first two are those on its floor.
QPOS = "qpos"

Floats = npt.NDArray[np.floating]


class Histogram(NamedTuple):
    """Counts along one axis.

    Attributes:
        counts: ``f64[N]``.
        edges: ``f64[N + 1]``.
        whole: Whether each bin is one whole number.
    """

    counts: Floats
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
        field: Field of one number for each row and task.
        column: Column of the task.

    Returns:
        The histogram. Rewards that are all whole numbers have a bin each if these are
        few.
    """
    # The manifest has the extremes, so that one pass over the rows is enough.
    known = store.manifest.statistics[field]
    low, high = known.minimum[column], known.maximum[column]
    # Rewards are -1 and 0 in most data sets; even bins would put both at an edge.
    whole = field == schema.REWARDS and float(low).is_integer() and high - low < BINS
    even_edges = _even_edges(low, high)
    edges = _whole_edges(low, high) if whole else even_edges
    even_counts, counts = np.zeros(len(even_edges) - 1), np.zeros(len(edges) - 1)
    for rows in read_blocks(store, field):
        labels = rows[:, column]
        # Dense rewards may start at a whole number as well: all rows decide. Both kinds
        # of bins are counted until a row does, because no row is read twice.
        whole = whole and bool((labels == np.rint(labels)).all())
        even_counts += np.histogram(labels, even_edges)[0]
        if whole:
            counts += np.histogram(labels, edges)[0]
    if whole:
        return Histogram(counts, edges, whole)
    return Histogram(even_counts, even_edges, whole)


def count_lengths(lengths: npt.NDArray[np.int64]) -> Histogram:
    """Counts episodes by their transitions.

    Args:
        lengths: ``i64[N]``, rows of each episode, one more than its transitions.
    """
    steps = lengths - 1
    low, high = int(steps.min()), int(steps.max())
    whole = high - low < BINS
    edges = _whole_edges(low, high) if whole else _even_edges(low, high)
    return Histogram(np.histogram(steps, edges)[0].astype(np.float64), edges, whole)


def floor_of(store: Store) -> Statistics | None:
    """Returns statistics of positions in a maze, x and y first; None without a maze."""
    recipes = {task.recipe for task in store.manifest.tasks}
    return store.manifest.statistics.get(QPOS) if recipes == {"maze"} else None


def count_places(floor: Statistics, places: Iterable[npt.NDArray[Any]]) -> PlaceMap:
    """Counts rows by where on the floor of a maze they are.

    Args:
        floor: Statistics of the positions.
        places: ``f32[rows, 2]``, x and y of some rows after others.

    Returns:
        The map, of square cells.
    """
    (left, bottom), (right, top) = floor.minimum[:2], floor.maximum[:2]
    # A body that never moved has no extent, and still needs a cell.
    cell = max(right - left, top - bottom) / _MAP_CELLS or 1.0
    # Half a cell of margin: the statistics are those of the training split alone, and
    # a body of the other one may have been a little outside.
    edges = [
        np.arange(low - cell / 2, high + 1.5 * cell, cell)
        for low, high in ((left, right), (bottom, top))
    ]
    counts = np.zeros([len(side) - 1 for side in edges])
    for rows in places:
        counts += np.histogram2d(rows[:, 0], rows[:, 1], edges)[0]
    x, y = edges
    return PlaceMap(counts, (x[0], x[-1], y[0], y[-1]))


def read_blocks(store: Store, field: str) -> Iterator[npt.NDArray[Any]]:
    """Reads the rows to train on, a shard at a time."""
    # Whole shards, so that no chunk is decompressed twice.
    step = arrays.shard_rows(store.manifest.fields[field])
    for part in store.manifest.parts_of("train"):
        for first in range(0, part.rows, step):
            yield store.read_rows(part, field, first, min(first + step, part.rows))


def _whole_edges(low: float, high: float) -> Floats:
    return np.arange(math.floor(low), math.ceil(high) + 2) - 0.5


def _even_edges(low: float, high: float) -> Floats:
    margin = 0.5 if low == high else 0.0
    return np.linspace(low - margin, high + margin, BINS + 1)
