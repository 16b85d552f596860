"""Pictures of sub-goals: how far off they are, and where they lie in the scene."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from pipeline.domains.frames import Image
from pipeline.pages.drawing import (
    BLACK,
    BLUE,
    GREY,
    SKY,
    VERMILION,
    figure_of,
    finish,
    label_x,
    legend_below,
)
from trainer.subgoals.traces import Comparison, Int64, mean_by_horizon

_COLUMNS = 2
# Letters of a line that is as wide as a picture, in the sizes of its title and text.
_TITLE_LETTERS, _TEXT_LETTERS = 40, 54
_TITLE, _TEXT = 13.5, 12


@dataclass(frozen=True)
class SceneFrame:
    """One moment of a rollout.

    Attributes:
        image: ``u8[height, width, 3]``.
        caption: Text below it, of short lines.
    """

    image: Image
    caption: str


def draw_errors(comparison: Comparison, drawn: Int64, max_horizon: int) -> Figure:
    """Draws horizons along rollouts, and errors of the states predicted with them.

    Args:
        comparison: Predictions of the rollouts beside the states that came.
        drawn: ``i64[T]``, horizons of all steps, also of those that were not compared.
        max_horizon: Maximum horizon K.

    Returns:
        The figure.
    """
    figure = figure_of(height=2.35)
    above, middle, below = figure.subplots(3, 1)
    horizons = np.arange(max_horizon + 1)
    counts = np.bincount(drawn, minlength=max_horizon + 1)[: max_horizon + 1]
    above.bar(horizons, 100 * counts / len(drawn), 0.8, color=SKY)
    above.set_xlim(0.4, max_horizon + 0.6)
    finish(above, "Horizons drawn", steps=None, unit="share of steps")
    label_x(above, "horizon k (environment steps)")

    errors, changes = comparison.relative_errors, comparison.relative_changes
    # Without the few largest, which would squeeze all others into one bin.
    largest = max(float(np.quantile(np.r_[errors, changes, 0.1], 0.995)), 0.1)
    bins = np.linspace(0, largest, 31)
    for distances, color, style, label in (
        (changes, GREY, "--", "if nothing moved: the state now"),
        (errors, BLUE, "-", "the predicted sub-goal"),
    ):
        shares = np.full(len(distances), 100 / max(len(distances), 1))
        clipped = np.minimum(distances, largest)
        middle.hist(clipped, bins, weights=shares, color=color, alpha=0.65)
        below.plot(
            horizons,
            mean_by_horizon(distances, comparison.horizons, max_horizon),
            color=color,
            marker="o",
            markersize=3,
            linewidth=1.8,
            linestyle=style,
            label=label,
        )
    finish(middle, "Error of the sub-goal", steps=None, unit="share of steps")
    label_x(middle, "standard deviations of the data")
    below.axhline(
        np.sqrt(2),
        color=VERMILION,
        linewidth=1.2,
        linestyle=":",
        label="two unrelated states",
    )
    below.set_ylim(bottom=0)
    below.set_xlim(0, max_horizon + 1)
    finish(below, "Error by horizon", steps=None, unit="std of the data")
    label_x(below, "horizon k (environment steps)")
    for axes in (above, middle):
        axes.yaxis.set_major_formatter(PercentFormatter(decimals=0))
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    for axes in (above, below):
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    legend_below(figure, below)
    return figure


def draw_scene(frames: Sequence[SceneFrame], title: str, note: str) -> Figure:
    """Arranges moments of one rollout, each with its sub-goal as a ghost.

    Args:
        frames: Moments in order, at least one.
        title: Title of the picture.
        note: Text below the frames: how to read them.

    Returns:
        The figure.

    References:
        After figure 4 of the paper: solid arm now, transparent arm at the sub-goal.
    """
    columns = min(len(frames), _COLUMNS)
    rows = -(-len(frames) // columns)
    # Text is wrapped here because matplotlib's own wrapping does not make room for it.
    titles = textwrap.wrap(title, _TITLE_LETTERS, break_on_hyphens=False)
    lines = textwrap.wrap(note, _TEXT_LETTERS, break_on_hyphens=False)
    captions = max(frame.caption.count("\n") + 1 for frame in frames)
    figure = figure_of()
    width = float(figure.get_figwidth())
    height, length, _ = frames[0].image.shape
    row = width / columns * height / length + 0.21 * captions + 0.05
    text = 0.24 * len(titles) + 0.21 * len(lines) + 0.3
    figure.set_size_inches(width, rows * row + text)
    figure.suptitle(
        "\n".join(titles),
        x=0.01,
        ha="left",
        fontsize=_TITLE,
        fontweight="bold",
        color=BLACK,
    )
    # Two cells of the grid for a frame: one that is alone in its row takes the middle.
    grid = figure.add_gridspec(rows, 2 * columns)
    for index, frame in enumerate(frames):
        row_of_frame, column = divmod(index, columns)
        alone = column == 0 and index == len(frames) - 1
        first = columns - 1 if alone else 2 * column
        axes = figure.add_subplot(grid[row_of_frame, first : first + 2])
        # Pixels as they were rendered: whoever shows the picture scales them.
        axes.imshow(frame.image, interpolation="none")
        axes.set_xlabel(frame.caption, fontsize=_TEXT, color=BLACK)
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=_TEXT, color=BLACK)
    return figure
