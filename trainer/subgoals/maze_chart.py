"""Pictures of a maze: what was recorded, what was learnt, what the policy does.

They need no OpenGL driver, because the maze is drawn from above.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MultipleLocator

from pipeline.pages.drawing import (
    BLACK,
    BLUE,
    CYCLE,
    GREY,
    VERMILION,
    figure_of,
    finish,
    label_x,
    legend_below,
)
from trainer.evaluation.environments import MazeMap
from trainer.subgoals.maze import Float32, Float64, find_extent
from trainer.subgoals.traces import Trace

# Black and white that stay as they are on a dark page: they lie on colours of V, which
# stay too. Each has a rim of the other, and so is seen on either page as well.
_DARK, _LIGHT = "#000000", "#ffffff"
_DARK_RIM = [withStroke(linewidth=3.2, foreground=_DARK)]
_LIGHT_RIM = [withStroke(linewidth=3.4, foreground=_LIGHT)]
_GOAL: dict[str, Any] = {
    "marker": "*",
    "markersize": 14,
    "markerfacecolor": "#F0E442",
    "markeredgecolor": _DARK,
    "linestyle": "",
}
_START: dict[str, Any] = {
    "marker": "o",
    "markersize": 7,
    "markerfacecolor": _LIGHT,
    "markeredgecolor": _DARK,
    "linestyle": "",
}


@dataclass(frozen=True)
class MazeScene:
    """What the pictures show.

    Attributes:
        maze: The walls.
        goal: Place ``(x, y)`` of the task's goal, in metres.
        tolerance_m: Distance from the goal that counts as reaching it.
        recorded: ``f32[T, 2]`` each: places along some recorded episodes, in metres.
        recorded_episodes: Number of episodes to train on.
        values: ``f64[R, C]``, V as ``map_values`` returns it.
        value_unit: What V counts, such as ``"-1 a step, discount 0.99"``.
        traces: Episodes of the policy, at least one; the first is drawn with sub-goals.
        arrows: Number of arrows.
    """

    maze: MazeMap
    goal: tuple[float, float]
    tolerance_m: float
    recorded: Sequence[Float32]
    recorded_episodes: int
    values: Float64
    value_unit: str
    traces: Sequence[Trace]
    arrows: int = 14


def draw_recorded(scene: MazeScene) -> Figure:
    """Draws paths of recorded episodes, a colour each."""
    figure, axes = _open_picture(scene)
    for index, path in enumerate(scene.recorded):
        color = CYCLE[index % len(CYCLE)]
        axes.plot(*path.T, color=color, linewidth=1.1, alpha=0.9)
    count = f"{len(scene.recorded)} of {scene.recorded_episodes:,} episodes"
    _close_picture(figure, axes, scene, f"Recorded: {count}")
    return figure


def draw_values(scene: MazeScene) -> Figure:
    """Draws V over the free cells, and sub-goals along the first episode."""
    figure, axes = _open_picture(scene, more=0.75)
    image = axes.imshow(
        np.ma.masked_invalid(scene.values),
        cmap="viridis",
        origin="lower",
        extent=find_extent(scene.maze),
        interpolation="none",
    )
    trace = scene.traces[0]
    # Arrows of all steps would cover the values, and each other.
    moments = np.linspace(0, len(trace.horizons) - 1, scene.arrows + 1)[:-1]
    for moment in np.unique(moments.astype(int)):
        axes.annotate(
            "",
            xy=tuple(trace.subgoals[moment, :2].tolist()),
            xytext=tuple(trace.observations[moment, :2].tolist()),
            arrowprops={
                "arrowstyle": "-|>",
                "color": _LIGHT,
                "linewidth": 1.4,
                "shrinkA": 0,
                "shrinkB": 0,
                "mutation_scale": 11,
                "path_effects": _DARK_RIM,
            },
            zorder=3,
        )
    # Annotations have no entry in a legend; an empty line that looks like them has.
    axes.plot(
        [],
        [],
        color=_LIGHT,
        marker=">",
        markersize=5,
        linewidth=1.4,
        path_effects=_DARK_RIM,
        label=f"from a state of episode {trace.episode.index} to its sub-goal",
    )
    bar = figure.colorbar(
        image, ax=axes, orientation="horizontal", shrink=0.9, aspect=30, pad=0.02
    )
    bar.set_label(f"V: {scene.value_unit}", fontsize=12, color=BLACK)
    bar.ax.tick_params(labelsize=12, labelcolor=BLACK, color=GREY)
    bar.outline.set_visible(False)
    # As paths, its 256 colours would be most of the file.
    bar.solids.set_rasterized(True)  # type: ignore[union-attr]
    _close_picture(figure, axes, scene, "Learnt: V and sub-goals")
    return figure


def draw_policy(scene: MazeScene) -> Figure:
    """Draws the paths that the policy takes."""
    figure, axes = _open_picture(scene)
    lengths = [trace.episode.length for trace in scene.traces if trace.episode.success]
    mean = f", in {np.mean(lengths):,.0f} steps on average" if lengths else ""
    labels = {True: f"reaches the goal{mean}", False: "does not reach the goal"}
    for trace in scene.traces:
        solved = bool(trace.episode.success)
        axes.plot(
            *trace.observations[:, :2].T,
            color=BLUE if solved else VERMILION,
            linestyle="-" if solved else (0, (4, 2)),
            linewidth=1.4,
            alpha=0.75,
            # The legend names an outcome once.
            label=labels.pop(solved, None),
        )
    outcome = f"{len(lengths)} of {len(scene.traces)} episodes solved"
    _close_picture(figure, axes, scene, f"Policy: {outcome}")
    return figure


def _open_picture(scene: MazeScene, *, more: float = 0.0) -> tuple[Figure, Axes]:
    """Opens a figure that a maze fills from side to side, ``more`` inches higher."""
    left, right, bottom, top = _find_view(scene.maze)
    figure = figure_of()
    width = float(figure.get_figwidth())
    # Beside the maze stand the labels of y, and above and below it title and x.
    height = (width - 0.65) * (top - bottom) / (right - left) + 0.85 + more
    figure.set_size_inches(width, height)
    return figure, figure.subplots()


def _close_picture(figure: Figure, axes: Axes, scene: MazeScene, title: str) -> None:
    """Draws walls, starts and goal, frames the maze and adds the legend."""
    left, right, bottom, top = _find_view(scene.maze)
    axes.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MultipleLocator(5))
    left, _, bottom, _ = find_extent(scene.maze)
    unit = scene.maze.unit_m
    label: str | None = "wall"
    for row, cells in enumerate(scene.maze.walls):
        for column, wall in enumerate(cells):
            if wall:
                corner = (left + column * unit, bottom + row * unit)
                cell = Rectangle(
                    corner,
                    width=unit,
                    height=unit,
                    # An edge closes the seams that browsers leave between cells.
                    facecolor=GREY,
                    edgecolor=GREY,
                    linewidth=0.8,
                    zorder=2,
                    label=label,
                )
                axes.add_patch(cell)
                label = None
    axes.add_patch(
        Circle(
            scene.goal,
            radius=scene.tolerance_m,
            fill=False,
            edgecolor=_DARK,
            linewidth=1.4,
            path_effects=_LIGHT_RIM,
            zorder=4,
        )
    )
    reached = f"goal: within {scene.tolerance_m:g} m (circle) counts"
    axes.plot(*scene.goal, **_GOAL, zorder=5, label=reached)
    starts = np.stack([trace.observations[0, :2] for trace in scene.traces])
    axes.plot(*starts.T, **_START, zorder=5, label="start of an episode of the policy")
    finish(axes, title, steps=None, unit="y (m)")
    label_x(axes, "x (m)")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    legend_below(figure, axes)


def _find_view(maze: MazeMap) -> tuple[float, float, float, float]:
    """Finds left, right, bottom and top of what is drawn: free cells, a rim of wall."""
    rows, columns = np.nonzero(~np.array(maze.walls))
    x, y = maze.origin_m
    rim = 0.75 * maze.unit_m
    return (
        x + maze.unit_m * int(columns.min()) - rim,
        x + maze.unit_m * int(columns.max()) + rim,
        y + maze.unit_m * int(rows.min()) - rim,
        y + maze.unit_m * int(rows.max()) + rim,
    )
