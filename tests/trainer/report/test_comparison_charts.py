"""Pictures of methods: what is equal, or nothing, is seen all the same."""

import itertools
from typing import Any

import numpy as np
from matplotlib.colors import to_hex

from pipeline.pages.drawing import CYCLE
from tests.evaluated import evaluation
from trainer.report.comparison_charts import (
    THRESHOLDS,
    Bar,
    draw_bars,
    draw_curves,
    draw_improvements,
    draw_profiles,
)
from trainer.report.methods import Results

METHODS = ("vast", "iql", "fql")


def made(method: str, *solved: int) -> Results:
    """A method that was evaluated at 1, 2, ... updates."""
    evaluations = [evaluation(step, 0, rate) for step, rate in enumerate(solved, 1)]
    return Results(method, ("some data", 1), evaluations, [method])


def dashes(axes: Any) -> list[tuple[float, tuple[float, ...]]]:
    """Offset and lengths of every line, in widths of the line."""
    return [
        (offset / line.get_linewidth(), tuple(np.array(on_off) / line.get_linewidth()))
        for line in axes.lines
        for offset, on_off in [line._dash_pattern]
        if on_off is not None
    ]


def test_markers_of_equal_points_lie_within_each_other() -> None:
    results = [made("vast", 2, 9), made("iql", 2, 0), made("fql", 2, 0)]
    axes: Any
    (axes,) = draw_curves("a title", results, METHODS).axes
    assert [line.get_ydata().tolist() for line in axes.lines] == [
        *([20, 90], [20, 0], [20, 0])
    ]
    sizes = [line.get_markersize() for line in axes.lines]
    assert sizes == sorted(sizes, reverse=True)
    assert min(a - b for a, b in itertools.pairwise(sizes)) >= 2
    assert {line.get_markerfacecolor() for line in axes.lines} == {"none"}


def test_a_curve_is_the_mean_of_as_many_seeds_as_its_label_says() -> None:
    ahead = [evaluation(step, 0, 9) for step in (1, 2)]
    behind = [evaluation(1, seed, 0) for seed in (1, 2)]
    apart = [evaluation(2 + seed, seed, 5) for seed in range(3)]
    results = [
        Results("vast", ("some data", 1), [*ahead, *behind], ["vast"]),
        Results("iql", ("some data", 1), apart, ["iql"]),
    ]
    axes: Any
    (axes,) = draw_curves("a title", results, METHODS).axes
    vast, iql = axes.lines[:2]
    # Not 90 % at the second step, at which two of the three seeds are missing.
    assert (vast.get_xdata().tolist(), vast.get_ydata().tolist()) == ([1], [30])
    assert (vast.get_label(), iql.get_label()) == ("vast (3)", "iql (1 of 3)")
    assert iql.get_xdata().tolist() == [2, 3, 4]


def test_equal_lines_fill_each_others_gaps() -> None:
    results = [made("vast", 2, 9), made("iql", 0, 0), made("fql", 0, 0)]
    axes: Any
    (axes,) = draw_curves("a title", results, METHODS).axes
    assert axes.lines[0].get_linestyle() == "-"
    # Both are drawn for three widths in six, the second where the first is not.
    assert dashes(axes) == [(0, (3, 3)), (3, (3, 3))]
    shares = np.zeros(101)
    band = (shares, shares)
    (axes,) = draw_profiles(dict.fromkeys(METHODS, (shares, band)), METHODS).axes
    assert [offset for offset, _ in dashes(axes)] == [0, 3, 6]
    assert len(shares) == len(THRESHOLDS)


def test_a_bar_of_nothing_is_seen() -> None:
    axes: Any
    (axes,) = draw_bars({"data": [Bar("vast", 0.0, None)]}, METHODS).axes
    (bar,) = axes.patches
    assert bar.get_width() == 0
    assert to_hex(bar.get_edgecolor()) == CYCLE[0]
    assert bar.get_linewidth() >= 3
    assert axes.get_xlim()[0] < 0


def test_bars_of_nine_methods_are_told_apart() -> None:
    methods = [f"method {number}" for number in range(9)]
    bars = [Bar(method, 0.5, None) for method in methods]
    axes: Any
    (axes,) = draw_bars({"data": bars}, methods).axes
    looks = {(to_hex(bar.get_edgecolor()), bar.get_fill()) for bar in axes.patches}
    assert len(looks) == 9


def test_points_at_the_end_of_an_axis_are_whole() -> None:
    bar = Bar("iql", 1.0, (1.0, 1.0))
    (axes,) = draw_improvements("vast", [bar]).axes
    assert not axes.lines[-1].get_clip_on()
