"""Draws pictures that compare methods.

The pictures are curves of success, bars by data set, and the two that the library
rliable introduced: performance profiles and probabilities of improvement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from pipeline.pages.drawing import (
    BLACK,
    BLUE,
    CYCLE,
    GREY,
    MARKERS,
    STYLES,
    band,
    figure_of,
    finish,
    label_x,
    legend_below,
    new_axes,
    plain,
    wrapped,
)
from trainer.report.comparisons import Float64, Interval
from trainer.report.methods import Results

# Success rates at which performance profiles are evaluated.
THRESHOLDS = np.linspace(0.0, 1.0, 101)

# Sizes of markers in points: that of the method drawn last, the increase for each
# method drawn before, and the upper limit.
_MARKER, _MARKER_STEP, _LARGEST_MARKER = 4.5, 2.2, 12.0
# Length of a dash in line widths. A shorter dash hides its colour; with a longer one a
# short line may end before all methods have had a dash.
_DASH = 3.0
# Limits of an axis of percent. Markers and lines at 0 and 100 % would be cut in half by
# limits of 0 and 100.
_LIMITS = (-3, 103)


@dataclass(frozen=True)
class Bar:
    """The figure that a picture shows for one method.

    Attributes:
        method: Name of the method.
        share: Success rate or probability of improvement, in [0, 1].
        interval: 95 % interval of the share; None if there are too few seeds for one.
    """

    method: str
    share: float
    interval: Interval | None


def draw_curves(
    title: str, results: Sequence[Results], methods: Sequence[str]
) -> Figure:
    """Draws success of methods in one task against updates; bands span the seeds.

    Args:
        title: Title of the picture.
        results: Results in the task, one of each method.
        methods: All methods of the report, so that each looks alike in all pictures.

    Returns:
        The figure.
    """
    figure, axes = new_axes()
    curves = [(result.method, *result.curve()) for result in results]
    looks = _separate({method: np.nanmean(rates, 0) for method, _, rates in curves})
    for method, steps, rates in curves:
        look = _choose_style(methods, method) | looks[method]
        # The number of seeds is part of the label, because methods may differ in it.
        # Seeds that were never evaluated at one step have no common mean.
        seeds, most = f"{len(rates)}", np.isfinite(rates).sum(axis=0).max()
        if most < len(rates):
            seeds = f"{most} of {seeds}"
        label = wrapped(f"{method} ({seeds})")
        band(axes, steps, 100 * rates, label=label, **look)
    _show_percent(axes.yaxis)
    axes.set_ylim(*_LIMITS)
    updates = {int(step) for _, steps, _ in curves for step in steps}
    finish(axes, plain(title), steps=sorted(updates), unit="success rate")
    legend_below(figure, axes)
    return figure


def draw_bars(groups: Mapping[str, Sequence[Bar]], methods: Sequence[str]) -> Figure:
    """Draws interquartile means of success by data set, a bar for each method.

    Args:
        groups: Bars of the methods, by data set.
        methods: All methods of the report.

    Returns:
        The figure.
    """
    # A row for each bar, and one above each group for the name of its data set.
    count = sum(len(group) + 1 for group in groups.values())
    figure = figure_of(height=0.2 + 0.085 * count)
    axes = figure.subplots()
    row = 0
    for dataset, group in groups.items():
        axes.text(0, row - 0.55, plain(dataset), fontsize=12, color=BLACK, va="bottom")
        for bar in group:
            color = _choose_style(methods, bar.method)["color"]
            axes.barh(
                row,
                100 * bar.share,
                height=0.7,
                color=color,
                # Colours repeat from the ninth method on, of which the paper has nine.
                fill=list(methods).index(bar.method) < len(CYCLE),
                # A bar of 0 % has no area: only its edge is visible.
                edgecolor=color,
                linewidth=3,
                label=wrapped(bar.method),
            )
            end = bar.share
            if bar.interval is not None:
                low, high = bar.interval
                axes.plot(
                    [100 * low, 100 * high], [row, row], color=BLACK, linewidth=1.6
                )
                end = max(end, high)
            text = f"{100 * bar.share:.0f} %"
            axes.text(100 * end + 2, row, text, fontsize=12, color=BLACK, va="center")
            row += 1
        row += 1
    # The axis is reversed, so that the first data set is at the top.
    axes.set_ylim(row - 1.4, -1.7)
    # Beyond 100 is space for the number beside a bar of 100 %.
    axes.set_xlim(-1.5, 115)
    axes.set_xticks(range(0, 101, 25))
    axes.set_yticks(())
    _show_percent(axes.xaxis)
    finish(axes, "Success, by data set", steps=None, unit="")
    axes.grid(visible=False, axis="y")
    label_x(axes, "interquartile mean of seeds and tasks")
    legend_below(figure, axes)
    return figure


def draw_profiles(
    profiles: Mapping[str, tuple[Float64, tuple[Float64, Float64]]],
    methods: Sequence[str],
) -> Figure:
    """Draws performance profiles: the share of runs above each success rate.

    Args:
        profiles: By method, shares ``f64[N]`` at ``THRESHOLDS``, and the lower and
            upper ends of their band, each ``f64[N]``.
        methods: All methods of the report.

    Returns:
        The figure.
    """
    figure, axes = new_axes()
    looks = _separate({method: shares for method, (shares, _) in profiles.items()})
    for method, (shares, (low, high)) in profiles.items():
        # Steps at a hundred thresholds leave no space for markers.
        look = _choose_style(methods, method) | looks[method] | {"marker": None}
        label = wrapped(method)
        rates = 100 * THRESHOLDS
        axes.step(rates, 100 * shares, where="post", linewidth=2, label=label, **look)
        axes.fill_between(
            rates,
            100 * low,
            100 * high,
            step="post",
            color=look["color"],
            alpha=0.2,
            linewidth=0,
        )
    axes.set_xlim(0, 100)
    axes.set_ylim(*_LIMITS)
    _show_percent(axes.xaxis)
    _show_percent(axes.yaxis)
    finish(axes, "Performance profile", steps=None, unit="share of runs above")
    label_x(axes, "success rate")
    legend_below(figure, axes)
    return figure


def draw_improvements(ours: str, others: Sequence[Bar]) -> Figure:
    """Draws the probabilities that a run of one method beats a run of each other.

    Args:
        ours: Name of the method that is compared with all others.
        others: Probability that ours beats a method, by the name of that method.

    Returns:
        The figure.
    """
    figure = figure_of(height=0.42 + 0.14 * len(others))
    axes = figure.subplots()
    axes.axvline(50, color=GREY, linewidth=1.2, linestyle="--")
    for row, bar in enumerate(others):
        # Nothing is clipped, because half of a point at 0 or 100 % is outside the axes.
        if bar.interval is not None:
            ends = [100 * end for end in bar.interval]
            axes.plot(ends, [row, row], color=BLUE, linewidth=2.4, clip_on=False)
        axes.plot(
            100 * bar.share, row, "o", color=BLUE, markersize=7, clip_on=False, zorder=3
        )
        text = f"{plain(bar.method)}: {100 * bar.share:.0f} %"
        axes.text(1, row - 0.2, text, fontsize=12, color=BLACK, va="bottom")
    axes.set_xlim(0, 100)
    # The axis is reversed, so that the first method is at the top.
    axes.set_ylim(len(others) - 0.6, -0.9)
    axes.set_yticks(())
    _show_percent(axes.xaxis)
    finish(axes, f"{plain(ours, letters=18)} better than", steps=None, unit="")
    axes.grid(visible=False, axis="y")
    label_x(axes, "probability that one run beats another")
    return figure


def _choose_style(methods: Sequence[str], method: str) -> dict[str, Any]:
    """Chooses colour, line and marker of a method, the same in all pictures."""
    index = list(methods).index(method)
    # Colours repeat from the ninth method on. Line styles are shifted by one then, so
    # that no two of 16 methods have both the same colour and the same line.
    return {
        "color": CYCLE[index % len(CYCLE)],
        "linestyle": STYLES[(index + index // len(CYCLE)) % len(STYLES)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def _separate(lines: Mapping[str, Float64]) -> dict[str, dict[str, Any]]:
    """Chooses looks by which lines that cover each other can be told apart.

    Lines often cover each other, because many methods succeed always or never. No point
    is moved, since readers take its height for the success rate.

    Args:
        lines: Values drawn, by method. Lines may differ in length.

    Returns:
        Properties of the lines, by method. Markers are hollow, and the first method's
        are the largest, so that markers at one point are nested. Lines that are equal
        everywhere are dashed, and the dashes of one fill the gaps of the others.
    """
    increase = min(_MARKER_STEP, (_LARGEST_MARKER - _MARKER) / max(1, len(lines) - 1))
    looks: dict[str, dict[str, Any]] = {}
    for index, method in enumerate(lines):
        looks[method] = {
            "markersize": _MARKER + increase * (len(lines) - 1 - index),
            "markerfacecolor": "none",
            "markeredgewidth": 1.4,
        }
    groups: dict[tuple[float, ...], list[str]] = {}
    for method, values in lines.items():
        groups.setdefault(tuple(values.tolist()), []).append(method)
    for group in groups.values():
        for index, method in enumerate(group if len(group) > 1 else ()):
            gaps = _DASH * (len(group) - 1)
            looks[method]["linestyle"] = (_DASH * index, (_DASH, gaps))
            # Any other cap would lengthen a dash into the gap after it.
            looks[method]["dash_capstyle"] = "butt"
    return looks


def _show_percent(axis: Axis) -> None:
    axis.set_major_formatter(PercentFormatter(decimals=0))
