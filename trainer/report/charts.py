"""Pictures of one run: results, and curves of what was logged in training.

Every function takes data and returns a figure, or None where its data were never
logged. Labels are written for readers who have not seen the code.
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
from trainer.runs.success_rates import (
    group_by_step,
    mean_return,
    pool_by_step,
    pool_returns,
    select_largest,
)

# Opacity of bands: lines stay visible through two bands that overlap.
_BAND = 0.2
# What a loss trains, for readers; other losses have the name that the agent gives.
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


def draw_success(
    evaluations: Sequence[Evaluation], paper: PaperResult | None
) -> Figure | None:
    """Draws success rates against updates, with Wilson's intervals.

    Args:
        evaluations: Evaluations of one run.
        paper: The paper's number for the task, drawn for comparison.

    Returns:
        The figure; None if no evaluation reports success.
    """
    chosen = [played for played in select_largest(evaluations) if played.successes]
    if not chosen:
        return None
    figure, axes = new_axes()
    seeds = sorted({evaluation.seed for evaluation in chosen})
    lines = []
    for seed in seeds:
        own = pool_by_step([played for played in chosen if played.seed == seed])
        rates_of_seed = [100 * score.rate for score in own.values()]
        lines.append((list(own), rates_of_seed))
    pooled = pool_by_step(chosen)
    steps = list(pooled)
    rates = np.array([100 * score.rate for score in pooled.values()])
    ends = 100 * np.array([score.interval for score in pooled.values()])
    episodes = _name_counts([score.episodes for score in pooled.values()])
    label = f"{_name_seeds(seeds)}, 95 % interval, {episodes} episodes"
    _draw_pooled(axes, lines, steps, rates, ends, label)
    if paper is not None and paper.mean is not None:
        # A line over all updates, although the paper's number is that after a million:
        # few runs here are as long.
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
    # Points at 0 and 100 % must not be cut in half.
    axes.set_ylim(-3, 103)
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    finish(axes, "Success rate", steps=steps, unit="share of episodes")
    legend_below(figure, axes)
    return figure


def draw_returns(evaluations: Sequence[Evaluation]) -> Figure | None:
    """Draws mean returns against updates, with bootstrap intervals.

    Args:
        evaluations: Evaluations of one run in one environment.

    Returns:
        The figure; None without evaluations.
    """
    chosen = select_largest(evaluations)
    if not chosen:
        return None
    figure, axes = new_axes()
    seeds = sorted({evaluation.seed for evaluation in chosen})
    lines = []
    for seed in seeds:
        own = group_by_step(played for played in chosen if played.seed == seed)
        lines.append((list(own), [mean_return(group) for group in own.values()]))
    by_step = group_by_step(chosen)
    steps = list(by_step)
    pooled = [pool_returns(group) for group in by_step.values()]
    means = np.array([returns.mean for returns in pooled])
    # Of a single episode there is no interval: its ends are the mean.
    ends = np.array(
        [returns.interval or (returns.mean, returns.mean) for returns in pooled]
    )
    episodes = _name_counts([returns.episodes for returns in pooled])
    label = f"{_name_seeds(seeds)}, 95 % interval, {episodes} episodes"
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
    """Draws a thin line for each training seed and a thick one for all of them.

    Args:
        axes: Axes to draw in.
        lines: Steps and values of each seed; a single seed is not drawn by itself.
        steps: Steps at which any seed was evaluated.
        means: ``f64[steps]``, means over all seeds.
        ends: ``f64[steps, 2]``, ends of the intervals of the means.
        label: Label of the thick line.
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
        # Distances from the mean: an interval of a rate is not symmetric about it.
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


def draw_losses(history: History) -> Figure | None:
    """Draws every logged loss against updates, on a logarithmic axis."""
    names = list_losses(history)
    if not names:
        return None
    figure, axes = new_axes()
    for index, name in enumerate(names):
        _draw_line(
            axes,
            history,
            name,
            _describe_loss(name),
            color=CYCLE[index % len(CYCLE)],
            style=STYLES[index % len(STYLES)],
        )
    unit = log_scale(axes, "loss")
    finish(axes, "Losses", steps=history.steps, unit=unit)
    legend_below(figure, axes)
    return figure


def draw_validation(history: History) -> Figure | None:
    """Draws loss and errors on held-out windows beside those of training windows."""
    names = history.names()
    if f"{VALIDATION}loss" not in names:
        return None
    # Only agents that predict returns of windows have an error of G.
    segments = "segment_error" in names
    figure = figure_of(height=0.8 * (2 + segments))
    first, *between, last = figure.subplots(2 + segments, 1)
    _draw_both(first, history, "loss")
    finish(first, "Loss", steps=(), unit=log_scale(first, "loss"))
    for axes in between:
        _draw_both(axes, history, "segment_error")
        axes.set_ylim(bottom=0)
        finish(axes, "Error of G", steps=(), unit="mean error")
    # Only validation measures this error: there is no line of training windows.
    name = f"{VALIDATION}return_error"
    _draw_line(last, history, name, "held-out windows", color=BLUE, style="--")
    last.set_ylim(bottom=0)
    finish(last, "Values of actions", steps=history.steps, unit="mean error")
    legend_below(figure, first, last)
    return figure


def _draw_both(axes: Axes, history: History, name: str) -> None:
    """Draws a metric of the training windows and of the held-out ones."""
    _draw_line(axes, history, name, "training windows", color=GREY)
    _draw_line(
        axes,
        history,
        f"{VALIDATION}{name}",
        "held-out windows",
        color=BLUE,
        style="--",
    )


