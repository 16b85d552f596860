"""Pictures of a store's page. Every function takes data and returns a figure."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.colors import ListedColormap, LogNorm, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

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
)
from pipeline.store.manifest import Statistics

MAX_COMPONENTS = 120
_BINS, _CELLS = 40, 60
_TEXT = 12


def length_chart(lengths: npt.NDArray[np.int64]) -> Figure:
    """How long episodes are, in transitions."""
    figure, axes = new_axes()
    steps = lengths - 1
    if steps.min() == steps.max():
        edges = np.array([steps.min() - 0.5, steps.min() + 0.5])
        axes.set_xlim(edges[0] - 2, edges[1] + 2)
    else:
        edges = np.histogram_bin_edges(steps, min(_BINS, int(np.ptp(steps)) + 1))
    axes.hist(steps, edges.tolist(), color=BLUE)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    finish(axes, "Lengths of episodes", steps=None, unit="episodes")
    label_x(axes, "steps")
    return figure


def range_chart(name: str, known: Statistics) -> Figure:
    """Range, mean and deviation of each component; evenly chosen ones of very many."""
    figure, axes = new_axes()
    index = choose_components(known)
    low, high, mean, std = (
        np.array(each)[index]
        for each in (known.minimum, known.maximum, known.mean, known.std)
    )
    thick = max(2.0, 7 - 0.1 * len(index))
    axes.vlines(index, low, high, color=BLUE, linewidth=1, label="range")
    axes.vlines(
        *(index, mean - std, mean + std),
        color=BLUE,
        linewidth=thick,
        label="mean ± deviation",
    )
    axes.plot(index, mean, "_", color=VERMILION, markersize=9, label="mean")
    axes.set_xlim(-0.7, len(known.mean) - 0.3)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    finish(axes, f"{name.capitalize()} by component", steps=None, unit="value")
    label_x(axes, "component")
    legend_below(figure, axes)
    return figure


def choose_components(known: Statistics) -> npt.NDArray[np.int64]:
    """Which components are drawn: all, or as many as can be told apart."""
    count = min(len(known.mean), MAX_COMPONENTS)
    return np.linspace(0, len(known.mean) - 1, count).round().astype(np.int64)


def place_chart(
    known: Statistics, places: Iterable[npt.NDArray[np.floating]]
) -> Figure:
    """Where on the floor of a maze rows are.

    Args:
        known: Of qpos, whose first two components are x and y.
        places: ``f32[rows, 2]`` of one episode after another.
    """
    figure, axes = new_axes()
    low, high = (np.array(each[:2]) for each in (known.minimum, known.maximum))
    cell = float((high - low).max()) / _CELLS or 1.0
    # Half a cell of margin: the statistics are those of the training split.
    edges = [
        np.arange(start - cell / 2, end + 1.5 * cell, cell)
        for start, end in zip(low, high, strict=True)
    ]
    counts = np.zeros([len(each) - 1 for each in edges])
    for each in places:
        counts += np.histogram2d(each[:, 0], each[:, 1], edges)[0]
    # One colour that both pages show, fainter where there is less.
    shades = [(*to_rgb(BLUE), alpha) for alpha in np.linspace(0.15, 1, 64)]
    image = axes.imshow(
        np.ma.masked_equal(counts.T, 0),
        origin="lower",
        extent=(edges[0][0], edges[0][-1], edges[1][0], edges[1][-1]),
        cmap=ListedColormap(shades),
        norm=LogNorm(1, max(2.0, counts.max())),
        interpolation="nearest",
    )
    bar = figure.colorbar(image, ax=axes, format=lambda rows, _: f"{rows:,g}")
    bar.set_label("rows in a cell (log scale)", fontsize=_TEXT, color=BLACK)
    bar.ax.tick_params(which="both", labelsize=_TEXT, labelcolor=BLACK, color=GREY)
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    finish(axes, "Where in the maze", steps=None, unit="y (m)")
    label_x(axes, "x (m)")
    axes.grid(visible=False)
    return figure


def stretch_chart(episodes: Sequence[Episode], names: Sequence[str]) -> Figure | None:
    """How long solved stretches are; None if nothing is solved in the sample.

    Args:
        episodes: The sample.
        names: Of the tasks that are drawn, the store's first.
    """
    figure, axes = new_axes()
    drawn = False
    for task, name in enumerate(names):
        lengths = np.concatenate([each.stretches[task] for each in episodes])
        if not len(lengths):
            continue
        drawn = True
        _draw_share_above(axes, lengths, name, task)
    if not drawn:
        return None
    if axes.get_xlim()[1] > 30:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda rows, _: f"{rows:,g}")
    finish(axes, "Solved stretches", steps=None, unit="share as long or longer (%)")
    axes.set_ylim(0, 103)
    label_x(axes, "rows in a row that are solved")
    legend_below(figure, axes)
    return figure


def return_chart(
    episodes: Sequence[Episode], names: Sequence[str], discount: float, index: int
) -> Figure:
    """Which returns episodes have from their first row on.

    Args:
        episodes: The sample.
        names: Of the tasks that are drawn, the store's first.
        discount: Of the returns.
        index: Of the discount, in the store.
    """
    figure, axes = new_axes()
    for task, name in enumerate(names):
        values = np.array([each.returns[index, task] for each in episodes])
        _draw_share_above(axes, values, name, task)
    axes.set_ylim(0, 103)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    unit = "share that high or higher (%)"
    finish(axes, f"Returns, discount {discount:g}", steps=None, unit=unit)
    label_x(axes, "discounted return of an episode")
    legend_below(figure, axes)
    return figure


def _draw_share_above(
    axes: object, values: npt.NDArray[np.generic], name: str, index: int
) -> None:
    """Which share of the values is as large as x or larger, in percent."""
    ordered, counts = np.unique(values, return_counts=True)
    share = 100 * (len(values) - np.cumsum(counts) + counts) / len(values)
    axes.step(  # type: ignore[attr-defined]
        np.r_[ordered, ordered[-1]],
        np.r_[share, 0],
        where="pre",
        color=CYCLE[index % len(CYCLE)],
        linestyle=STYLES[index % len(STYLES)],
        linewidth=1.8,
        label=plain(name.replace("_", " ")),
    )
