"""The picture of a maze: everything where it belongs, and a legend of what is there."""

from typing import Any

import numpy as np
import pytest

from trainer.evaluation.environments import Episode, MazeMap
from trainer.subgoals.maze_chart import MazeScene, maze_chart
from trainer.subgoals.traces import Trace

# Two rows of three cells of 2 m; the middle of the first row is a wall.
MAZE = MazeMap(((False, True, False), (False, False, False)), 2.0, (10.0, -1.0))


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
