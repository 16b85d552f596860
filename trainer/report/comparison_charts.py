"""Pictures of methods beside each other: curves, bars by data set, rliable's two."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
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


@dataclass(frozen=True)
class Bar:
    """One figure with its interval.

    Attributes:
        method: Whose.
        value: In [0, 1].
        interval: At 95 %; None where there are too few seeds for one.
    """

    method: str
    value: float
    interval: Interval | None


def curves(title: str, results: Sequence[Results], methods: Sequence[str]) -> Figure:
    """Success of methods in one task against updates; bands span training seeds.

    Args:
        title: Above it.
        results: Of one task.
        methods: All of the report: a method looks alike in all of its pictures.

    Returns:
        The figure.
    """
    figure, axes = new_axes()
    steps: set[int] = set()
    for each in results:
        at, rates = each.curve()
        color, style, marker = _look(methods, each.method)
        label = wrapped(f"{each.method} ({len(rates)})")
        band(
            *(axes, at, 100 * rates),
            color=color,
            label=label,
            style=style,
            marker=marker,
        )
        steps |= set(at.tolist())
    _percent(axes.yaxis)
    axes.set_ylim(-3, 103)
    finish(axes, plain(title), steps=sorted(steps), unit="success rate")
    legend_below(figure, axes)
    return figure


def bars(groups: Mapping[str, Sequence[Bar]], methods: Sequence[str]) -> Figure:
    """Interquartile means of success by data set, a bar for each method."""
    count = sum(len(group) + 1 for group in groups.values())
    figure = figure_of(height=max(0.5, 0.085 * count))
    axes = figure.subplots()
    at = 0.0
    for name, group in groups.items():
        axes.text(0, at - 0.55, plain(name), fontsize=12, color=BLACK, va="bottom")
        for each in group:
            color, _, _ = _look(methods, each.method)
            axes.barh(
                at, 100 * each.value, 0.8, color=color, label=wrapped(each.method)
            )
            end = each.value
            if each.interval is not None:
                low, high = each.interval
                axes.plot([100 * low, 100 * high], [at, at], color=BLACK, linewidth=1.6)
                end = max(end, high)
            text = f"{100 * each.value:.0f} %"
            axes.text(100 * end + 1.5, at, text, fontsize=12, color=BLACK, va="center")
            at += 1
        at += 1
    axes.set_ylim(at - 1.4, -1.4)
    axes.set_xlim(0, 115)
    axes.set_xticks(range(0, 101, 25))
    axes.set_yticks(())
    _percent(axes.xaxis)
    finish(axes, "Success, by data set", steps=None, unit="")
    axes.grid(visible=False, axis="y")
    label_x(axes, "interquartile mean of seeds and tasks")
    legend_below(figure, axes)
    return figure


def profiles(
    lines: Mapping[str, tuple[Float64, tuple[Float64, Float64] | None]],
    thresholds: Float64,
    methods: Sequence[str],
) -> Figure:
    """Performance profiles: share of runs above each success rate.

    Args:
        lines: By method, shares ``f64[N]`` and the ends of their band.
        thresholds: ``f64[N]`` in [0, 1].
        methods: All of the report.

    Returns:
        The figure.
    """
    figure, axes = new_axes()
    for method, (shares, ends) in lines.items():
        color, style, _ = _look(methods, method)
        axes.step(
            *(100 * thresholds, 100 * shares),
            where="post",
            color=color,
            linestyle=style,
            linewidth=1.8,
            label=wrapped(method),
        )
        if ends is not None:
            low, high = ends
            axes.fill_between(
                *(100 * thresholds, 100 * low, 100 * high),
                step="post",
                color=color,
                alpha=0.2,
                linewidth=0,
            )
    axes.set_xlim(0, 100)
    axes.set_ylim(-3, 103)
    _percent(axes.xaxis)
    _percent(axes.yaxis)
    finish(axes, "Performance profile", steps=None, unit="share of runs above it")
    label_x(axes, "success rate")
    legend_below(figure, axes)
    return figure


def improvements(ours: str, others: Sequence[Bar]) -> Figure:
    """How probably a run of one method beats one of each other."""
    figure = figure_of(height=0.42 + 0.14 * len(others))
    axes = figure.subplots()
    axes.axvline(50, color=GREY, linewidth=1.2, linestyle="--")
    for row, each in enumerate(others):
        if each.interval is not None:
            low, high = each.interval
            axes.plot([100 * low, 100 * high], [row, row], color=BLUE, linewidth=2.4)
        axes.plot(100 * each.value, row, "o", color=BLUE, markersize=7)
        text = f"{plain(each.method)}: {100 * each.value:.0f} %"
        axes.text(1, row - 0.2, text, fontsize=12, color=BLACK, va="bottom")
    axes.set_xlim(0, 100)
    axes.set_ylim(len(others) - 0.6, -0.9)
    axes.set_yticks(())
    _percent(axes.xaxis)
    finish(axes, f"{plain(ours, letters=18)} better than", steps=None, unit="")
    axes.grid(visible=False, axis="y")
    label_x(axes, "probability, of single runs")
    return figure


def _look(methods: Sequence[str], method: str) -> tuple[str, object, str]:
    """Colour, style and marker of a method, the same in all pictures."""
    index = list(methods).index(method)
    return (
        CYCLE[index % len(CYCLE)],
        STYLES[(index + index // len(CYCLE)) % len(STYLES)],
        MARKERS[index % len(MARKERS)],
    )


def _percent(axis: object) -> None:
    axis.set_major_formatter(PercentFormatter(decimals=0))  # type: ignore[attr-defined]


THRESHOLDS = np.linspace(0.0, 1.0, 101)
