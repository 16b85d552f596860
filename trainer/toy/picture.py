"""The grid and its value maps, side by side, and the chain's values, as pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path as FilePath
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from trainer.toy import grid
from trainer.toy.chain_values import CHAIN, ChainResult

# Blue above zero, orange below: told apart by every kind of colour vision.
_COLOURS = "PuOr"
_INK, _FAINT = "#222222", "#bbbbbb"
_PATH_COLOURS = {"penalised": "#7b3294", "safe": "#1b7837", "greedy": "#c7401d"}


@dataclass(frozen=True)
class ValueMap:
    """One panel.

    Attributes:
        title: Above it.
        caption: Below it.
        values: Value of each cell that has one.
        path: Greedy rollout, drawn as arrows.
    """

    title: str
    caption: str
    values: Mapping[grid.Cell, float]
    path: grid.Path


def draw(maps: Sequence[ValueMap], out: FilePath) -> None:
    """Draws the recorded paths and the value maps, and writes a PNG.

    Args:
        maps: Panels, from left to right after that of the data.
        out: File to write.
    """
    figure = Figure(figsize=(3.1 * (len(maps) + 1), 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(maps) + 1)
    _draw_data(panels[0])
    largest = max(abs(v) for one in maps for v in one.values.values())
    norm = TwoSlopeNorm(0.0, -largest, largest)
    for panel, one in zip(panels[1:], maps, strict=True):
        _draw_map(panel, one, norm)
    figure.suptitle(
        "What a fixed horizon misses on a 4x4 grid, and stitching finds",
        fontsize=13,
        fontweight="bold",
        color=_INK,
    )
    figure.savefig(out, dpi=150)


def draw_chain(found: ChainResult, out: FilePath) -> None:
    """Draws values along the chain that passes through its goal, and writes a PNG.

    Args:
        found: Values of each state.
        out: File to write.
    """
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    steps = range(-CHAIN.before, CHAIN.state_count - CHAIN.before)
    mixed, networks = _PATH_COLOURS["penalised"], _PATH_COLOURS["greedy"]
    panel.axvspan(-0.5, CHAIN.solved - 0.5, color="#e8f1e6", zorder=0)
    panel.plot(steps, found.truth, color=_INK, linewidth=1.2, label="truth")
    panel.plot(steps, found.exact["ends"], "o", markerfacecolor="none", color=_INK)
    panel.lines[-1].set_label('fixed point, success = "ends"')
    panel.plot(steps, found.exact["mixed"], "s--", linewidth=1, color=mixed)
    panel.lines[-1].set_label('fixed point, success = "mixed"')
    panel.plot(steps, found.networks, "x", markersize=7, color=networks)
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
    figure.savefig(out, dpi=150)


def _draw_data(panel: Any) -> None:
    _frame(panel, "Recorded paths", "each cell's reward on arrival; up or right only")
    for cell, reward in grid.REWARDS.items():
        colour = "#e66101" if reward < 0 else "#5e3c99"
        _fill(panel, cell, colour, alpha=0.15 + 0.2 * abs(reward))
        _write(panel, cell, f"{reward:+g}")
    for name, path, shift in (
        ("penalised", grid.PENALISED_PATH, 0.09),
        ("safe", grid.SAFE_PATH, -0.09),
    ):
        _arrows(panel, path, _PATH_COLOURS[name], shift)
    _write(panel, grid.START, "start", size=8)


def _draw_map(panel: Any, one: ValueMap, norm: TwoSlopeNorm) -> None:
    from matplotlib import colormaps

    _frame(panel, one.title, one.caption)
    colours = colormaps[_COLOURS]
    for x in range(grid.SIZE):
        for y in range(grid.SIZE):
            cell = (x, y)
            if cell in one.values:
                value = one.values[cell]
                _fill(panel, cell, colours(norm(value)))
                # -0.00 reads as a slip.
                _write(panel, cell, f"{value + 0.0:.2f}".replace("-0.00", "0.00"))
            else:
                panel.add_patch(
                    Rectangle(
                        (x - 0.5, y - 0.5),
                        1,
                        1,
                        fill=False,
                        hatch="////",
                        edgecolor="#e3e3e3",
                        linewidth=0,
                    )
                )
    _arrows(panel, one.path, _PATH_COLOURS["greedy"], 0.0)


def _frame(panel: Any, title: str, caption: str) -> None:
    panel.set(xlim=(-0.5, 3.5), ylim=(-0.5, 3.5), aspect="equal", xticks=(), yticks=())
    for line in range(1, grid.SIZE):
        panel.axhline(line - 0.5, color=_FAINT, linewidth=0.6, zorder=1)
        panel.axvline(line - 0.5, color=_FAINT, linewidth=0.6, zorder=1)
    for side in panel.spines.values():
        side.set_color(_FAINT)
    panel.set_title(title, fontsize=11, color=_INK)
    panel.set_xlabel(caption, fontsize=8.5, color=_INK)


def _fill(panel: Any, cell: grid.Cell, colour: Any, alpha: float = 1.0) -> None:
    corner = (cell[0] - 0.5, cell[1] - 0.5)
    panel.add_patch(
        Rectangle(corner, 1, 1, facecolor=colour, alpha=alpha, linewidth=0, zorder=0)
    )


def _write(panel: Any, cell: grid.Cell, text: str, size: float = 10) -> None:
    # Below the middle, where arrows run.
    panel.text(
        cell[0],
        cell[1] - 0.3,
        text,
        ha="center",
        va="center",
        fontsize=size,
        color=_INK,
        zorder=4,
        bbox={"facecolor": "white", "alpha": 0.65, "linewidth": 0, "pad": 1.0},
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
            },
            zorder=3,
        )
