"""Pictures of sub-goals: how far off they are, and where they lie in the scene."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.store.errors import MissingPackageError

try:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator, PercentFormatter
except ImportError as error:
    raise MissingPackageError(
        f"drawing sub-goals needs matplotlib ({error}); pip install 'vast-rl[report]'"
    ) from error

from pipeline.domains.frames import Image
from pipeline.pages.drawing import BLACK, BLUE, GREY, SKY, VERMILION
from trainer.subgoals.traces import Comparison, Int64, mean_by_horizon

_DPI = 150
_COLUMNS = (3, 2, 4)


@dataclass(frozen=True)
class SceneFrame:
    """One moment of a rollout.

    Attributes:
        image: ``u8[height, width, 3]``.
        caption: Below it.
    """

    image: Image
    caption: str


def error_chart(comparison: Comparison, drawn: Int64, max_horizon: int) -> Figure:
    """Horizons drawn along rollouts, and errors of the states predicted with them.

    Args:
        comparison: Of the rollouts.
        drawn: ``i64[T]``, horizons of all steps, also those that were not compared.
        max_horizon: K.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(9.6, 3.6), dpi=_DPI, layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 1.15))
    counts = np.bincount(drawn, minlength=max_horizon + 1)[: max_horizon + 1]
    left.bar(np.arange(max_horizon + 1), 100 * counts / len(drawn), 0.8, color=SKY)
    left.set_xlim(0.4, max_horizon + 0.6)
    left.set_title("Horizons drawn", loc="left", fontweight="bold", fontsize=11)
    left.set_xlabel("horizon k (environment steps)")
    left.set_ylabel("share of steps")

    errors, changes = comparison.relative_errors, comparison.relative_changes
    largest = max(float(np.quantile(np.r_[errors, changes, 0.1], 0.995)), 0.1)
    bins = np.linspace(0, largest, 31)
    for values, color, label in (
        (changes, GREY, "if nothing moved: from the state now"),
        (errors, BLUE, "the predicted sub-goal"),
    ):
        shares = np.full(len(values), 100 / max(len(values), 1))
        middle.hist(
            np.minimum(values, largest), bins, weights=shares, color=color, alpha=0.65
        )
        right.plot(
            np.arange(max_horizon + 1),
            mean_by_horizon(values, comparison.horizons, max_horizon),
            color=color,
            marker="o",
            markersize=3,
            linewidth=1.8,
            linestyle="--" if color == GREY else "-",
            label=label,
        )
    middle.set_title(
        "Error of the sub-goal", loc="left", fontweight="bold", fontsize=11
    )
    middle.set_xlabel("standard deviations of the data")
    middle.set_ylabel("share of steps")
    right.axhline(
        np.sqrt(2),
        color=VERMILION,
        linewidth=1.2,
        linestyle=":",
        label="two unrelated states",
    )
    right.set_ylim(bottom=0)
    right.set_xlim(0, max_horizon + 1)
    right.set_title("Error by horizon", loc="left", fontweight="bold", fontsize=11)
    right.set_xlabel("horizon k (environment steps)")
    right.set_ylabel("standard deviations of the data")
    for axes in (left, middle):
        axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    for axes in (left, middle, right):
        axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9)
        if axes is not middle:
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    handles, labels = right.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", frameon=False, fontsize=9, ncols=3
    )
    return figure


def scene_chart(frames: Sequence[SceneFrame], title: str, note: str) -> Figure:
    """Moments of one rollout, each with its sub-goal as a ghost.

    Args:
        frames: In order, at least one.
        title: Above them.
        note: Below them: how they are to be read.

    Returns:
        The figure.

    References:
        After figure 4 of the paper: solid arm now, transparent arm at the sub-goal.
    """
    columns = _columns(len(frames))
    rows = -(-len(frames) // columns)
    height, width, _ = frames[0].image.shape
    panel = 3.4
    lines = textwrap.wrap(
        note, width=round(columns * panel * 13), break_on_hyphens=False
    )
    titles = textwrap.wrap(
        title, width=round(columns * panel * 9), break_on_hyphens=False
    )
    figure = Figure(
        figsize=(
            columns * panel,
            rows * (panel * height / width + 0.3)
            + 0.2
            + 0.2 * len(titles)
            + 0.19 * len(lines),
        ),
        dpi=_DPI,
        layout="constrained",
    )
    figure.suptitle(
        "\n".join(titles),
        x=0.01,
        ha="left",
        fontsize=12,
        fontweight="bold",
        color=BLACK,
    )
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, frame in zip(grid, frames, strict=False):
        axes.imshow(frame.image)
        axes.set_xlabel(frame.caption, fontsize=9.5)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
    for axes in grid[len(frames) :]:
        axes.set_visible(False)
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=9.5, color=BLACK)
    return figure


def _columns(frames: int) -> int:
    """Columns that leave no cell empty, near three; three where there are none."""
    return next(
        (count for count in _COLUMNS if frames % count == 0), min(frames, _COLUMNS[0])
    )
