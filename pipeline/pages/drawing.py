"""The look of a page's pictures: sizes, colours for light and dark, axes, files.

A picture is an SVG that is drawn for a light page and carries a style sheet for a dark
one. It is 360 units wide and its text 12 units high, which is 12 px on a screen of 400.
Every colour has a contrast of at least 3 to 1 against both pages, and text of 4.5 to 1.
Lines also differ in style, for readers who cannot tell their colours apart.
"""

import base64
import io
import os
import re
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.store import files
from pipeline.store.errors import MissingPackageError

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator
except ImportError as error:
    raise MissingPackageError(
        f"drawing needs matplotlib ({error}); pip install 'vast-rl[report]'"
    ) from error

Float64 = npt.NDArray[np.float64]

# Variants of Okabe and Ito's palette, which suits people with any colour vision.
BLUE, ORANGE, GREEN, VERMILION = "#0072b2", "#a66a00", "#00855f", "#d0500a"
PURPLE, SKY, BLACK, GREY = "#ab4f86", "#3583b8", "#222222", "#6b6b6b"
INDIGO, GRID = "#5b4bc4", "#dddddd"
CYCLE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, BLACK, INDIGO, GREY)
STYLES = (
    *("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (8, 2, 1, 2)), "--"),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DARK = {
    BLUE: "#5ab4f0",
    ORANGE: "#f0b429",
    GREEN: "#2cc99c",
    VERMILION: "#ff8a4d",
    PURPLE: "#e79ac8",
    SKY: "#9ad2f7",
    INDIGO: "#b3a6ff",
    BLACK: "#e8e8e8",
    GREY: "#a8a8a8",
    GRID: "#43474d",
}
PAGE, DARK_PAGE = "#ffffff", "#16181c"

# Matplotlib writes 72 units for an inch: 5 inches are 360 units.
_WIDTH_IN, _HEIGHT_IN = 5.0, 3.4
_TEXT, _TITLE = 12, 13.5
_BAND = 0.2
# Letters that fit into a row of the legend.
_LEGEND_LETTERS = 44
# Text stays text, which can be found, read aloud and coloured; a fixed salt gives equal
# ids to equal figures.
_SVG = {"svg.fonttype": "none", "svg.hashsalt": "vast-rl"}


def to_svg(figure: Figure, *, rendered: bool = False) -> bytes:
    """Encodes a figure as SVG for light and dark; equal data give equal bytes.

    Args:
        figure: The figure.
        rendered: Whether its images are rendered scenes. They are encoded as JPEG, a
            third of the size; the images of plots stay lossless.

    Returns:
        The SVG document.
    """
    buffer = io.StringIO()
    with mpl.rc_context(_SVG):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    # Colours stand in style attributes, and only !important overrides these.
    rules = "".join(
        f'[style*="{name}: {light}"]{{{name}:{dark} !important}}'
        for light, dark in DARK.items()
        for name in ("fill", "stroke")
    )
    sheet = f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>"
    # The layout was computed with DejaVu Sans, and Verdana is as wide as that font.
    text = re.sub(
        r"font-family: 'DejaVu Sans'[^;\"<>]*",
        "font-family: 'DejaVu Sans',Verdana,sans-serif",
        buffer.getvalue(),
    )
    if rendered:
        text = re.sub(r"data:image/png;base64,([^\"]+)", _encode_jpeg, text)
    head, end, body = re.sub(r"\s*\n\s*", "\n", text).partition("<defs>")
    return f"{head}{sheet}{end}{body}".encode()


def _encode_jpeg(url: re.Match[str]) -> str:
    """Encodes the PNG of a data URL as JPEG; returns the new URL."""
    from PIL import Image

    buffer = io.BytesIO()
    with Image.open(io.BytesIO(base64.b64decode(url[1]))) as image:
        image.convert("RGB").save(buffer, "JPEG", quality=85, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def write_png(figure: Figure, path: str | os.PathLike[str], *, dpi: int) -> None:
    """Writes a figure as a PNG, which gets its name when it is whole.

    Args:
        figure: The figure.
        path: Local path of the file.
        dpi: Pixels per inch.

    Raises:
        OSError: If the file cannot be written.
    """
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=dpi)
    files.write_local(path, picture.getvalue())


def figure_of(*, height: float = 1.0) -> Figure:
    """Makes an empty figure; ``height`` is a multiple of the usual height."""
    size = (_WIDTH_IN, _HEIGHT_IN * height)
    return Figure(figsize=size, dpi=150, layout="constrained")


def new_axes() -> tuple[Figure, Axes]:
    """Makes a figure with one pair of axes."""
    figure = figure_of()
    return figure, figure.subplots()


def plain(name: str, *, letters: int = 34) -> str:
    """Makes a name fit for a label: one short line that is never read as a formula."""
    text = " ".join(name.split())
    text = text if len(text) <= letters else text[: letters - 1] + "…"
    # Matplotlib would read text between dollar signs as a formula.
    return text.replace("$", r"\$")


def wrapped(name: str) -> str:
    """Makes a name fit for a legend: whole, in as many lines as it needs."""
    lines = textwrap.wrap(" ".join(name.split()), 40)
    return "\n".join(plain(line, letters=40) for line in lines)


def band(
    axes: Axes,
    steps: npt.NDArray[np.int64],
    values: Float64,
    *,
    color: str,
    label: str | None,
    **look: Any,
) -> None:
    """Draws the mean over seeds ``f64[Q, N]``, and a band over all of them.

    Of a single point the band is an upright line.

    Args:
        axes: Axes to draw in.
        steps: ``i64[N]``, updates at which the values were logged.
        values: ``f64[Q, N]``, NaN where a seed has no value.
        color: Colour of line and band.
        label: Entry of the legend; None for no entry.
        look: Further properties of the line, such as its style and marker.
    """
    known = np.ma.masked_invalid(values)
    # A line through a single point is invisible: the point needs a marker.
    marker = "o" if len(steps) == 1 else None
    look = {"linewidth": 1.8, "markersize": 5, "marker": marker} | look
    axes.plot(steps, known.mean(axis=0), color=color, label=label, **look)
    if len(values) > 1:
        low, high = known.min(axis=0), known.max(axis=0)
        axes.fill_between(steps, low, high, color=color, alpha=_BAND, linewidth=0)
        if len(steps) == 1:
            # A band of one point has no width.
            axes.vlines(steps, low, high, color=color, linewidth=1.8)


def finish(
    axes: Axes,
    title: str,
    *,
    steps: Sequence[int] | npt.NDArray[np.int64] | None,
    unit: str,
) -> None:
    """Gives axes the title, units and frame that all pictures share.

    Args:
        axes: The axes.
        title: Title; may be empty.
        steps: Update numbers on the horizontal axis; None if it shows something else.
        unit: Label of the vertical axis.
    """
    if title:
        axes.set_title(
            title, loc="left", fontsize=_TITLE, fontweight="bold", color=BLACK
        )
    axes.set_ylabel(unit, fontsize=_TEXT, color=BLACK)
    if steps is not None:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        axes.set_xlim(left=0)
        if len(steps):
            label_x(axes, "updates")
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[:].set_color(GREY)
    axes.tick_params(which="both", labelsize=_TEXT, labelcolor=BLACK, color=GREY)


def label_x(axes: Axes, text: str) -> None:
    """Labels the horizontal axis."""
    axes.set_xlabel(text, fontsize=_TEXT, color=BLACK)


def log_scale(axes: Axes, unit: str) -> str:
    """Makes the vertical axis logarithmic if its lines span a factor of ten.

    Returns:
        The unit, which names the log scale if the axis has one.
    """
    values = np.concatenate([np.ravel(line.get_ydata()) for line in axes.get_lines()])
    values = values[np.isfinite(values)]
    if not len(values) or values.min() <= 0 or values.max() < 10 * values.min():
        return unit
    label_log_axis(axes)
    return f"{unit} (log scale)"


def label_log_axis(axes: Axes) -> None:
    """Makes the vertical axis logarithmic, labelled with plain numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))

    def label_minor(value: float, _: int | None) -> str:
        """Labels 2 and 5 as well if the axis shows few powers of ten."""
        low, high = axes.get_ylim()
        digits = value / 10.0 ** np.floor(np.log10(value))
        return f"{value:g}" if high < 100 * low and round(digits) in (2, 5) else ""

    axes.yaxis.set_minor_formatter(FuncFormatter(label_minor))


def legend_below(figure: Figure, *axes: Axes) -> None:
    """Adds a legend below the figure, which grows by its height; equal labels once."""
    by_label = {
        label: handle
        for pair in axes
        for handle, label in zip(*pair.get_legend_handles_labels(), strict=True)
    }
    labels = list(by_label)
    if not labels:
        return
    widest = max(len(line) for label in labels for line in label.splitlines())
    columns = max(1, min(len(labels), _LEGEND_LETTERS // (widest + 6)))
    rows = -(-sum(label.count("\n") + 1 for label in labels) // columns)
    # Matplotlib fills a legend by columns; people read it by rows.
    order = [label for first in range(columns) for label in labels[first::columns]]
    # The legend must not shrink the axes, so the figure grows by its rows of text.
    width, height = figure.get_size_inches()
    figure.set_size_inches(width, height + 0.24 * rows)
    figure.legend(
        [by_label[label] for label in order],
        order,
        loc="outside lower left",
        frameon=False,
        fontsize=_TEXT,
        labelcolor=BLACK,
        ncols=columns,
        borderaxespad=0.2,
        columnspacing=1.2,
        handlelength=1.8,
        labelspacing=0.3,
    )
