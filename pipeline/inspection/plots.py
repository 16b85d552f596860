"""A store in one picture: episodes, places, components, returns and rewards."""

from typing import Any

import numpy as np

from pipeline.inspection import histograms
from pipeline.inspection.histograms import Histogram, PlaceMap
from pipeline.store import schema
from pipeline.store.errors import DataFormatError, MissingPackageError, UsageError
from pipeline.store.manifest import Statistics
from pipeline.store.reader import Store

_BLUE, _SOLVED, _INK = "#2b6cb0", "#2f855a", "#1a202c"
_COLUMN_IN, _MIN_COLUMNS = 2.9, 4


def plot_store(store: Store, path: str) -> None:
    """Draws what a store holds to train on.

    Above: lengths of episodes, of a maze where its rows are, and the range of each
    component of observations and actions. Below: returns by discount, and rewards, a
    column for each task.

    Args:
        store: The store; its training split is drawn, in bounded memory.
        path: File to write, ending in ``.png``.

    Raises:
        UsageError: If the path does not end in ``.png``.
        MissingPackageError: If matplotlib is not installed.
        DataFormatError: If the store has no data to train on.
    """
    if not path.endswith(".png"):
        raise UsageError(f"expected a file name ending in .png, got {path}")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPackageError(
            f"drawing needs matplotlib ({error}); install it with "
            "`pip install 'vast-rl[report]'`"
        ) from error
    manifest = store.manifest
    if not manifest.parts_of("train"):
        raise DataFormatError(
            f"{store.root}: expected rows of the train split, got none to draw"
        )
    fields = [*map(store.returns_field, manifest.discounts), schema.REWARDS]
    columns = max(len(manifest.tasks), _MIN_COLUMNS)
    heights = (3.4, 0.4 + 2.3 * len(fields))
    figure = Figure(
        figsize=(_COLUMN_IN * columns, 0.6 + sum(heights)), layout="constrained"
    )
    figure.suptitle(
        f"{manifest.dataset}: {store.rows():,} rows to train on, of "
        f"{len(store.episodes().lengths):,} episodes",
        fontsize=15,
        fontweight="bold",
        x=0.01,
        ha="left",
    )
    halves: Any = figure.subfigures(2, 1, height_ratios=heights)
    above, below = halves
    _draw_rows(above, store)
    _draw_labels(below, store, fields)
    figure.savefig(path, dpi=110)


def _draw_rows(figure: Any, store: Store) -> None:
    """Draws what does not depend on a task."""
    statistics = store.manifest.statistics
    places = histograms.count_places(store)
    names = [
        name
        for name in (schema.OBSERVATIONS, schema.ACTIONS)
        if name in statistics and len(statistics[name].mean) > 0
    ]
    widths = [1.1, *([1.2] if places else []), *(_width(statistics[x]) for x in names)]
    panels = iter(figure.subplots(1, len(widths), width_ratios=widths))
    _draw_lengths(next(panels), histograms.count_lengths(store))
    if places is not None:
        _draw_places(figure, next(panels), places)
    for name in names:
        _draw_components(next(panels), name, statistics[name])


def _width(known: Statistics) -> float:
    """Of a panel with a line for each component: room for its title, and for others."""
    return 0.8 + 0.03 * min(len(known.mean), 60)


def _draw_lengths(axis: Any, found: Histogram) -> None:
    _bars(axis, found, 100 * found.shares)
    axis.set_ylabel("share of episodes (%)", fontsize=10)
    axis.set_xlabel("steps", fontsize=10)
    single = found.whole and len(found.shares) == 1
    steps = f": all {found.edges[0] + 0.5:,.0f} steps" if single else ""
    _finish(axis, f"Lengths of episodes{steps}")
    axis.set_ylim(0, None)


