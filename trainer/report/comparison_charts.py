"""Pictures of methods beside each other: curves, bars by data set, rliable's two."""

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

# Points: the marker of the method drawn last, how much larger the one before is, and
# what it may not exceed.
_MARKER, _MARKER_STEP, _LARGEST_MARKER = 4.5, 2.2, 12.0
# In widths of the line: long enough to show its colour, short enough to repeat.
_DASH = 3.0


@dataclass(frozen=True)
class Bar:
    """A share of one method with its interval.

    Attributes:
        method: Name of the method.
        share: The share, in [0, 1].
        interval: Its 95 % interval; None where there are too few seeds for one.
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
    drawn = [(result.method, *result.curve()) for result in results]
    looks = _separate({method: np.nanmean(rates, 0) for method, _, rates in drawn})
    for method, steps, rates in drawn:
        band(
            *(axes, steps, 100 * rates),
            **(_style(methods, method) | looks[method]),
            label=wrapped(f"{method} ({len(rates)})"),
        )
    _show_percent(axes.yaxis)
    axes.set_ylim(-3, 103)
    updates = {int(step) for _, steps, _ in drawn for step in steps}
    finish(axes, plain(title), steps=sorted(updates), unit="success rate")
    legend_below(figure, axes)
    return figure


def draw_bars(groups: Mapping[str, Sequence[Bar]], methods: Sequence[str]) -> Figure:
    """Draws interquartile means of success by data set, a bar for each method."""
    count = sum(len(group) + 1 for group in groups.values())
    figure = figure_of(height=0.2 + 0.085 * count)
    axes = figure.subplots()
    row = 0
    for dataset, group in groups.items():
        axes.text(0, row - 0.55, plain(dataset), fontsize=12, color=BLACK, va="bottom")
        for bar in group:
            color = _style(methods, bar.method)["color"]
            axes.barh(
                *(row, 100 * bar.share, 0.7),
                color=color,
                # The edge is what is seen of a bar of 0 %.
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
    axes.set_ylim(row - 1.4, -1.7)
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
        profiles: By method, shares ``f64[N]`` at ``THRESHOLDS`` and the ends of their
            band.
        methods: All methods of the report.

    Returns:
        The figure.
    """
    figure, axes = new_axes()
    looks = _separate({method: shares for method, (shares, _) in profiles.items()})
    for method, (shares, (low, high)) in profiles.items():
        look = _style(methods, method) | looks[method]
        axes.step(
            *(100 * THRESHOLDS, 100 * shares),
            where="post",
            linewidth=2,
            label=wrapped(method),
            # Steps at a hundred thresholds leave no space for markers.
            **(look | {"marker": None}),
        )
        axes.fill_between(
            *(100 * THRESHOLDS, 100 * low, 100 * high),
            step="post",
            color=look["color"],
            alpha=0.2,
            linewidth=0,
        )
    axes.set_xlim(0, 100)
    axes.set_ylim(-3, 103)
    _show_percent(axes.xaxis)
    _show_percent(axes.yaxis)
    finish(axes, "Performance profile", steps=None, unit="share of runs above")
    label_x(axes, "success rate")
    legend_below(figure, axes)
    return figure


def draw_improvements(ours: str, others: Sequence[Bar]) -> Figure:
    """Draws how probably a run of one method beats a run of each other method."""
    figure = figure_of(height=0.42 + 0.14 * len(others))
    axes = figure.subplots()
    axes.axvline(50, color=GREY, linewidth=1.2, linestyle="--")
    for row, bar in enumerate(others):
        # Not clipped: half of a point at 0 or 100 % lies outside of the axes.
        if bar.interval is not None:
            ends = [100 * end for end in bar.interval]
            axes.plot(ends, [row, row], color=BLUE, linewidth=2.4, clip_on=False)
        axes.plot(
            100 * bar.share, row, "o", color=BLUE, markersize=7, clip_on=False, zorder=3
        )
        text = f"{plain(bar.method)}: {100 * bar.share:.0f} %"
        axes.text(1, row - 0.2, text, fontsize=12, color=BLACK, va="bottom")
    axes.set_xlim(0, 100)
    axes.set_ylim(len(others) - 0.6, -0.9)
    axes.set_yticks(())
    _show_percent(axes.xaxis)
    finish(axes, f"{plain(ours, letters=18)} better than", steps=None, unit="")
    axes.grid(visible=False, axis="y")
    label_x(axes, "probability that one run beats another")
    return figure


def _style(methods: Sequence[str], method: str) -> dict[str, Any]:
    """Colour, line and marker of a method, the same in all pictures."""
    index = list(methods).index(method)
    return {
        "color": CYCLE[index % len(CYCLE)],
        "linestyle": STYLES[(index + index // len(CYCLE)) % len(STYLES)],
        "marker": MARKERS[index % len(MARKERS)],
    }


def _separate(lines: Mapping[str, Float64]) -> dict[str, dict[str, Any]]:
    """What keeps methods of equal values apart, without moving any of their points.

    Args:
        lines: By method, the values drawn; lines of other steps differ in length.

    Returns:
        By method: hollow markers that lie within each other, the first the largest;
        and of lines that are equal everywhere, dashes of which each fills the gaps
        that the others leave.
    """
    step = min(_MARKER_STEP, (_LARGEST_MARKER - _MARKER) / max(1, len(lines) - 1))
    looks: dict[str, dict[str, Any]] = {}
    for index, method in enumerate(lines):
        looks[method] = {
            "markersize": _MARKER + step * (len(lines) - 1 - index),
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
            looks[method]["dash_capstyle"] = "butt"
    return looks


def _show_percent(axis: Axis) -> None:
    axis.set_major_formatter(PercentFormatter(decimals=0))
