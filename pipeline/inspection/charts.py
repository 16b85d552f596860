"""Pictures of a store, each drawn onto one pair of axes.

The store's page shows every picture as a file of its own, from a sample of the
episodes. `inspect --plot` draws them side by side, from all rows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm, to_rgb
from matplotlib.ticker import EngFormatter, MaxNLocator, MultipleLocator

from pipeline.inspection.histograms import Histogram, PlaceMap
from pipeline.inspection.sample import Episode
from pipeline.pages.drawing import (
    BLACK,
    BLUE,
    CYCLE,
    GREY,
    STYLES,
    VERMILION,
    finish,
    label_x,
    legend_below,
    new_axes,
    plain,
    to_svg,
)
from pipeline.store.manifest import Statistics

# Lines of more components touch each other on a picture of 360 units.
MAX_COMPONENTS = 120
_FEW_BARS = 10
_TEXT = 12


def make_svg(draw: Callable[..., None], *arguments: object) -> bytes:
    """Draws a picture of its own, with the legend below.

    Args:
        draw: One of the functions of this module.
        *arguments: What it takes after the axes.
    """
    figure, axes = new_axes()
    draw(axes, *arguments)
    legend_below(figure, axes)
    return to_svg(figure)


def draw_lengths(axes: Axes, lengths: Histogram) -> None:
    """Draws how many episodes have which length, in transitions."""
    draw_bars(axes, lengths, lengths.counts)
    if len(lengths.counts) == 1:
        # A lone bar as wide as the picture would look like an empty frame.
        middle = lengths.edges[0] + 0.5
        axes.set_xlim(middle - 1.5, middle + 1.5)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    finish(axes, "Lengths of episodes", steps=None, unit="episodes")
    label_x(axes, "steps")


def draw_bars(axes: Axes, histogram: Histogram, heights: npt.NDArray[Any]) -> Any:
    """Draws a histogram; bars of a few whole numbers stand apart, each with its tick.

    Args:
        axes: The axes.
        histogram: Edges of the bars.
        heights: ``[N]``, the counts or what is computed from them.

    Returns:
        Matplotlib's bars, in order.
    """
    edges = histogram.edges
    few = histogram.whole and len(heights) <= _FEW_BARS
    widths = np.diff(edges)
    bars = axes.bar(
        edges[:-1] + widths / 2, heights, widths * (0.7 if few else 1), color=BLUE
    )
    if few:
        axes.set_xticks(edges[:-1] + 0.5)
        axes.set_xlim(edges[0] - 0.2, edges[-1] + 0.2)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=histogram.whole))
    return bars


def draw_ranges(axes: Axes, name: str, known: Statistics) -> None:
    """Draws range, mean and deviation of the components of a field."""
    index = choose_components(known)
    low, high, mean, std = (
        np.array(values)[index]
        for values in (known.minimum, known.maximum, known.mean, known.std)
    )
    # Bars get thinner with their number, so that they do not touch.
    thick = max(2.0, 7 - 0.1 * len(index))
    axes.vlines(index, low, high, color=BLUE, linewidth=1, label="range")
    axes.vlines(
        index,
        mean - std,
        mean + std,
        color=BLUE,
        linewidth=thick,
        label="mean ± deviation",
    )
    # Wider than the bar, so that a mean is seen against the page as well.
    axes.plot(
        index,
        mean,
        "_",
        color=VERMILION,
        markersize=max(4.0, 2 * thick),
        markeredgewidth=2,
        label="mean",
    )
    axes.set_xlim(-0.7, len(known.mean) - 0.3)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    finish(axes, f"{name.capitalize()} by component", steps=None, unit="value")
    label_x(axes, "component")


def choose_components(known: Statistics) -> npt.NDArray[np.int64]:
    """Chooses the components to draw: all, or so many at even distances."""
    count = min(len(known.mean), MAX_COMPONENTS)
    return np.linspace(0, len(known.mean) - 1, count).round().astype(np.int64)


def draw_places(axes: Axes, places: PlaceMap) -> None:
    """Draws where on the floor of a maze rows are."""
    # One colour that light and dark pages show, fainter where there are fewer rows.
    shades = [(*to_rgb(BLUE), alpha) for alpha in np.linspace(0.15, 1, 64)]
    image = axes.imshow(
        np.ma.masked_equal(places.rows.T, 0),
        origin="lower",
        extent=places.extent,
        cmap=ListedColormap(shades),
        # Cells at goals hold a thousand times as many rows as others.
        norm=LogNorm(1, max(2.0, places.rows.max())),
        interpolation="nearest",
    )
    bar = axes.figure.colorbar(image, ax=axes, format=lambda rows, _: f"{rows:,g}")
    # Above the bar: beside it, the label would read as that of the next axes. It ends
    # where the bar does, because the layout leaves no room for text beyond it.
    bar.ax.set_title("rows in\na cell", loc="right", fontsize=_TEXT, color=BLACK)
    bar.ax.tick_params(which="both", labelsize=_TEXT, labelcolor=BLACK, color=GREY)
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MultipleLocator(5 if max(places.extent) < 30 else 10))
    finish(axes, "Where in the maze", steps=None, unit="y (m)")
    label_x(axes, "x (m)")
    axes.grid(visible=False)


def draw_stretches(
    axes: Axes, episodes: Sequence[Episode], names: Sequence[str]
) -> None:
    """Draws how long solved stretches are.

    Args:
        axes: The axes.
        episodes: The sample, in which at least one row is solved.
        names: Names of the tasks to draw, which are the first tasks of the store.
    """
    for task, name in enumerate(names):
        lengths = np.concatenate([episode.stretches[task] for episode in episodes])
        if len(lengths):
            _draw_share_above(axes, lengths, name, task)
    # Rows are whole, also where all stretches are of one length.
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    left, right = axes.get_xlim()
    if right - left < 1:
        axes.set_xlim(0, right + 1)
    # Stretches range from single rows to whole episodes.
    if axes.get_xlim()[1] > 30:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda rows, _: f"{rows:,g}")
    finish(axes, "Solved stretches", steps=None, unit="share as long or longer (%)")
    axes.set_ylim(0, 103)
    label_x(axes, "solved rows without a break")


def draw_returns(
    axes: Axes,
    episodes: Sequence[Episode],
    names: Sequence[str],
    discount: float,
    index: int,
) -> None:
    """Draws the returns of episodes from their first row on.

    Args:
        axes: The axes.
        episodes: The sample.
        names: Names of the tasks to draw, which are the first tasks of the store.
        discount: Discount of the returns.
        index: Position of the discount in the store.
    """
    for task, name in enumerate(names):
        returns = np.array([episode.returns[index, task] for episode in episodes])
        _draw_share_above(axes, returns, name, task)
    axes.set_ylim(0, 103)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    unit = "share that high or higher (%)"
    finish(axes, f"Returns, discount {discount:g}", steps=None, unit=unit)
    label_x(axes, "discounted return of an episode")


def _draw_share_above(
    axes: Axes, values: npt.NDArray[np.generic], name: str, index: int
) -> None:
    """Draws which share of the values, in percent, is as large as x or larger."""
    ordered, counts = np.unique(values, return_counts=True)
    share = 100 * (len(values) - np.cumsum(counts) + counts) / len(values)
    # The curve falls to 0 beyond the largest value; between two values the share is
    # that of the larger one.
    axes.step(
        np.r_[ordered, ordered[-1]],
        np.r_[share, 0],
        where="pre",
        color=CYCLE[index % len(CYCLE)],
        linestyle=STYLES[index % len(STYLES)],
        linewidth=1.8,
        label=plain(name.replace("_", " ")),
    )
