"""A maze from above: its geometry, V over its cells, and the picture."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from tests.stores import write_store
from trainer.evaluation.environments import Episode, MazeMap
from trainer.subgoals.maze import (
    find_extent,
    list_points,
    map_values,
    read_goal,
    read_paths,
)
from trainer.subgoals.maze_chart import MazeScene, maze_chart
from trainer.subgoals.traces import Trace

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


def scene(*successes: bool) -> MazeScene:
    """Episodes that walk along the second row, ever the same."""
    path = np.array([[10.0, 1.0], [12.0, 1.0], [14.0, 1.0]], np.float32)
    return MazeScene(
        maze=MAZE,
        goal=(14.0, -1.0),
        tolerance_m=0.5,
        recorded=[path, path + 0.1],
        recorded_episodes=7,
        values=np.array([[-1.0, np.nan, -3.0], [-4.0, -5.0, -6.0]]),
        value_unit="-1 a step",
        traces=[
            Trace(
                Episode(index, success, -3.0, 3),
                path,
                np.zeros((3, 2), np.float32),
                np.ones(3, np.float32),
                path + np.float32(0.5),
            )
            for index, success in enumerate(successes)
        ],
        arrows=2,
    )


def texts(axes: Any) -> str:
    return axes.get_title(loc="left") + " " + axes.get_xlabel()


def test_the_picture_shows_data_values_and_paths() -> None:
    figure = maze_chart(scene(True, False), "a title")
    figure.canvas.draw()
    recorded, learnt, acted, bar = figure.axes
    assert figure.get_suptitle() == "a title"
    assert "2 of 7 recorded episodes" in texts(recorded)
    assert "1 of 2 episodes reach the goal" in texts(acted)
    assert bar.get_ylabel() == "V (-1 a step)"
    # V lies where its cells are, and nothing is drawn in the wall.
    (image,) = learnt.get_images()
    assert tuple(image.get_extent()) == (9.0, 15.0, -2.0, 2.0)
    assert image.get_array().mask.tolist() == [[False, True, False], [False] * 3]
    # Arrows lead from where the first episode was to its sub-goals.
    assert [(arrow.xyann, arrow.xy) for arrow in learnt.texts] == [
        ((10.0, 1.0), (10.5, 1.5)),
        ((12.0, 1.0), (12.5, 1.5)),
    ]
    for axes in (recorded, learnt, acted):
        (wall,) = [each for each in axes.patches if hasattr(each, "get_xy")]
        assert (wall.get_xy(), wall.get_width()) == ((11.0, -2.0), 2.0)
        (goal,) = [each for each in axes.patches if not hasattr(each, "get_xy")]
        assert (goal.center, goal.radius) == ((14.0, -1.0), 0.5)
    lines = [line for line in acted.lines if len(line.get_xdata()) > 1]
    assert [line.get_linestyle() for line in lines] == ["-", "--"]


@pytest.mark.parametrize(
    ("successes", "wanted", "unwanted"),
    [((True,), ", reaching", "not reaching"), ((False,), "not reaching", ", reaching")],
)
def test_the_legend_explains_what_is_there(
    successes: tuple[bool, ...], wanted: str, unwanted: str
) -> None:
    (legend,) = maze_chart(scene(*successes), "a title").legends
    said = " ".join(text.get_text() for text in legend.get_texts())
    assert wanted in said
    assert unwanted not in said
    assert "within 0.5 m" in said
