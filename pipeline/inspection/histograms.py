"""Histograms of a store's returns and rewards, as one picture."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.store import arrays, schema
from pipeline.store.errors import DataFormatError, MissingPackageError, UsageError
from pipeline.store.reader import Store

_BINS = 60
_COLOUR = "#2b6cb0"
_SOLVED = "#2f855a"
_GREY = "#4a5568"


def plot_labels(store: Store, path: str) -> None:
    """Draws the return and reward histograms of every task.

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
    value = store.manifest
    if not value.parts_of("train"):
        raise DataFormatError(
            f"{store.root}: expected rows of the train split, got none to draw"
        )
    fields = [store.returns_field(discount) for discount in value.discounts]
    fields.append(schema.REWARDS)
    columns = len(value.tasks)
    figure = Figure(
        figsize=(1.2 + 2.5 * columns, 0.9 + 2.1 * len(fields)), layout="constrained"
    )
    axes = figure.subplots(len(fields), columns, squeeze=False, sharey="row")
    for row, field in enumerate(fields):
        for column, task in enumerate(value.tasks):
            axis = axes[row][column]
            counts, edges = _histogram(store, field, column)
            _draw(axis, counts, edges, field)
            if row == 0:
                axis.set_title(task.name.replace("_", " "), fontsize=9)
            if row == len(fields) - 1:
                solved = 1.0 - value.statistics[schema.MASKS].mean[column]
                axis.set_xlabel(f"reward; {solved:.2%} of rows solved", fontsize=8)
            else:
                axis.set_xlabel(
                    f"return, discount {value.discounts[row]:g}", fontsize=8
                )
            if column == 0:
                axis.set_ylabel("share of rows", fontsize=8)
    figure.suptitle(
        f"{value.dataset}: {store.rows():,} rows to train on",
        fontsize=11,
        x=0.01,
        ha="left",
    )
    figure.savefig(path, dpi=130)


def _histogram(
    store: Store, field: str, column: int
) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]:
    """Share of rows in each bin, and the bins' edges."""
    known = store.manifest.statistics[field]
    low, high = known.minimum[column], known.maximum[column]
    if field == schema.REWARDS and float(low).is_integer() and high - low < _BINS:
        # Whole rewards, a bin each.
        edges = np.arange(math.floor(low), math.ceil(high) + 2) - 0.5
    else:
        margin = 0.5 if low == high else 0.0
        edges = np.linspace(low - margin, high + margin, _BINS + 1)
    counts = np.zeros(len(edges) - 1)
    step = arrays.shard_rows(store.manifest.fields[field])
    for part in store.manifest.parts_of("train"):
        for first in range(0, part.rows, step):
            rows = store.read_rows(part, field, first, min(first + step, part.rows))
            counts += np.histogram(rows[:, column], edges)[0]
    return counts / max(1.0, counts.sum()), edges


def _draw(
    axis: Any,
    counts: npt.NDArray[np.floating],
    edges: npt.NDArray[np.floating],
    field: str,
) -> None:
    widths = np.diff(edges)
    discrete = field == schema.REWARDS and len(counts) < _BINS
    colours = [_COLOUR] * len(counts)
    if discrete and edges[-1] == 0.5:
        colours[-1] = _SOLVED  # reward 0: the task is solved
    axis.bar(
        edges[:-1] + widths / 2,
        counts,
        widths * (0.8 if discrete else 1.0),
        color=colours,
    )
    if discrete and len(counts) <= 10:
        axis.set_xticks(edges[:-1] + 0.5)
    # Solved rows are few, and what is few is what matters here.
    axis.set_yscale("log")
    axis.tick_params(labelsize=7, colors=_GREY)
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.25, linewidth=0.6)
