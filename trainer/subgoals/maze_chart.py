"""The picture of a maze: what was recorded, what was learnt, what the policy does.

Needs no OpenGL driver, as the maze is drawn from above.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.store.errors import MissingPackageError

try:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Circle, Patch, Rectangle
    from matplotlib.patheffects import withStroke
    from matplotlib.ticker import MultipleLocator
except ImportError as error:
    raise MissingPackageError(
        f"drawing a maze needs matplotlib ({error}); pip install 'vast-rl[report]'"
    ) from error

from pipeline.pages.drawing import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION
from trainer.evaluation.environments import MazeMap
from trainer.subgoals.maze import Float32, Float64, find_extent
from trainer.subgoals.traces import Trace

_DPI = 150
_WALL = "#5A5A5A"
# Blue and vermilion are what solved and unsolved episodes are drawn in.
_RECORDED = (SKY, PURPLE, GREEN, ORANGE, "#9C755F", "#4E4E9E")
# White is seen on every value's colour, its rim on the picture's white.
_RIM = [withStroke(linewidth=3.2, foreground=BLACK)]


@dataclass(frozen=True)
class MazeScene:
    """What is drawn.

    Attributes:
        maze: The walls.
        goal: Place ``(x, y)`` of the task's goal, in metres.
        tolerance_m: Distance from the goal that counts as reaching it.
        recorded: ``f32[T, 2]`` each: places of some recorded episodes, in metres.
        recorded_episodes: Episodes there are to train on.
        values: ``f64[R, C]``, V as ``map_values`` returns it.
        value_unit: What V counts, such as ``"-1 a step, discount 0.99"``.
        traces: Episodes of the policy, at least one; arrows show the sub-goals of the
            first.
        arrows: How many.
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


def maze_chart(scene: MazeScene, title: str) -> Figure:
    """Draws the data, what was learnt from them and what comes of it, side by side.

    Args:
        scene: What to draw.
        title: Above it.

    Returns:
        The figure.
    """
    left, right, bottom, top = _view(scene.maze)
    panel = 4.1
    figure = Figure(
        figsize=(3 * panel + 1.0, panel * (top - bottom) / (right - left) + 1.95),
        dpi=_DPI,
        layout="constrained",
    )
    figure.suptitle(
        title, x=0.01, ha="left", fontsize=14, fontweight="bold", color=BLACK
    )
    recorded, learnt, acted = figure.subplots(1, 3, sharey=True)
    _draw_recorded(recorded, scene)
    image = _draw_learnt(learnt, scene)
    _draw_acted(acted, scene)
    for axes in (recorded, learnt, acted):
        _draw_maze(axes, scene)
    recorded.set_ylabel("y (m)", fontsize=10)
    bar = figure.colorbar(image, ax=learnt, shrink=0.8, pad=0.02)
    bar.set_label(f"V ({scene.value_unit})", fontsize=10)
    bar.ax.tick_params(labelsize=9)
    bar.outline.set_visible(False)
    handles = _legend(scene)
    figure.legend(
        handles=handles,
        loc="outside lower center",
        frameon=False,
        fontsize=10,
        ncols=-(-len(handles) // 2),
    )
    return figure


def _draw_recorded(axes: Axes, scene: MazeScene) -> None:
    axes.set_title("What was recorded", loc="left", fontsize=12)
    axes.set_xlabel(
        f"x (m)\n{len(scene.recorded)} of {scene.recorded_episodes:,} recorded "
        "episodes,\na colour each",
        fontsize=10,
    )
    for index, path in enumerate(scene.recorded):
        color = _RECORDED[index % len(_RECORDED)]
        axes.plot(*path.T, color=color, linewidth=1.1, alpha=0.9)


def _draw_learnt(axes: Axes, scene: MazeScene) -> ScalarMappable:
    """Draws V and sub-goals; returns what the colour bar is of."""
    trace = scene.traces[0]
    axes.set_title("What was learnt: V, and sub-goals", loc="left", fontsize=12)
    axes.set_xlabel(
        "x (m)\ncolour: V, the reward still to come from there;\n"
        f"arrows: some sub-goals along episode {trace.episode.index}",
        fontsize=10,
    )
    image = axes.imshow(
        np.ma.masked_invalid(scene.values),
        cmap="viridis",
        origin="lower",
        extent=find_extent(scene.maze),
        interpolation="nearest",
    )
    moments = np.linspace(0, len(trace.horizons) - 1, scene.arrows + 1)[:-1]
    for moment in np.unique(moments.astype(int)):
        axes.annotate(
            "",
            xy=tuple(trace.subgoals[moment, :2].tolist()),
            xytext=tuple(trace.observations[moment, :2].tolist()),
            arrowprops={
                "arrowstyle": "-|>",
                "color": "white",
                "linewidth": 1.4,
                "shrinkA": 0,
                "shrinkB": 0,
                "mutation_scale": 11,
                "path_effects": _RIM,
            },
            zorder=3,
        )
    return image


def _draw_acted(axes: Axes, scene: MazeScene) -> None:
    axes.set_title("What the policy does", loc="left", fontsize=12)
    lengths = [each.episode.length for each in scene.traces if each.episode.success]
    outcome = f"{len(lengths)} of {len(scene.traces)} episodes reach the goal"
    if lengths:
        outcome += f",\nin {np.mean(lengths):,.0f} steps on average"
    axes.set_xlabel(f"x (m)\n{outcome}", fontsize=10)
    for trace in scene.traces:
        solved = trace.episode.success
        axes.plot(
            *trace.observations[:, :2].T,
            color=BLUE if solved else VERMILION,
            linestyle="-" if solved else (0, (4, 2)),
            linewidth=1.4,
            alpha=0.75,
        )


def _draw_maze(axes: Axes, scene: MazeScene) -> None:
    """Draws walls, starts and goal, and gives the axes their frame."""
    left, right, bottom, top = _view(scene.maze)
    axes.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MultipleLocator(5))
    left, _, bottom, _ = find_extent(scene.maze)
    unit = scene.maze.unit_m
    for row, cells in enumerate(scene.maze.walls):
        for column, wall in enumerate(cells):
            if wall:
                corner = (left + column * unit, bottom + row * unit)
                axes.add_patch(
                    Rectangle(corner, unit, unit, color=_WALL, linewidth=0, zorder=2)
                )
    axes.add_patch(
        Circle(scene.goal, scene.tolerance_m, fill=False, zorder=4, edgecolor=BLACK)
    )
    axes.plot(*scene.goal, **_GOAL, zorder=5)
    for trace in scene.traces:
        axes.plot(*trace.observations[0, :2], **_START, zorder=5)
    axes.tick_params(labelsize=9)
    axes.spines[:].set_visible(False)


