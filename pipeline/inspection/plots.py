"""A store in one picture: episodes, places, components, returns and rewards."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from pipeline.inspection import charts, histograms
from pipeline.pages.drawing import (
    BLACK,
    GREEN,
    finish,
    label_log_axis,
    label_x,
    write_png,
)
from pipeline.store import schema
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.manifest import Statistics
from pipeline.store.reader import Store

_TASK_IN, _PANEL_IN = 3.2, 4.2
_TEXT = 12


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
        DataFormatError: If the store has no data to train on.
    """
    if not path.endswith(".png"):
        raise UsageError(f"--plot: expected a file name ending in .png, got {path}")
    manifest = store.manifest
    if not manifest.parts_of("train"):
        raise DataFormatError(
            f"{store.root}: expected rows of the train split, got none to draw; leave "
            "--plot out"
        )
    labels = [*map(store.returns_field, manifest.discounts), schema.REWARDS]
    fields = [
        name
        for name in (schema.OBSERVATIONS, schema.ACTIONS)
        if name in manifest.statistics and manifest.statistics[name].mean
    ]
    floor = histograms.floor_of(store)
    panels = 1 + (floor is not None) + len(fields)
    width = max(_TASK_IN * len(manifest.tasks), _PANEL_IN * panels)
    heights = (3.8, 0.3 + 2.5 * len(labels))
    figure = Figure(figsize=(width, 0.6 + sum(heights)), layout="constrained")
    figure.suptitle(
        f"{manifest.dataset}: {store.rows():,} rows to train on, of "
        f"{len(store.episodes().lengths):,} episodes",
        fontsize=15,
        fontweight="bold",
        x=0.01,
        ha="left",
    )
    # The upper panels have widths of their own, so the halves are separate grids.
    halves: Any = figure.subfigures(2, 1, height_ratios=heights)
    above, below = halves
    _draw_rows(above, store, floor, fields)
    _draw_labels(below, store, labels)
    write_png(figure, path, dpi=110)


def _draw_rows(
    figure: Any, store: Store, floor: Statistics | None, fields: Sequence[str]
) -> None:
    """Draws what does not depend on a task."""
    statistics = store.manifest.statistics
    widths = [1.1, *([1.2] if floor else []), *(_width(statistics[x]) for x in fields)]
    panels = iter(figure.subplots(1, len(widths), width_ratios=widths))
    lengths = store.episodes().lengths
    charts.draw_lengths(next(panels), histograms.count_lengths(lengths))
    if floor is not None:
        places = histograms.read_blocks(store, histograms.QPOS)
        charts.draw_places(next(panels), histograms.count_places(floor, places))
    for name in fields:
        axes = next(panels)
        charts.draw_ranges(axes, name, statistics[name])
    if fields:
        # One legend is enough, because all panels use the same marks.
        figure.legend(
            *axes.get_legend_handles_labels(),
            loc="outside lower right",
            frameon=False,
            fontsize=_TEXT,
            ncols=3,
        )


def _width(known: Statistics) -> float:
    """Computes the relative width of a panel with a line for each component."""
    return 0.9 + 0.03 * min(len(known.mean), 60)


def _draw_labels(figure: Any, store: Store, fields: Sequence[str]) -> None:
    """Draws returns and rewards, a column for each task."""
    manifest = store.manifest
    # The columns share the axis of a row, so that tasks can be compared.
    grid = figure.subplots(
        len(fields), len(manifest.tasks), squeeze=False, sharey="row"
    )
    for row, field in enumerate(fields):
        for column, task in enumerate(manifest.tasks):
            axes = grid[row][column]
            histogram = histograms.count_labels(store, field, column)
            shares = 100 * histogram.counts / max(1.0, histogram.counts.sum())
            bars = charts.draw_bars(axes, histogram, shares)
            if histogram.whole and histogram.edges[-1] == 0.5:
                bars[-1].set_color(GREEN)  # Reward 0: the task is solved.
            # Solved rows are few, and a linear scale would not show them.
            label_log_axis(axes)
            title = task.name.replace("_", " ") if row == 0 else ""
            finish(axes, title, steps=None, unit="")
            if field == schema.REWARDS:
                solved = 1.0 - manifest.statistics[schema.MASKS].mean[column]
                label_x(axes, f"reward; {solved:.2%} of rows solved")
            else:
                label_x(axes, f"return, discount {manifest.discounts[row]:g}")
        grid[row][0].set_ylabel(
            "share of rows (%),\nlog scale", fontsize=_TEXT, color=BLACK
        )