def _draw_places(figure: Any, axis: Any, places: PlaceMap) -> None:
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import MultipleLocator

    image = axis.imshow(
        np.ma.masked_equal(places.rows.T, 0),
        origin="lower",
        extent=places.extent,
        cmap="viridis",
        norm=LogNorm(),
        interpolation="nearest",
    )
    bar = figure.colorbar(
        image, ax=axis, shrink=0.85, pad=0.02, format=lambda rows, _: f"{rows:,g}"
    )
    bar.set_label("rows in a cell", fontsize=10)
    bar.outline.set_visible(False)
    for each in (axis.xaxis, axis.yaxis):
        each.set_major_locator(MultipleLocator(5 if max(places.extent) < 30 else 10))
    axis.set_xlabel("x (m)", fontsize=10)
    axis.set_ylabel("y (m)", fontsize=10)
    _finish(axis, "Where in the maze")
    axis.grid(visible=False)


def _draw_components(axis: Any, name: str, known: Statistics) -> None:
    index = np.arange(len(known.mean))
    mean, std = np.array(known.mean), np.array(known.std)
    axis.vlines(
        index, known.minimum, known.maximum, color=_BLUE, linewidth=1, label="range"
    )
    axis.vlines(
        *(index, mean - std, mean + std),
        color=_BLUE,
        linewidth=max(2.0, 7 - 0.1 * len(index)),
        alpha=0.45,
        label="mean ± deviation",
    )
    axis.plot(index, mean, ".", color=_INK, markersize=5, label="mean")
    axis.set_xlabel("component", fontsize=10)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_xlim(-0.7, len(index) - 0.3)
    _finish(axis, f"{name.capitalize()} by component")
    if name == schema.OBSERVATIONS:
        axis.legend(
            fontsize=8.5, loc="upper left", bbox_to_anchor=(0, -0.2), frameon=False,
            ncols=3, borderaxespad=0.0, columnspacing=1.0, handlelength=1.2,
        )  # fmt: skip


def _draw_labels(figure: Any, store: Store, fields: list[str]) -> None:
    """Draws returns and rewards, a column for each task."""
    from matplotlib.ticker import FuncFormatter

    manifest = store.manifest
    axes = figure.subplots(
        len(fields), len(manifest.tasks), squeeze=False, sharey="row"
    )
    for row, field in enumerate(fields):
        for column, task in enumerate(manifest.tasks):
            axis = axes[row][column]
            found = histograms.count_labels(store, field, column)
            bars = _bars(axis, found, 100 * found.shares)
            if found.whole and found.edges[-1] == 0.5:
                bars[-1].set_color(_SOLVED)  # Reward 0: the task is solved.
            # Solved rows are few, and what is few is what matters here.
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{share:g}"))
            _finish(axis, task.name.replace("_", " ") if row == 0 else "")
            if field == schema.REWARDS:
                solved = 1.0 - manifest.statistics[schema.MASKS].mean[column]
                axis.set_xlabel(f"reward; {solved:.2%} of rows solved", fontsize=10)
            else:
                discount = f"{manifest.discounts[row]:g}"
                axis.set_xlabel(f"return, discount {discount}", fontsize=10)
        axes[row][0].set_ylabel("share of rows (%),\nlog scale", fontsize=10)


def _bars(axis: Any, found: Histogram, heights: Any) -> Any:
    widths = np.diff(found.edges)
    few = found.whole and len(heights) <= 10
    bars = axis.bar(
        found.edges[:-1] + widths / 2,
        heights,
        widths * (0.7 if few else 1.0),
        color=_BLUE,
    )
    if few:
        axis.set_xticks(found.edges[:-1] + 0.5)
        axis.set_xlim(found.edges[0] - 0.2, found.edges[-1] + 0.2)
    return bars


def _finish(axis: Any, title: str) -> None:
    axis.set_title(title, fontsize=11, loc="left", color=_INK)
    axis.tick_params(labelsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.25, linewidth=0.6)
    axis.set_axisbelow(True)
