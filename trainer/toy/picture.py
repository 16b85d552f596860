"""Draws the grid and its value maps, and the values on the chain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path as FilePath
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke

from pipeline.pages.drawing import write_png
from trainer.toy import grid
from trainer.toy.chain_values import CHAIN, ChainResult

# Purple above zero, orange below: a pair that every kind of colour vision tells apart.
_COLOURS = "PuOr"
_INK, _FAINT = "#222222", "#bbbbbb"
_COLUMNS = 3
_UNSEEN: dict[str, Any] = {
    "facecolor": "none", "hatch": "////", "edgecolor": "#b5b5b5", "linewidth": 0
}  # fmt: skip
# A white rim makes arrows visible on cells of every colour.
_RIM = [withStroke(linewidth=3.6, foreground="white")]
_PATH_COLOURS = {"penalised": "#7b3294", "safe": "#1b7837", "greedy": "#c7401d"}


@dataclass(frozen=True)
class ValueMap:
    """The values of one solution, which one panel shows.

    Attributes:
        title: Text above the panel.
        caption: Text below the panel.
        values: Values of the cells that the data visit.
        path: Greedy rollout, which is drawn as arrows.
        collected: Discounted return of that rollout.
    """

    title: str
    caption: str
    values: Mapping[grid.Cell, float]
    path: grid.Path
    collected: float


def draw(maps: Sequence[ValueMap], out: FilePath) -> None:
    """Draws the recorded paths, the value maps and a key, and writes a PNG.

    Args:
        maps: Value maps, for the panels after the panel of the data.
        out: File to write.
    """
    # Two panels more than maps, for the data and the key, in rows that are rounded up.
    rows = -(-(len(maps) + 2) // _COLUMNS)
    figure = Figure(figsize=(3.6 * _COLUMNS, 0.6 + 4.2 * rows), layout="constrained")
    # Without pyplot, which keeps figures in global state and looks for a display.
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, _COLUMNS).ravel()
    # One symmetric scale for all panels: equal values have equal colours, 0 is white.
    largest = max(
        abs(value) for value_map in maps for value in value_map.values.values()
    )
    scale = ScalarMappable(TwoSlopeNorm(0.0, -largest, largest), _COLOURS)
    _draw_data(panels[0], scale)
    for panel, value_map in zip(panels[1:], maps, strict=False):
        _draw_map(panel, value_map, scale)
    for panel in panels[len(maps) + 1 :]:
        panel.set_axis_off()
    _draw_key(figure, panels[-1], scale)
    figure.suptitle(
        "What three-step backups miss on a 4x4 grid, and stitching finds",
        x=0.01,
        ha="left",
        fontsize=15,
        fontweight="bold",
        color=_INK,
    )
    write_png(figure, out, dpi=130)


def draw_chain(result: ChainResult, out: FilePath) -> None:
    """Draws values along the chain that passes through its goal, and writes a PNG.

    Args:
        result: Values of the states.
        out: File to write.
    """
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    steps = range(-CHAIN.before, CHAIN.state_count - CHAIN.before)
    mixed, networks = _PATH_COLOURS["penalised"], _PATH_COLOURS["greedy"]
    panel.axvspan(-0.5, CHAIN.solved - 0.5, color="#e8f1e6", zorder=0)
    panel.plot(steps, result.truth, color=_INK, linewidth=1.2, label="truth")
    # Open circles, so that the line of the truth stays visible through them.
    panel.plot(steps, result.exact["ends"], "o", markerfacecolor="none", color=_INK)
    panel.lines[-1].set_label('fixed point, success = "ends"')
    panel.plot(steps, result.exact["mixed"], "s--", linewidth=1, color=mixed)
    panel.lines[-1].set_label('fixed point, success = "mixed"')
    panel.plot(steps, result.networks, "x", markersize=7, color=networks)
    panel.lines[-1].set_label("V of the networks")
    panel.set_xlabel("steps past the goal (shaded: solved)", color=_INK)
    panel.set_ylabel("value", color=_INK)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    panel.set_title(
        "A walk through its goal and on to a wall: the goal must be an end",
        fontsize=11,
        fontweight="bold",
        color=_INK,
    )
    panel.legend(loc="lower left", frameon=False, fontsize=9)
    write_png(figure, out, dpi=150)


def _draw_data(panel: Any, scale: ScalarMappable) -> None:
    _frame(panel, "Recorded paths", "numbers: reward on arrival; moves go up or right")
    for cell, reward in grid.REWARDS.items():
        _fill(panel, cell, reward, f"{reward:+g}", scale)
    for name, path, shift in (
        # Shifted apart, because the arrows of both paths meet in one cell.
        ("penalised", grid.PENALISED_PATH, 0.07),
        ("safe", grid.SAFE_PATH, -0.07),
    ):
        _arrows(panel, path, _PATH_COLOURS[name], shift)
    for cell, name in ((grid.START, "start"), (grid.GOAL, "goal")):
        _write(panel, cell, name, top=False)


def _draw_map(panel: Any, value_map: ValueMap, scale: ScalarMappable) -> None:
    title = f"{value_map.title}: return {value_map.collected:.2f}"
    _frame(panel, title, value_map.caption)
    for x in range(grid.SIZE):
        for y in range(grid.SIZE):
            cell = (x, y)
            if cell in value_map.values:
                value = value_map.values[cell]
                # Small negative values would be written as -0.00, like an error.
                text = f"{value + 0.0:.2f}".replace("-0.00", "0.00")
                _fill(panel, cell, value, text, scale)
            else:
                panel.add_patch(_square(cell, **_UNSEEN))
    _arrows(panel, value_map.path, _PATH_COLOURS["greedy"], 0.0)


def _draw_key(figure: Figure, panel: Any, scale: ScalarMappable) -> None:
    """Explains arrows, hatching and colours, in the panel that no map needs."""
    names = {
        "penalised": "recorded: takes the first +2,\nthen the -2",
        "safe": "recorded: takes the second +2",
        "greedy": "where the values lead from the start",
    }
    arrows = [
        Line2D([], [], color=_PATH_COLOURS[name], linewidth=2, marker=">", label=label)
        for name, label in names.items()
    ]
    unseen = Patch(**_UNSEEN, label="never recorded: no value")
    panel.legend(
        handles=[*arrows, unseen],
        loc="upper left",
        frameon=False,
        fontsize=10.5,
        labelspacing=0.9,
        borderaxespad=0.0,
    )
    bar = figure.colorbar(
        scale, cax=panel.inset_axes((0.02, 0.2, 0.94, 0.07)), orientation="horizontal"
    )
    bar.set_label(
        "value of a cell: the discounted reward\nstill to come (first panel: reward)",
        fontsize=10.5,
    )
    bar.outline.set_edgecolor(_FAINT)


def _frame(panel: Any, title: str, caption: str) -> None:
    ticks = range(grid.SIZE)
    panel.set(
        xlim=(-0.5, 3.5), ylim=(-0.5, 3.5), aspect="equal", xticks=ticks, yticks=ticks
    )
    for line in range(1, grid.SIZE):
        panel.axhline(line - 0.5, color=_FAINT, linewidth=0.6, zorder=1)
        panel.axvline(line - 0.5, color=_FAINT, linewidth=0.6, zorder=1)
    panel.spines[:].set_color(_FAINT)
    panel.tick_params(color=_FAINT, labelcolor=_INK, labelsize=9.5)
    panel.set_title(title, loc="left", fontsize=12, color=_INK)
    panel.set_xlabel(f"x\n{caption}", fontsize=10, color=_INK)
    panel.set_ylabel("y", fontsize=10, color=_INK)


def _square(cell: grid.Cell, **look: Any) -> Rectangle:
    return Rectangle((cell[0] - 0.5, cell[1] - 0.5), 1, 1, **look)


def _fill(
    panel: Any, cell: grid.Cell, value: float, text: str, scale: ScalarMappable
) -> None:
    """Colours a cell by a value, and writes a text that is legible on the colour."""
    colour = scale.to_rgba(np.array(value))
    panel.add_patch(_square(cell, facecolor=colour, linewidth=0, zorder=0))
    # Red, green and blue sum up to 3 for white.
    dark = sum(colour[:3]) < 1.8
    _write(panel, cell, text, colour="white" if dark else _INK)


def _write(
    panel: Any, cell: grid.Cell, text: str, *, top: bool = True, colour: str = _INK
) -> None:
    # Texts stand in a corner, because arrows run through the middle.
    x, y = cell
    panel.text(
        x - 0.46 if top else x + 0.46,
        y + 0.44 if top else y - 0.44,
        text,
        ha="left" if top else "right",
        va="top" if top else "bottom",
        fontsize=10,
        color=colour,
        zorder=4,
    )


def _arrows(panel: Any, path: grid.Path, colour: str, shift: float) -> None:
    for a, b in pairwise(path):
        panel.annotate(
            "",
            xy=(b[0] + shift, b[1] + shift),
            xytext=(a[0] + shift, a[1] + shift),
            arrowprops={
                "arrowstyle": "-|>",
                "color": colour,
                "linewidth": 2.0,
                "shrinkA": 0,
                "shrinkB": 0,
                "mutation_scale": 12,
                "path_effects": _RIM,
            },
            zorder=3,
        )
