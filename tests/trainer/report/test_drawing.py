"""Pictures by day and by night: contrast, size of text, and names as text."""

import itertools
import re

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from pipeline.pages import drawing
from pipeline.pages.drawing import BLACK, CYCLE, DARK, GREY, GRID, to_svg
from tests.evaluated import RUN, evaluation
from trainer.report import charts


def luminance(colour: str) -> float:
    """As WCAG 2.2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts
    ]
    return sum(w * x for w, x in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_of_the_extremes() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("colour", sorted({*DARK} - {GRID}))
def test_colours_are_seen_on_either_page(colour: str) -> None:
    least = 4.5 if colour in (BLACK, GREY) else 3
    assert contrast(colour, drawing.PAGE) >= least
    assert contrast(DARK[colour], drawing.DARK_PAGE) >= least


def test_every_colour_has_one_for_the_night() -> None:
    assert set(CYCLE) <= set(DARK)
    assert len({*DARK.values()}) == len(DARK)
    assert all(
        re.fullmatch("#[0-9a-f]{6}", each) for each in itertools.chain(*DARK.items())
    )


def test_lines_of_one_style_have_colours_that_are_far_apart() -> None:
    looks = zip(CYCLE, drawing.STYLES, strict=True)
    alike = [
        (one, other)
        for (one, style), (other, same) in itertools.combinations(looks, 2)
        if style == same
    ]
    assert alike
    for pair in alike:
        one, other = (np.array(to_rgb(colour)) for colour in pair)
        assert np.linalg.norm(one - other) > 0.4


def picture() -> str:
    figure = charts.draw_success([evaluation(step, 0, 3) for step in (1, 2)], None)
    assert figure is not None
    return to_svg(figure).decode()


def test_a_picture_follows_light_and_dark_and_its_text_can_be_read() -> None:
    text = picture()
    body = text.partition("</style>")[2]
    # All that is painted has a colour that the style sheet knows.
    painted = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6})", body))
    assert len(painted) > 2
    assert painted <= set(DARK)
    width = float(re.findall(r'viewBox="0 0 ([\d.]+)', text)[0])
    sizes = [float(size) for size in re.findall(r"font-size: ([\d.]+)px", body)]
    # A screen of 400 px leaves 368 px for a picture.
    assert len(sizes) > 5
    assert min(sizes) * 368 / width >= 12
    assert text == picture()


def test_a_checkpoint_evaluated_twice_is_one_point_of_its_seeds_curve() -> None:
    twice = [
        evaluation(1, 0, 3),
        evaluation(1, 0, 3, evaluation_seed=1, episodes=30, returns=(-100.0,) * 30),
    ]
    figure = charts.draw_returns([*twice, evaluation(1, 1, 3), evaluation(2, 1, 3)])
    assert figure is not None
    (axes,) = figure.axes
    lines = [list(line.get_xdata()) for line in axes.lines]
    assert [1] in lines
    means = [list(line.get_ydata()) for line in axes.lines]
    assert [-125.0] in means  # 10 episodes of -200 and 30 of -100.
    (shown,) = [
        text.get_text()
        for text in figure.legends[0].get_texts()
        if "interval" in text.get_text()
    ]
    assert "10 to 50 episodes" in " ".join(shown.split())


def test_names_are_labels_and_no_formulas() -> None:
    figure, axes = drawing.new_axes()
    name = r"$\frac{1}{</text><script>alert(1)</script> " + "long " * 20
    axes.plot([0, 1], label=drawing.plain(name))
    drawing.legend_below(figure, axes)
    text = to_svg(figure).decode()
    assert "<script" not in text
    assert r"$\frac{1}{&lt;/text&gt;" in text
    assert RUN.dataset not in text


def test_names_alike_in_their_beginning_have_each_a_line_of_the_legend() -> None:
    figure, axes = drawing.new_axes()
    names = ["a method whose settings are many and long, " + end for end in "ab"]
    for name in names:
        axes.plot([0, 1], label=drawing.wrapped(name))
    drawing.legend_below(figure, axes)
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [" ".join(text.split()) for text in shown] == names
    assert all(len(line) <= 40 for text in shown for line in text.splitlines())
