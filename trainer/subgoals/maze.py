"""A maze seen from above: V over its free cells, and recorded paths.

All functions are pure, except that paths are read from a store. The walls come from the
environment's process.

Dimensions: T steps of a path, S observation, R and C rows and columns of a value map.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from trainer.evaluation.environments import MazeMap

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]

# Ten points along a cell of four metres: finer than the paths that are drawn over them.
_POINTS_PER_CELL = 10


def list_points(maze: MazeMap, per_cell: int = _POINTS_PER_CELL) -> Float64:
    """Lists places spread evenly over a maze, walls included.

    Args:
        maze: The walls.
        per_cell: Points along a side of a cell, at least 1.

    Returns:
        ``f64[R, C, 2]`` with ``per_cell`` rows and columns for each of the maze's:
        ``x`` and ``y`` in metres, each point in the middle of its share of a cell.

    Example:
        >>> maze = MazeMap(((True, False),), unit_m=4.0, origin_m=(0.0, 10.0))
        >>> list_points(maze, per_cell=2)[0].tolist()
        [[-1.0, 9.0], [1.0, 9.0], [3.0, 9.0], [5.0, 9.0]]
    """
    cells = np.array(maze.walls).shape
    ys, xs = (
        start + maze.unit_m * ((np.arange(count * per_cell) + 0.5) / per_cell - 0.5)
        for start, count in zip(maze.origin_m[::-1], cells, strict=True)
    )
    return np.stack(np.meshgrid(xs, ys), axis=-1)


def map_values(
    maze: MazeMap,
    value: Callable[[jax.Array], jax.Array],
    observation: Float32,
    per_cell: int = _POINTS_PER_CELL,
) -> Float64:
    """Evaluates V over the free cells of a maze.

    Args:
        maze: The walls.
        value: V, from ``f32[n, S]`` in the units of the data to ``f32[n]``.
        observation: ``f32[S]``, whose first two components are the body's place; the
            others are those of the body at every place.
        per_cell: Points along a side of a cell.

    Returns:
        ``f64[R, C]``, V at ``list_points``; NaN within walls.
    """
    # V within walls is never trained, and no body can be there.
    points = list_points(maze, per_cell)
    walls = np.array(maze.walls).repeat(per_cell, axis=0).repeat(per_cell, axis=1)
    states = np.tile(observation, (int((~walls).sum()), 1))
    states[:, :2] = points[~walls]
    values = np.full(walls.shape, np.nan)
    values[~walls] = np.asarray(jax.jit(value)(states))
    return values


def read_paths(store: Store, count: int = 6) -> list[Float32]:
    """Reads the places along some recorded episodes, spread evenly over the data.

    Args:
        store: Store of a maze, whose observations start with the body's place.
        count: Number of episodes; fewer are read if the store holds fewer.

    Returns:
        ``f32[T, 2]`` each, in metres.
    """
    # Only the rows of these episodes are read: stores may be larger than memory.
    episodes = store.episodes()
    chosen = np.linspace(0, len(episodes.starts), count, endpoint=False).astype(int)
    paths, offset = [], 0
    for part in store.manifest.parts_of("train"):
        # No episode lies in two parts.
        for index in np.unique(chosen):
            first = int(episodes.starts[index]) - offset
            if 0 <= first < part.rows:
                last = first + int(episodes.lengths[index])
                rows = store.read_rows(part, "observations", first, last)
                paths.append(rows.reshape(len(rows), -1)[:, :2].astype(np.float32))
        offset += part.rows
    return paths


def read_goal(goal: dict[str, Any]) -> tuple[tuple[float, float], float]:
    """Reads a maze task's goal.

    Args:
        goal: ``Task.goal``.

    Returns:
        Place ``(x, y)`` of the goal and the distance that counts as reaching it, in
        metres.

    Raises:
        DataFormatError: If the goal is not that of a maze task.
    """
    try:
        x, y = goal["xy"]
        return (float(x), float(y)), float(goal["tolerance"])
    except KeyError as error:
        raise DataFormatError(
            f"expected a maze task's goal with xy and tolerance, got {sorted(goal)}; "
            "write the store again from its data"
        ) from error


def find_extent(maze: MazeMap) -> tuple[float, float, float, float]:
    """Finds the edges of a maze's outermost walls.

    Args:
        maze: The walls.

    Returns:
        Left, right, bottom and top, in metres.
    """
    rows, columns = np.array(maze.walls).shape
    left, bottom = (start - maze.unit_m / 2 for start in maze.origin_m)
    return left, left + columns * maze.unit_m, bottom, bottom + rows * maze.unit_m