def draw_values(history: History, return_max: float) -> Figure | None:
    """Draws V against the best return in the data; V above it is over-estimated.

    Args:
        history: Metrics of the run.
        return_max: Largest discounted return in the data.

    Returns:
        The figure; None if V was not logged.
    """
    if "value" not in history.names():
        return None
    figure = figure_of(height=1.4)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1))
    _draw_line(above, history, "value", "mean of V", color=BLUE)
    if "value_max" in history.names():
        _draw_line(above, history, "value_max", "largest V", color=ORANGE, style="-.")
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
    finish(below, "", steps=history.steps, unit="share above")
    legend_below(figure, above)
    return figure


def draw_segment_errors(history: History) -> Figure | None:
    """Draws errors of G against the recorded returns, over training and by horizon."""
    first, last = (_mean_segment_error(history, point) for point in (0, -1))
    if first is None or last is None:
        return None
    figure = figure_of(height=1.6)
    above, below = figure.subplots(2, 1)
    if "segment_error" in history.names():
        values = history.scalar("segment_error")
        band(above, history.steps, values, color=BLUE, label=None)
    above.set_ylim(bottom=0)
    finish(above, "Error of G", steps=history.steps, unit="mean error")
    # Start and end of training: whether long windows are learned later than short ones.
    for error, point, color, style in (
        (first, 0, GREY, "--"),
        (last, -1, BLUE, "-"),
    ):
        below.plot(
            np.arange(len(error)),
            error,
            style,
            color=color,
            linewidth=2,
            label=_name_period(history, point),
        )
    below.set_ylim(bottom=0)
    below.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    finish(below, "Error of G by length of window", steps=None, unit="mean error")
    label_x(below, "window of k environment steps")
    legend_below(figure, below)
    return figure


def draw_weights(history: History, max_weight: float | None) -> Figure | None:
    """Draws weights of the windows that the policy over sub-goals learns from.

    Args:
        history: Metrics of the run.
        max_weight: Weight at which the agent clips; drawn if weights come near it.

    Returns:
        The figure; None if weights were not logged.
    """
    if "weight" not in history.names():
        return None
    figure, axes = new_axes()
    _draw_line(axes, history, "weight", "mean", color=BLUE)
    if "weight_max" in history.names():
        _draw_line(axes, history, "weight_max", "largest", color=ORANGE, style="-.")
        largest = history.scalar("weight_max")
        # Far above all weights, the line would squeeze them to the bottom.
        # All are NaN in a run that diverged at once.
        if max_weight is not None and np.any(largest > max_weight / 10):
            axes.axhline(
                max_weight,
                color=VERMILION,
                linestyle="--",
                linewidth=1.4,
                label=f"clipped at {max_weight:g}",
            )
    unit = log_scale(axes, "weight")
    finish(axes, "Weights in the loss", steps=history.steps, unit=unit)
    legend_below(figure, axes)
    return figure


def draw_horizons(history: History) -> Figure | None:
    """Draws horizons of the policy over sub-goals beside those of the windows."""
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
        label=f"drawn, {_name_period(history, -1)}",
    )
    axes.step(
        horizons,
        100 * windows / windows.sum(),
        where="mid",
        color=BLACK,
        linewidth=1.6,
        label="windows in the data",
    )
    # With a single log point the first is the last, which the bars show.
    if len(history.steps) > 1:
        axes.step(
            horizons,
            100 * first / first.sum(),
            where="mid",
            color=VERMILION,
            linewidth=1.2,
            linestyle="--",
            label=f"drawn, {_name_period(history, 0)}",
        )
    # Horizons start at 1: the array's first entry is empty.
    axes.set_xlim(0.4, len(drawn) - 0.4)
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(10, integer=True))
    finish(axes, "Horizons", steps=None, unit="share of samples")
    label_x(axes, "horizon k (environment steps)")
    legend_below(figure, axes)
    return figure


def list_losses(history: History) -> list[str]:
    """Lists the names of the losses of training windows that were logged."""
    return [
        name
        for name in history.names()
        if name.endswith("_loss") and not name.startswith(VALIDATION)
    ]


def _describe_loss(name: str) -> str:
    own = name.removesuffix("_loss")
    return plain(_LOSSES.get(own, own.replace("_", " ")))


def _name_seeds(seeds: Sequence[int]) -> str:
    return "all seeds" if len(seeds) > 1 else "one seed"


def _name_counts(counts: Sequence[int]) -> str:
    """Names the episodes of checkpoints, which may be of unequal numbers."""
    least, most = min(counts), max(counts)
    return str(least) if least == most else f"{least} to {most}"


def _mean_segment_error(history: History, point: int) -> Float64 | None:
    """Averages errors by horizon at a log point: ``f64[K + 1]``, NaN if no windows."""
    total = history.vector("segment_error_by_horizon", point)
    windows = history.vector("windows_by_horizon", point)
    if total is None or windows is None:
        return None
    return np.where(windows > 0, total / np.maximum(windows, 1), np.nan)


def _draw_line(
    axes: Axes,
    history: History,
    name: str,
    label: str,
    *,
    color: str,
    style: object = "-",
) -> None:
    """Draws a metric over training, through the points at which it was logged."""
    values = history.scalar(name)
    # Metrics that are logged less often than others are NaN in between.
    logged = np.isfinite(values).any(axis=0)
    band(
        axes,
        history.steps[logged],
        values[:, logged],
        color=color,
        label=label,
        linestyle=style,
    )


def _name_period(history: History, point: int) -> str:
    """Names the updates over which a log point's metrics are averaged."""
    index = range(len(history.steps))[point]
    start = int(history.steps[index - 1]) if index else 0
    return f"updates {start:,} to {int(history.steps[index]):,}"
