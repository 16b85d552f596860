"""Pictures of sub-goals: every cell of the grid is filled, titles are whole."""

import numpy as np
import pytest

from trainer.subgoals.charts import SceneFrame, scene_chart

IMAGE = np.zeros((36, 48, 3), np.uint8)
TITLE = "a data set of a long name, task 1: sub-goals after 2,000 updates (not solved)"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 8, 9])
def test_no_cell_is_empty(count: int) -> None:
    frames = [SceneFrame(IMAGE, f"step {index}") for index in range(count)]
    figure = scene_chart(frames, TITLE, "how to read it")
    shown = [axes.get_xlabel() for axes in figure.axes if axes.get_visible()]
    assert shown == [frame.caption for frame in frames]
    assert len(figure.axes) == count


def test_a_title_is_inside_its_picture() -> None:
    figure = scene_chart([SceneFrame(IMAGE, "step 0")], TITLE, "how to read it")
    figure.canvas.draw()
    (title,) = [text for text in figure.texts if text.get_text().startswith("a data")]
    assert " ".join(title.get_text().split()) == TITLE
    box = title.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