_GOAL: dict[str, Any] = {
    "marker": "*",
    "markersize": 14,
    "markerfacecolor": "#F0E442",
    "markeredgecolor": BLACK,
    "linestyle": "",
}
_START: dict[str, Any] = {
    "marker": "o",
    "markersize": 7,
    "markerfacecolor": "white",
    "markeredgecolor": BLACK,
    "linestyle": "",
}


def _legend(scene: MazeScene) -> list[Any]:
    """What the signs mean; only those that are drawn."""
    outcomes = {trace.episode.success for trace in scene.traces}
    paths = [
        (True, BLUE, "-", "path of the policy, reaching the goal"),
        (False, VERMILION, "--", "path of the policy, not reaching it"),
    ]
    return [
        Patch(color=_WALL, label="wall"),
        Line2D([], [], **_START, label="start of an episode"),
        Line2D(
            [],
            [],
            **_GOAL,
            label=f"goal: within {scene.tolerance_m:g} m (circle) counts",
        ),
        Line2D(
            [],
            [],
            color="white",
            marker=">",
            markersize=5,
            linewidth=1.4,
            path_effects=_RIM,
            label="sub-goal: from where it is to where it means to be k steps later",
        ),
        *(
            Line2D([], [], color=color, linestyle=style, label=label)
            for success, color, style, label in paths
            if success in outcomes
        ),
    ]


def _view(maze: MazeMap) -> tuple[float, float, float, float]:
    """Left, right, bottom and top of what is drawn: free cells and a rim of wall."""
    rows, columns = np.nonzero(~np.array(maze.walls))
    x, y = maze.origin_m
    rim = 0.75 * maze.unit_m
    return (
        x + maze.unit_m * int(columns.min()) - rim,
        x + maze.unit_m * int(columns.max()) + rim,
        y + maze.unit_m * int(rows.min()) - rim,
        y + maze.unit_m * int(rows.max()) + rim,
    )
