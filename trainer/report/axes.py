"""Scales and legends of pictures, the same for all of them."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter


def log_scale(axes: Axes, unit: str) -> str:
    """Makes an axis logarithmic where that helps, with plain numbers; its unit."""
    values = np.concatenate([np.ravel(line.get_ydata()) for line in axes.get_lines()])
    values = values[np.isfinite(values)]
    if not len(values) or values.min() <= 0 or values.max() < 10 * values.min():
        return unit
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))

    def between(value: float, _: int | None) -> str:
        """Labels 2 and 5 as well where few powers of ten are in sight."""
        low, high = axes.get_ylim()
        digits = value / 10.0 ** np.floor(np.log10(value))
        return f"{value:g}" if high < 100 * low and round(digits) in (2, 5) else ""

    axes.yaxis.set_minor_formatter(FuncFormatter(between))
    return f"{unit} (log scale)"


def place_legend(figure: Figure, *axes: Axes) -> None:
    """Puts the legend under the figure, where it hides nothing; equal labels once."""
    by_label = {
        label: handle
        for each in axes
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True)
    }
    handles, labels = list(by_label.values()), list(by_label)
    if len(labels) > 0:
        widest = max(len(label) for label in labels)
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            frameon=False,
            fontsize=9,
            ncols=max(1, min(len(labels), 84 // (widest + 8))),
        )
