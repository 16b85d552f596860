"""Pictures of a maze: everything where it belongs, and a legend of what is drawn."""

import re
from typing import Any

import numpy as np
import pytest

from pipeline.pages.drawing import to_svg
from trainer.evaluation.environments import Episode, MazeMap
from trainer.subgoals.maze_chart import (
    MazeScene,
    draw_policy,
    draw_recorded,
    draw_values,
)
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


def read_title(axes: Any) -> str:
    return axes.get_title(loc="left")


def test_the_pictures_show_data_values_and_paths() -> None:
    figures = [
        draw(scene(True, False)) for draw in (draw_recorded, draw_values, draw_policy)
    ]
    for figure in figures:
        figure.canvas.draw()
    (recorded,), (values, bar), (policy,) = (figure.axes for figure in figures)
    assert read_title(recorded) == "Recorded: 2 of 7 episodes"
    assert read_title(policy) == "Policy: 1 of 2 episodes solved"
    assert bar.get_xlabel() == "V: -1 a step"
    # V lies where its cells are, and nothing is drawn in the wall.
    (image,) = values.get_images()
    assert tuple(image.get_extent()) == (9.0, 15.0, -2.0, 2.0)
    assert image.get_array().mask.tolist() == [[False, True, False], [False] * 3]
    # Arrows lead from where the first episode was to its sub-goals.
    assert [(arrow.xyann, arrow.xy) for arrow in values.texts] == [
        ((10.0, 1.0), (10.5, 1.5)),
        ((12.0, 1.0), (12.5, 1.5)),
    ]
    for axes in (recorded, values, policy):
        (wall,) = [patch for patch in axes.patches if hasattr(patch, "get_xy")]
        assert (wall.get_xy(), wall.get_width()) == ((11.0, -2.0), 2.0)
        (goal,) = [patch for patch in axes.patches if not hasattr(patch, "get_xy")]
        assert (goal.center, goal.radius) == ((14.0, -1.0), 0.5)
    paths = [line for line in policy.lines if len(line.get_xdata()) > 2]
    assert [line.get_linestyle() for line in paths] == ["-", "--"]


@pytest.mark.parametrize(
    ("successes", "wanted", "unwanted"),
    [
        ((True, True), "reaches the goal, in 3 steps on average", "does not"),
        ((False, False), "does not reach the goal", "reaches"),
    ],
)
def test_the_legend_explains_what_is_drawn(
    successes: tuple[bool, ...], wanted: str, unwanted: str
) -> None:
    (legend,) = draw_policy(scene(*successes)).legends
    said = [text.get_text() for text in legend.get_texts()]
    assert said.count(wanted) == 1
    assert not any(unwanted in text for text in said)
    assert "goal: within 0.5 m (circle) counts" in said
    (legend,) = draw_values(scene(*successes)).legends
    said = [text.get_text() for text in legend.get_texts()]
    assert "from a state of episode 0 to its sub-goal" in said


def test_the_pictures_can_be_read_on_a_narrow_screen() -> None:
    for draw in (draw_recorded, draw_values, draw_policy):
        text = to_svg(draw(scene(True, False))).decode()
        assert "prefers-color-scheme: dark" in text
        width = float(re.findall(r'viewBox="0 0 ([\d.]+)', text)[0])
        sizes = [
            float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)px", text)
        ]
        # A screen of 400 px leaves 368 px for a picture.
        assert len(sizes) > 5
        assert min(sizes) * 368 / width >= 12
