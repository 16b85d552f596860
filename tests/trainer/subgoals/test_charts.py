"""Pictures of sub-goals: no cell is empty, and text is read on a narrow screen."""

import base64
import re

import numpy as np
import pytest

from pipeline.pages.drawing import to_svg
from trainer.subgoals.charts import SceneFrame, draw_errors, draw_scene
from trainer.subgoals.traces import Comparison

IMAGE = np.zeros((36, 48, 3), np.uint8)
TITLE = "Sub-goals after 2,000,000 updates; the episode is not solved in 1,000 steps"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 9])
def test_no_cell_is_empty(count: int) -> None:
    frames = [SceneFrame(IMAGE, f"step {index}") for index in range(count)]
    figure = draw_scene(frames, TITLE, "how to read it")
    figure.canvas.draw()
    assert [axes.get_xlabel() for axes in figure.axes] == [
        frame.caption for frame in frames
    ]
    middles = [(axes.bbox.x0 + axes.bbox.x1) / 2 for axes in figure.axes]
    # Of an odd number the last frame stands in the middle of its row.
    if count % 2:
        assert middles[-1] == pytest.approx(figure.bbox.width / 2, rel=0.03)
    widths = {round(axes.bbox.width) for axes in figure.axes}
    assert max(widths) - min(widths) <= 0.05 * max(widths)


def test_text_is_inside_its_picture() -> None:
    note = "Solid: now. Pale and transparent: the sub-goal, as it was predicted. " * 3
    figure = draw_scene([SceneFrame(IMAGE, "step 0")] * 2, TITLE, note)
    figure.canvas.draw()
    title, below = figure.texts
    assert " ".join(title.get_text().split()) == TITLE
    assert " ".join(below.get_text().split()) == note.strip()
    for text in (title, below):
        box = text.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= figure.bbox.width


def test_pictures_can_be_read_on_a_narrow_screen() -> None:
    horizons = np.array([1, 2, 2, 3])
    errors = np.array([0.1, 0.2, 0.3, 0.4])
    comparison = Comparison(horizons, horizons, horizons, errors, errors, 2 * errors)
    frames = [SceneFrame(IMAGE, "step 0")] * 2
    for figure in (draw_errors(comparison, horizons, 5), draw_scene(frames, "a", "b")):
        text = to_svg(figure).decode()
        width = float(re.findall(r'viewBox="0 0 ([\d.]+)', text)[0])
        sizes = [
            float(size) for size in re.findall(r"font(?:-size)?: ([\d.]+)px", text)
        ]
        # A screen of 400 px leaves 368 px for a picture.
        assert len(sizes) >= 4
        assert min(sizes) * 368 / width >= 12


def test_rendered_scenes_are_jpeg_and_plots_lossless() -> None:
    # Noise, of which PNG saves nothing.
    pixels = np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8)
    frames = [SceneFrame(pixels, "step 0")] * 2
    lossless = to_svg(draw_scene(frames, "a", "b"))
    small = to_svg(draw_scene(frames, "a", "b"), rendered=True)
    assert lossless.count(b"data:image/png;base64,") == 2
    assert b"image/png" not in small
    images = re.findall(rb"data:image/jpeg;base64,([^\"]+)", small)
    assert [base64.b64decode(image)[:2] for image in images] == [b"\xff\xd8"] * 2
    assert len(small) < 0.6 * len(lossless)
    assert to_svg(draw_scene(frames, "a", "b"), rendered=True) == small
