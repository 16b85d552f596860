"""Pictures of one run: learning curves and what they rest on.

Every function takes data and returns a figure, or None where the data for it were
never logged. Colours are Okabe and Ito's, told apart by people who see colours
differently; lines also differ in style or are labelled where they end.
"""

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pipeline.store.errors import MissingPackageError

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import (
        EngFormatter,
        MaxNLocator,
        PercentFormatter,
    )
except ImportError as error:
    raise MissingPackageError(
        f"drawing a report needs matplotlib ({error}); pip install 'vast-rl[report]'"
    ) from error

from trainer.report.axes import log_scale, place_legend
from trainer.report.paper import PaperResult
from trainer.runs.evaluations import Evaluation
from trainer.runs.history import VALIDATION, Float64, History
from trainer.runs.success_rates import pool_by_step, pool_returns, select_largest

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, BLACK, GREY = "#CC79A7", "#56B4E9", "#222222", "#8A8A8A"
_CYCLE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK)
_STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), "-")

_SIZE = (6.4, 3.9)
_DPI = 150
_BAND = 0.18


def to_png(figure: Figure) -> bytes:
    """A figure as a file; without a date or version, equal data give equal files."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


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
    figure, axes = _figure()
    seeds = sorted({evaluation.seed for evaluation in chosen})
    if len(seeds) > 1:
        for seed in seeds:
            own = pool_by_step([each for each in chosen if each.seed == seed])
            axes.plot(
                list(own),
                [100 * score.rate for score in own.values()],
                color=SKY,
                linewidth=1,
                marker=".",
                markersize=4,
                zorder=2,
                label="each training seed" if seed == seeds[0] else None,
            )
    pooled = pool_by_step(chosen)
    steps = list(pooled)
    rates = np.array([100 * score.rate for score in pooled.values()])
    ends = 100 * np.array([score.interval for score in pooled.values()])
    counts = sorted({score.episodes for score in pooled.values()})
    episodes = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    axes.errorbar(
        steps,
        rates,
        yerr=np.abs(ends.T - rates),
        color=BLUE,
        linewidth=2.2,
        marker="o",
        markersize=5,
        capsize=3,
        elinewidth=1.2,
        zorder=3,
        label=f"all seeds, {episodes} episodes, 95 % interval",
    )
    if len(steps) > 1:
        axes.fill_between(steps, ends[:, 0], ends[:, 1], color=BLUE, alpha=_BAND, lw=0)
    if paper is not None and paper.mean is not None:
        axes.axhline(
            paper.mean,
            color=VERMILION,
            linestyle="--",
            linewidth=1.4,
            zorder=1,
            label=f"paper, {paper.method} at 1M updates: {paper}",
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
    _finish(axes, "Success rate", steps=steps, unit="share of episodes")
    place_legend(figure, axes)
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
    figure, axes = _figure()
    seeds = sorted({evaluation.seed for evaluation in chosen})
    for seed in seeds if len(seeds) > 1 else ():
        own = sorted(
            (each for each in chosen if each.seed == seed), key=lambda each: each.step
        )
        axes.plot(
            [each.step for each in own],
            [each.mean_return for each in own],
            color=SKY,
            linewidth=1,
            marker=".",
            markersize=4,
            zorder=2,
            label="each training seed" if seed == seeds[0] else None,
        )
    pooled = [pool_returns([e for e in chosen if e.step == step]) for step in steps]
    means = np.array([each.mean for each in pooled])
    ends = np.array([each.interval or (each.mean, each.mean) for each in pooled])
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
        label=f"all seeds, {pooled[-1].episodes} episodes, 95 % interval",
    )
    if len(steps) > 1:
        axes.fill_between(steps, ends[:, 0], ends[:, 1], color=BLUE, alpha=_BAND, lw=0)
    _finish(axes, "Mean return", steps=steps, unit="undiscounted return")
    place_legend(figure, axes)
    return figure


def loss_chart(history: History) -> Figure | None:
    """Every logged loss against updates, on a logarithmic axis."""
    names = [
        name
        for name in history.names()
        if name.endswith("_loss") and not name.startswith(VALIDATION)
    ]
    if not names:
        return None
    figure, axes = _figure()
    for index, name in enumerate(names):
        _line(
            axes,
            history,
            name,
            name.removesuffix("_loss").replace("_", " "),
            color=_CYCLE[index % len(_CYCLE)],
            style=_STYLES[index % len(_STYLES)],
        )
    unit = log_scale(axes, "loss")
    _finish(axes, "Losses", steps=history.steps, unit=unit)
    place_legend(figure, axes)
    return figure


def validation_chart(history: History) -> Figure | None:
    """Loss and errors on held-out windows, beside those of the training windows."""
    names = history.names()
    if f"{VALIDATION}loss" not in names:
        return None
    segments = "segment_error" in names
    size = (4 * (2 + segments), _SIZE[1])
    figure = Figure(figsize=size, dpi=_DPI, layout="constrained")
    first, *between, last = figure.subplots(1, 2 + segments)
    _trained_and_held_out(first, history, "loss")
    _finish(first, "Loss", steps=history.steps, unit=log_scale(first, "loss"))
    for axes in between:
        _trained_and_held_out(axes, history, "segment_error")
        axes.set_ylim(bottom=0)
        unit = "mean |G − window's return|"
        _finish(axes, "Error of G", steps=history.steps, unit=unit)
    name = f"{VALIDATION}return_error"
    _line(last, history, name, "held-out windows", color=BLUE, style="--")
    last.set_ylim(bottom=0)
    unit = "mean |value − stored return|"
    _finish(last, "Values of actions", steps=history.steps, unit=unit)
    place_legend(figure, first)
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
    figure = Figure(figsize=(_SIZE[0], _SIZE[1] + 0.7), dpi=_DPI, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1))
    _line(above, history, "value", "mean of V in the batches", color=BLUE)
    if "value_max" in history.names():
        _line(above, history, "value_max", "largest V", color=ORANGE, style="-.")
    above.axhline(
        return_max,
        color=VERMILION,
        linestyle="--",
        linewidth=1.4,
        label=f"best return in the data: {return_max:.3g}",
    )
    _finish(above, "State values", steps=(), unit="discounted return")
    if "over_estimation" in history.names():
        steps, values = history.steps, 100 * history.scalar("over_estimation")
        _band(below, steps, values, color=BLUE, label=None)
        below.set_ylim(-3, 103)
        below.yaxis.set_major_formatter(PercentFormatter(decimals=0))
    _finish(below, "", steps=history.steps, unit="V above\nthat return")
    place_legend(figure, above)
    return figure


def segment_error_chart(history: History) -> Figure | None:
    """Error of G against the recorded returns of windows, by horizon and over time."""
    first, last = (_segment_error(history, point) for point in (0, -1))
    if first is None or last is None:
        return None
    figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    if "segment_error" in history.names():
        values = history.scalar("segment_error")
        _band(left, history.steps, values, color=BLUE, label=None)
    left.set_ylim(bottom=0)
    _finish(left, "Error of G", steps=history.steps, unit="mean |G − window's return|")
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
    _finish(right, "by length of the window", steps=None, unit="")
    right.set_xlabel("horizon k (environment steps)")
    place_legend(figure, right)
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
    figure, axes = _figure()
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
    _finish(axes, "Weights in the stitching loss", steps=history.steps, unit=unit)
    place_legend(figure, axes)
    return figure


def horizon_chart(history: History) -> Figure | None:
    """Horizons the stitching policy draws, beside those of the training windows."""
    drawn, first = (history.vector("drawn_by_horizon", point) for point in (-1, 0))
    windows = history.vector("windows_by_horizon", -1)
    if drawn is None or first is None or windows is None or not drawn.sum():
        return None
    figure, axes = _figure()
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
    _finish(axes, "Horizons", steps=None, unit="share of samples")
    axes.set_xlabel("horizon k (environment steps)")
    place_legend(figure, axes)
    return figure


def _segment_error(history: History, point: int) -> Float64 | None:
    """Mean error by horizon ``f64[K + 1]``; NaN where there were no windows."""
    total = history.vector("segment_error_by_horizon", point)
    windows = history.vector("windows_by_horizon", point)
    if total is None or windows is None:
        return None
    return np.where(windows > 0, total / np.maximum(windows, 1), np.nan)


def _figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=_SIZE, dpi=_DPI, layout="constrained")
    return figure, figure.subplots()


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
    _band(
        axes,
        history.steps[logged],
        values[:, logged],
        color=color,
        label=label,
        style=style,
    )


def _band(
    axes: Axes,
    steps: npt.NDArray[np.int64],
    values: Float64,
    *,
    color: str,
    label: str | None,
    style: object = "-",
) -> None:
    """Draws the mean over seeds ``f64[Q, N]``, and a band over all of them."""
    known = np.ma.masked_invalid(values)
    axes.plot(
        steps,
        known.mean(axis=0),
        color=color,
        linestyle=style,
        linewidth=1.8,
        label=label,
        marker="o" if len(steps) == 1 else None,
    )
    if len(values) > 1:
        low, high = known.min(axis=0), known.max(axis=0)
        axes.fill_between(steps, low, high, color=color, alpha=_BAND, linewidth=0)


def _finish(
    axes: Axes,
    title: str,
    *,
    steps: Sequence[int] | npt.NDArray[np.int64] | None,
    unit: str,
) -> None:
    """Title, units and frame, the same for all; steps None: another axis than time."""
    if title:
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=BLACK)
    axes.set_ylabel(unit)
    if steps is not None:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
        axes.set_xlim(left=0)
        if len(steps):
            axes.set_xlabel("updates")
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def _period(history: History, point: int) -> str:
    """The updates that a log point is about."""
    index = range(len(history.steps))[point]
    start = int(history.steps[index - 1]) if index else 0
    return f"updates {start:,} to {int(history.steps[index]):,}"
