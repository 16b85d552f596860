"""Pictures of one run: learning curves and what they rest on.

Every function takes data and returns a figure, or None where the data for it were
never logged. Words are those of a reader who has not seen the code.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from pipeline.pages.drawing import (
    BLACK,
    BLUE,
    CYCLE,
    GREY,
    ORANGE,
    SKY,
    STYLES,
    VERMILION,
    band,
    figure_of,
    finish,
    label_x,
    legend_below,
    log_scale,
    new_axes,
    plain,
)
from trainer.report.paper import PaperResult
from trainer.runs.evaluations import Evaluation
from trainer.runs.history import VALIDATION, Float64, History
from trainer.runs.success_rates import pool_by_step, pool_returns, select_largest

_BAND = 0.2
# What the losses are of, in words; others are called what the agent calls them.
_LOSSES = {
    "segment": "return of a window, G",
    "value": "value of a state, V",
    "critic": "value of an action, Q",
    "stitch": "policy over sub-goals",
    "exec": "policy over actions",
    "actor": "policy over actions",
    "flow": "cloning by a flow",
    "distill": "one-step policy: cloning",
    "improve": "one-step policy: improving",
}


def success_chart(
    evaluations: Sequence[Evaluation], paper: PaperResult | None
) -> Figure | None:
    """Success rate against updates, with Wilson's intervals of the pooled episodes.

    Args:
        evaluations: Of one run.
        paper: The paper's number for the task, drawn for comparison.

    Returns:
        The figure; None if there are no evaluations that report success.
    """
    chosen = [each for each in select_largest(evaluations) if each.successes]
    if not chosen:
        return None
    figure, axes = new_axes()
    seeds = sorted({evaluation.seed for evaluation in chosen})
    lines = []
    for seed in seeds:
        own = pool_by_step([each for each in chosen if each.seed == seed])
        rates_of_seed = [100 * score.rate for score in own.values()]
        lines.append((list(own), rates_of_seed))
    pooled = pool_by_step(chosen)
    steps = list(pooled)
    rates = np.array([100 * score.rate for score in pooled.values()])
    ends = 100 * np.array([score.interval for score in pooled.values()])
    counts = sorted({score.episodes for score in pooled.values()})
    episodes = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    label = f"{_seeds(seeds)}, 95 % interval, {episodes} episodes"
    _draw_pooled(axes, lines, steps, rates, ends, label)
    if paper is not None and paper.mean is not None:
        axes.axhline(
            paper.mean,
            color=VERMILION,
            linestyle="--",
            linewidth=1.4,
            zorder=1,
            label=f"paper: {paper.method} after 1M, {paper}",
        )
        if paper.std:
            axes.axhspan(
                max(0, paper.mean - paper.std),
                min(100, paper.mean + paper.std),
                color=VERMILION,
                alpha=0.1,
                linewidth=0,
                zorder=0,
            )
    axes.set_ylim(-3, 103)
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    finish(axes, "Success rate", steps=steps, unit="share of episodes")
    legend_below(figure, axes)
    return figure


def return_chart(evaluations: Sequence[Evaluation]) -> Figure | None:
    """Mean return against updates, with bootstrap intervals of the pooled episodes.

    Args:
        evaluations: Of one run, in one environment.

    Returns:
        The figure; None if there are no evaluations.
    """
    chosen = select_largest(evaluations)
    if not chosen:
        return None
    steps = sorted({evaluation.step for evaluation in chosen})
    figure, axes = new_axes()
    seeds = sorted({evaluation.seed for evaluation in chosen})
    lines = []
    for seed in seeds:
        own = sorted(
            (each for each in chosen if each.seed == seed), key=lambda each: each.step
        )
        lines.append(([each.step for each in own], [each.mean_return for each in own]))
    pooled = [pool_returns([e for e in chosen if e.step == step]) for step in steps]
    means = np.array([each.mean for each in pooled])
    ends = np.array([each.interval or (each.mean, each.mean) for each in pooled])
    label = f"{_seeds(seeds)}, 95 % interval, {pooled[-1].episodes} episodes"
    _draw_pooled(axes, lines, steps, means, ends, label)
    finish(axes, "Mean return", steps=steps, unit="undiscounted return")
    legend_below(figure, axes)
    return figure


def _draw_pooled(
    axes: Axes,
    lines: Sequence[tuple[Sequence[int], Sequence[float]]],
    steps: Sequence[int],
    means: Float64,
    ends: Float64,
    label: str,
) -> None:
    """A thin line for each training seed, a thick one with intervals for all of them.

    Args:
        axes: To draw in.
        lines: Steps and values of each seed; not drawn if there is one.
        steps: Of all seeds.
        means: ``f64[steps]``, over all seeds.
        ends: ``f64[steps, 2]``, of their intervals.
        label: Of all seeds.
    """
    for number, (own_steps, values) in enumerate(lines if len(lines) > 1 else ()):
        axes.plot(
            own_steps,
            values,
            color=SKY,
            linewidth=1,
            marker=".",
            markersize=4,
            zorder=2,
            label=None if number else "each training seed",
        )
    axes.errorbar(
        steps,
        means,
        yerr=np.abs(ends.T - means),
        color=BLUE,
        linewidth=2.2,
        marker="o",
        markersize=5,
        capsize=3,
        elinewidth=1.2,
        zorder=3,
        label=label,
    )
    if len(steps) > 1:
        axes.fill_between(steps, ends[:, 0], ends[:, 1], color=BLUE, alpha=_BAND, lw=0)


def loss_chart(history: History) -> Figure | None:
    """Every logged loss against updates, on a logarithmic axis."""
    names = [
        name
        for name in history.names()
        if name.endswith("_loss") and not name.startswith(VALIDATION)
    ]
    if not names:
        return None
    figure, axes = new_axes()
    for index, name in enumerate(names):
        _line(
            axes,
            history,
            name,
            _loss_in_words(name),
            color=CYCLE[index % len(CYCLE)],
            style=STYLES[index % len(STYLES)],
        )
    unit = log_scale(axes, "loss")
    finish(axes, "Losses", steps=history.steps, unit=unit)
    legend_below(figure, axes)
    return figure


def validation_chart(history: History) -> Figure | None:
    """Loss and errors on held-out windows, beside those of the training windows."""
    names = history.names()
    if f"{VALIDATION}loss" not in names:
        return None
    segments = "segment_error" in names
    figure = figure_of(height=0.8 * (2 + segments))
    first, *between, last = figure.subplots(2 + segments, 1)
    _trained_and_held_out(first, history, "loss")
    finish(first, "Loss", steps=(), unit=log_scale(first, "loss"))
    for axes in between:
        _trained_and_held_out(axes, history, "segment_error")
        axes.set_ylim(bottom=0)
        finish(axes, "Error of G", steps=(), unit="mean error")
    name = f"{VALIDATION}return_error"
    _line(last, history, name, "held-out windows", color=BLUE, style="--")
    last.set_ylim(bottom=0)
    finish(last, "Values of actions", steps=history.steps, unit="mean error")
    legend_below(figure, first, last)
    return figure


def _trained_and_held_out(axes: Axes, history: History, name: str) -> None:
    _line(axes, history, name, "training windows", color=GREY)
    _line(
        axes,
        history,
        f"{VALIDATION}{name}",
        "held-out windows",
        color=BLUE,
        style="--",
    )


def value_chart(history: History, return_max: float) -> Figure | None:
    """V against the best return in the data: values above it are over-estimated.

    Args:
        history: Of the run.
        return_max: Largest discounted return in the data.

    Returns:
        The figure; None if V was not logged.
    """
    if "value" not in history.names():
        return None
    figure = figure_of(height=1.4)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1))
    _line(above, history, "value", "mean of V", color=BLUE)
    if "value_max" in history.names():
        _line(above, history, "value_max", "largest V", color=ORANGE, style="-.")
    above.axhline(
        return_max,
        color=VERMILION,
        linestyle="--",
        linewidth=1.4,
        label=f"best return in the data, {return_max:.3g}",
    )
    finish(above, "State values", steps=(), unit="discounted return")
    if "over_estimation" in history.names():
        steps, values = history.steps, 100 * history.scalar("over_estimation")
        band(below, steps, values, color=BLUE, label=None)
        below.set_ylim(-3, 103)
        below.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    finish(below, "", steps=history.steps, unit="V above it")
    legend_below(figure, above)
    return figure


def segment_error_chart(history: History) -> Figure | None:
    """Error of G against the recorded returns of windows, by horizon and over time."""
    first, last = (_segment_error(history, point) for point in (0, -1))
    if first is None or last is None:
        return None
    figure = figure_of(height=1.6)
    left, right = figure.subplots(2, 1)
    if "segment_error" in history.names():
        values = history.scalar("segment_error")
        band(left, history.steps, values, color=BLUE, label=None)
    left.set_ylim(bottom=0)
    finish(left, "Error of G", steps=history.steps, unit="mean error")
    for error, point, color, style in (
        (first, 0, GREY, "--"),
        (last, -1, BLUE, "-"),
    ):
        right.plot(
            np.arange(len(error)),
            error,
            style,
            color=color,
            linewidth=2,
            label=_period(history, point),
        )
    right.set_ylim(bottom=0)
    right.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    finish(right, "The same by length of the window", steps=None, unit="mean error")
    label_x(right, "window of k environment steps")
    legend_below(figure, right)
    return figure


def weight_chart(history: History, max_weight: float | None) -> Figure | None:
    """Weights of the stitching policy's samples: how selective it is.

    Args:
        history: Of the run.
        max_weight: Where weights are clipped, drawn if they come near it.

    Returns:
        The figure; None if weights were not logged.
    """
    if "weight" not in history.names():
        return None
    figure, axes = new_axes()
    _line(axes, history, "weight", "mean", color=BLUE)
    if "weight_max" in history.names():
        _line(axes, history, "weight_max", "largest", color=ORANGE, style="-.")
        largest = history.scalar("weight_max")
        if max_weight is not None and np.nanmax(largest) > max_weight / 10:
            axes.axhline(
                max_weight,
                color=VERMILION,
                linestyle="--",
                linewidth=1.4,
                label=f"clipped at {max_weight:g}",
            )
    unit = log_scale(axes, "weight")
    finish(axes, "Weights of recorded windows", steps=history.steps, unit=unit)
    legend_below(figure, axes)
    return figure


def horizon_chart(history: History) -> Figure | None:
    """Horizons the stitching policy draws, beside those of the training windows."""
    drawn, first = (history.vector("drawn_by_horizon", point) for point in (-1, 0))
    windows = history.vector("windows_by_horizon", -1)
    if drawn is None or first is None or windows is None or not drawn.sum():
        return None
    figure, axes = new_axes()
    horizons = np.arange(len(drawn))
    axes.bar(
        horizons,
        100 * drawn / drawn.sum(),
        width=0.8,
        color=SKY,
        label=f"drawn, {_period(history, -1)}",
    )
    axes.step(
        horizons,
        100 * windows / windows.sum(),
        where="mid",
        color=BLACK,
        linewidth=1.6,
        label="windows in the data",
    )
    if len(history.steps) > 1:
        axes.step(
            horizons,
            100 * first / first.sum(),
            where="mid",
            color=VERMILION,
            linewidth=1.2,
            linestyle="--",
            label=f"drawn, {_period(history, 0)}",
        )
    axes.set_xlim(0.4, len(drawn) - 0.4)
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    finish(axes, "Horizons", steps=None, unit="share of samples")
    label_x(axes, "horizon k (environment steps)")
    legend_below(figure, axes)
    return figure


def _loss_in_words(name: str) -> str:
    own = name.removesuffix("_loss")
    return plain(_LOSSES.get(own, own.replace("_", " ")))


def _seeds(seeds: Sequence[int]) -> str:
    """Whose episodes are pooled."""
    return "all seeds" if len(seeds) > 1 else "one seed"


def _segment_error(history: History, point: int) -> Float64 | None:
    """Mean error by horizon ``f64[K + 1]``; NaN where there were no windows."""
    total = history.vector("segment_error_by_horizon", point)
    windows = history.vector("windows_by_horizon", point)
    if total is None or windows is None:
        return None
    return np.where(windows > 0, total / np.maximum(windows, 1), np.nan)


def _line(
    axes: Axes,
    history: History,
    name: str,
    label: str,
    *,
    color: str,
    style: object = "-",
) -> None:
    """Draws one figure over training, from where it was logged to the next place."""
    values = history.scalar(name)
    logged = np.isfinite(values).any(axis=0)
    band(
        axes,
        history.steps[logged],
        values[:, logged],
        color=color,
        label=label,
        linestyle=style,
    )


def _period(history: History, point: int) -> str:
    """The updates that a log point is about."""
    index = range(len(history.steps))[point]
    start = int(history.steps[index - 1]) if index else 0
    return f"updates {start:,} to {int(history.steps[index]):,}"
