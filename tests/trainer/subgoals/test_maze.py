"""A maze from above: its geometry, V over its cells, and recorded paths."""

from pathlib import Path

import jax
import numpy as np
import pytest

from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from tests.stores import write_store
from trainer.evaluation.environments import MazeMap
from trainer.subgoals.maze import (
    find_extent,
    list_points,
    map_values,
    read_goal,
    read_paths,
)

# Two rows of three cells of 2 m; the middle of the first row is a wall.
MAZE = MazeMap(((False, True, False), (False, False, False)), 2.0, (10.0, -1.0))


def test_points_lie_in_the_middle_of_their_share_of_a_cell() -> None:
    points = list_points(MAZE, per_cell=2)
    assert points.shape == (4, 6, 2)
    # The first cell reaches from 9 to 11 in x and from -2 to 0 in y.
    assert points[0, :, 0].tolist() == [9.5, 10.5, 11.5, 12.5, 13.5, 14.5]
    assert points[:, 0, 1].tolist() == [-1.5, -0.5, 0.5, 1.5]
    np.testing.assert_array_equal(list_points(MAZE, per_cell=1)[1, 2], [14.0, 1.0])


def test_the_extent_is_that_of_the_outermost_cells() -> None:
    assert find_extent(MAZE) == (9.0, 15.0, -2.0, 2.0)


def test_values_are_those_of_the_places_and_walls_have_none() -> None:
    def value(states: jax.Array) -> jax.Array:
        return 100 * states[:, 0] + states[:, 1] + 1000 * states[:, 2]

    # What the observation says of the place is replaced, the rest stays.
    values = map_values(MAZE, value, np.array([77, 77, 3], np.float32), per_cell=1)
    np.testing.assert_allclose(
        values, [[3999, np.nan, 4399], [4001, 4201, 4401]], rtol=1e-6
    )


@pytest.mark.parametrize("count", [1, 3, 500])
def test_paths_are_whole_episodes_of_all_parts(tmp_path: Path, count: int) -> None:
    store = Store(str(write_store(tmp_path / "store", S=3, A=2)))
    assert len(store.manifest.parts_of("train")) > 1
    episodes, everything = store.episodes(), store.read("observations")
    starts = episodes.starts.tolist()
    paths = read_paths(store, count)
    assert len(paths) == min(count, len(starts))
    first = [int(np.flatnonzero((everything[:, :2] == p[0]).all(1))[0]) for p in paths]
    assert first == starts[: len(first)] if count == 500 else set(first) <= {*starts}
    assert first == sorted(set(first))
    assert first[0] == 0
    for path, start in zip(paths, first, strict=True):
        rows = int(episodes.lengths[starts.index(start)])
        np.testing.assert_array_equal(path, everything[start : start + rows, :2])


def test_a_goal_is_a_place_and_a_distance() -> None:
    assert read_goal({"xy": [3, 4.5], "tolerance": 1}) == ((3.0, 4.5), 1.0)
    with pytest.raises(DataFormatError, match=r"goal with xy .*, got \['drawer'\]"):
        read_goal({"drawer": 0.1})
