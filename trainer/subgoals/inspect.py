"""Inspects a run's sub-goals: rolls out, compares, draws, writes.

Composition only. All files are written into one folder, by default ``RUN/subgoals``,
where the report looks for them.
"""

import io
import json
import os
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from etils import epath
from rich.console import Console

from pipeline.domains.datasets import TaskEnvironment
from pipeline.domains.opengl import NoBackendError
from pipeline.output import say, working
from pipeline.pages.drawing import to_svg
from pipeline.store import files
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.reader import Store
from pipeline.store.units import format_count
from trainer.cores import count_usable_cores
from trainer.errors import EvaluationError
from trainer.evaluation.comparison import compare_run
from trainer.evaluation.environments import MazeMap
from trainer.evaluation.evaluate import choose_steps
from trainer.evaluation.evaluator import find_task_environment
from trainer.evaluation.rollouts import RolloutPool
from trainer.nn.networks import Params
from trainer.runs.checkpoints import CheckpointReader
from trainer.runs.folder import RunFolder, check_writable
from trainer.runs.run import Run, read_run
from trainer.runs.subgoal_files import (
    ARRAYS_FILE,
    DRAWN_FILES,
    ERRORS_FILE,
    JSON_FILE,
    MAZE_POLICY_FILE,
    MAZE_RECORDED_FILE,
    MAZE_VALUES_FILE,
    SCENE_FILE,
    VIDEO_FILE,
)
from trainer.subgoals.charts import SceneFrame, draw_errors, draw_scene
from trainer.subgoals.configurations import (
    Configuration,
    find_nearest,
    make_configurations,
)
from trainer.subgoals.maze import map_values, read_goal, read_paths
from trainer.subgoals.maze_chart import (
    MazeScene,
    draw_policy,
    draw_recorded,
    draw_values,
)
from trainer.subgoals.painter import Painter
from trainer.subgoals.traces import (
    Comparison,
    Trace,
    compare,
    mean_by_horizon,
    play_traces,
)
from trainer.subgoals.video import encode_video

# Four seconds of video; a frame takes about a second to render without a GPU.
_VIDEO_FRAMES = 40
# Environments that act side by side, in one call of the policy.
_MAX_ENVIRONMENTS = 8


@dataclass(frozen=True)
class Inspection:
    """Settings of an inspection.

    Attributes:
        episodes: Number of episodes to roll out; the first one is drawn.
        seed: Seed of the evaluation, as in ``evaluate``.
        step: Step of the checkpoint; None for the latest.
        training_seed: Training seed to inspect; None for the run's first.
        frames: Number of moments to draw, spread evenly over the episode.
        video: Whether to draw the episode as a video as well.
        environment: Environment to act in; None for that of the run.
    """

    episodes: int = 5
    seed: int = 0
    step: int | None = None
    training_seed: int | None = None
    frames: int = 6
    video: bool = False
    environment: TaskEnvironment | None = None

    def __post_init__(self) -> None:
        for name in ("episodes", "frames"):
            if getattr(self, name) < 1:
                raise UsageError(
                    f"{name}: expected at least 1, got {getattr(self, name)}; give a "
                    "positive number"
                )


def inspect_subgoals(
    folder: RunFolder,
    store: Store,
    out: epath.Path,
    inspection: Inspection | None = None,
    *,
    console: Console | None = None,
) -> list[epath.Path]:
    """Rolls out a checkpoint and shows what sub-goals it pursues.

    The files are ``subgoals.json``, the predictions in ``subgoals.npz``,
    ``subgoal_errors.svg``, for a maze ``maze_*.svg``, and where this machine can render
    the scene ``subgoals.svg`` and ``rollout.webm``. Where it cannot, one line says why.

    Args:
        folder: Folder of the run.
        store: Store of its data, whose rows lend configurations what predictions do
            not hold.
        out: Folder to write into, on disk or gs://; it is made if missing.
        inspection: Settings; None for the defaults.
        console: Console that results are shown on; None shows nothing.

    Returns:
        Files written, the JSON file first.

    Raises:
        DataFormatError: If folder or store do not fit, or no checkpoint has the step.
        EvaluationError: If the environment or its process fails.
        StorageError: If files cannot be written into ``out``.
        UsageError: If the agent predicts no sub-goals, or a number is out of range.
    """
    console = Console(quiet=True) if console is None else console
    inspection = Inspection() if inspection is None else inspection
    run = read_run(folder)
    check_writable(out)
    if store.manifest.dataset != run.dataset:
        raise DataFormatError(
            f"{store.root}: expected a store of {run.dataset}, which the run was "
            f"trained on, got one of {store.manifest.dataset}; name that store"
        )
    seed = run.config.trainer.seed_range[0]
    if inspection.training_seed is not None:
        seed = inspection.training_seed
    played = _roll_out(folder, run, seed, inspection, console)
    step, traces = played.step, played.traces
    comparison = compare(traces, run.facts.observation_std)
    drawn = np.concatenate([trace.steps_ahead for trace in traces])
    # A run of an agent without that setting may still draw horizons.
    K = int(max(getattr(run.config.agent, "max_horizon", 0), drawn.max()))
    root = os.fspath(out)
    report = {
        "run": folder.name,
        "dataset": run.dataset,
        "task": run.task.task,
        "step": step,
        "seed": seed,
        "evaluation_seed": inspection.seed,
        "max_horizon": K,
        "episodes": [
            {
                "episode": trace.episode.index,
                "success": trace.episode.success,
                "length": trace.episode.length,
            }
            for trace in traces
        ],
        "summary": _summarise(comparison, drawn, K),
        "steps": _list_steps(comparison),
        "frames": [],
    }
    arrays = io.BytesIO()
    np.savez_compressed(arrays, allow_pickle=False, **_join_arrays(traces))
    written = {
        ARRAYS_FILE: arrays.getvalue(),
        ERRORS_FILE: to_svg(draw_errors(comparison, drawn, K)),
    }
    # Rewards that came with the data have no goal that could be drawn.
    if played.maze is not None and run.task.recipe == "maze":
        written |= _draw_maze(run, store, played, played.maze)
    summary: Any = report["summary"]
    say(
        console,
        f"step {step:,}, seed {seed}: {summary['compared']:,} of {summary['steps']:,} "
        f"sub-goals compared, {summary['mean_horizon']:.1f} steps ahead on average; "
        f"{_describe_errors(summary)}",
    )
    try:
        report["frames"], pictures = _draw(run, store, traces[0], step, inspection)
        written |= pictures
    except (NoBackendError, EvaluationError, DataFormatError) as error:
        say(console, f"no picture of the scene: {error}")
    text = json.dumps(report, indent=1, allow_nan=False) + "\n"
    # An earlier inspection may have drawn what this one cannot, and its JSON file would
    # tell a report that pictures of this one are of another step.
    for name in {JSON_FILE, *DRAWN_FILES} - set(written):
        files.delete(root, name)
    # JSON last: a report shows pictures only beside it.
    for name, data in {**written, JSON_FILE: text.encode()}.items():
        files.write(root, name, data)
    return [out / name for name in (JSON_FILE, *written)]


@dataclass(frozen=True)
class _Played:
    """Episodes of a checkpoint.

    Attributes:
        step: Step of the checkpoint.
        seed: Training seed.
        params: Parameters of that seed.
        traces: Episodes that were played.
        maze: Walls of the environment; None if it is no maze.
    """

    step: int
    seed: int
    params: Params
    traces: list[Trace]
    maze: MazeMap | None


def _roll_out(
    folder: RunFolder, run: Run, seed: int, inspection: Inspection, console: Console
) -> _Played:
    seeds = run.config.trainer.seed_range
    if seed not in seeds:
        raise UsageError(f"--training-seed: expected one of {list(seeds)}, got {seed}")
    agent = run.agent()
    wanted = inspection.step
    with CheckpointReader(folder) as checkpoints:
        step = choose_steps(checkpoints, "latest" if wanted is None else [wanted])[0]
        params = checkpoints.restore_params(step, agent, seeds=len(seeds))
    # Checkpoints hold all training seeds on a leading axis.
    own_params = jax.tree.map(lambda leaf: leaf[seed - seeds[0]], params)
    count = min(inspection.episodes, _MAX_ENVIRONMENTS)
    spec = inspection.environment or find_task_environment(run, run.task.task)
    with (
        working(console, f"acting in {spec.environment_id}"),
        RolloutPool(
            spec,
            environments=count,
            workers=count_usable_cores(),
            action_scale=run.action_scale,
        ) as pool,
    ):
        if inspection.environment is not None:
            compare_run(run, spec, pool.facts, console)
        traces = play_traces(
            pool, agent, own_params, episodes=inspection.episodes, seed=inspection.seed
        )
        return _Played(step, seed, own_params, traces, pool.facts.maze)


def _draw_maze(
    run: Run, store: Store, played: _Played, maze: MazeMap
) -> dict[str, bytes]:
    """Draws the maze from above: what was recorded, V, and the policy's paths."""
    goal, tolerance = read_goal(run.task.goal)
    # An agent with sub-goals, which `play_traces` has checked, and so one with V.
    agent: Any = run.agent()
    facts, discount = run.facts, run.config.agent.discount
    scene = MazeScene(
        maze=maze,
        goal=goal,
        tolerance_m=tolerance,
        recorded=read_paths(store),
        recorded_episodes=len(store.episodes().starts),
        values=map_values(
            maze,
            lambda states: agent.value(played.params, states),
            played.traces[0].observations[0],
        ),
        value_unit=f"{facts.reward_min:g} a step until the goal, discount {discount:g}",
        traces=played.traces,
    )
    return {
        MAZE_RECORDED_FILE: to_svg(draw_recorded(scene)),
        MAZE_VALUES_FILE: to_svg(draw_values(scene)),
        MAZE_POLICY_FILE: to_svg(draw_policy(scene)),
    }


def _summarise(comparison: Comparison, drawn: Any, max_horizon: int) -> dict[str, Any]:
    counts = np.bincount(drawn, minlength=max_horizon + 1)
    horizons = comparison.horizons
    return {
        "steps": len(drawn),
        "compared": len(horizons),
        "mean_horizon": float(drawn.mean()),
        "horizon_counts": counts.tolist(),
        "mean_error": _mean(comparison.errors),
        "mean_relative_error": _mean(comparison.relative_errors),
        "mean_relative_change": _mean(comparison.relative_changes),
        **{
            f"{name}_by_horizon": [
                # JSON has no NaN.
                None if np.isnan(value) else round(float(value), 6)
                for value in mean_by_horizon(values, horizons, max_horizon)
            ]
            for name, values in (
                ("error", comparison.errors),
                ("relative_error", comparison.relative_errors),
                ("relative_change", comparison.relative_changes),
            )
        },
    }


def _mean(values: Any) -> float | None:
    # Of an episode shorter than its first horizon no step can be compared. An error of
    # 0 would read as exact predictions.
    return float(values.mean()) if len(values) else None


def _describe_errors(summary: dict[str, Any]) -> str:
    """Says how far sub-goals are off on average, as a clause."""
    if not summary["compared"]:
        return "nothing to compare, as every sub-goal lies beyond its episode's end"
    return (
        f"off by {summary['mean_relative_error']:.2f} standard deviations, where "
        f"the present state would be off by {summary['mean_relative_change']:.2f}"
    )


def _list_steps(comparison: Comparison) -> list[dict[str, Any]]:
    columns = {
        "episode": comparison.episodes,
        "step": comparison.steps,
        "horizon": comparison.horizons,
        "error": comparison.errors.round(6),
        "relative_error": comparison.relative_errors.round(6),
        "relative_change": comparison.relative_changes.round(6),
    }
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def _join_arrays(traces: list[Trace]) -> dict[str, Any]:
    """Joins arrays by step, with the episodes one after another."""
    joined = {
        name: np.concatenate([getattr(trace, name) for trace in traces])
        for name in ("observations", "actions", "horizons", "subgoals")
    }
    lengths = [len(trace.horizons) for trace in traces]
    return joined | {"episode_lengths": np.array(lengths, np.int64)}


def _draw(
    run: Run, store: Store, trace: Trace, step: int, inspection: Inspection
) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Draws an episode: a record of each moment, and the pictures by file name."""
    T = len(trace.horizons)
    moments = _spread(T, inspection.frames)
    shown = moments
    # Moments of pictures and video together: a moment is rendered once.
    if inspection.video:
        shown = sorted({*moments, *_spread(T, _VIDEO_FRAMES)})
    spec = inspection.environment or find_task_environment(run, run.task.task)
    with Painter(spec) as painter:
        rows = find_nearest(store, trace.subgoals[shown])
        ghosts = dict(
            zip(
                shown,
                make_configurations(run.task.recipe, trace.subgoals[shown], rows),
                strict=True,
            )
        )
        # Policies see observations; the states to draw come from playing again.
        states = painter.replay(
            inspection.seed, trace.episode.index, trace.observations, trace.actions
        )
        images = {
            moment: painter.draw(states[moment], ghosts[moment].state)
            for moment in shown
        }
    frames = [
        SceneFrame(
            images[moment],
            f"step {moment}:\n"
            f"sub-goal {format_count(int(trace.steps_ahead[moment]), 'step')} ahead",
        )
        for moment in moments
    ]
    outcome = "solved" if trace.episode.success else "not solved"
    title = (
        f"Sub-goals after {step:,} updates; the episode is {outcome} in "
        f"{trace.episode.length:,} steps"
    )
    note = _explain(run, [ghosts[moment] for moment in moments])
    pictures = {SCENE_FILE: to_svg(draw_scene(frames, title, note), rendered=True)}
    if inspection.video:
        pictures[VIDEO_FILE] = encode_video([images[moment] for moment in shown])
    moments_shown = [
        {
            "step": moment,
            "horizon": int(trace.steps_ahead[moment]),
            "decoded": ghosts[moment].decoded,
            "nearest_part": ghosts[moment].nearest.part,
            "nearest_row": ghosts[moment].nearest.row,
            "nearest_distance": round(ghosts[moment].nearest.distance, 6),
        }
        for moment in moments
    ]
    return moments_shown, pictures


def _explain(run: Run, ghosts: list[Configuration]) -> str:
    """Tells how to read the picture, and what in it is not predicted."""
    distance = float(np.mean([ghost.nearest.distance for ghost in ghosts]))
    row = (
        "the stored row with the nearest observation "
        f"({distance:.2f} standard deviations away on average)"
    )
    if not all(ghost.decoded for ghost in ghosts):
        source = f"The sub-goal that is drawn is {row}, not the prediction itself."
    elif run.task.recipe == "maze":
        source = "The sub-goal is drawn as predicted."
    else:
        source = (
            "Arm, objects and buttons are drawn as predicted; the gripper's linkage, "
            f"which an observation does not hold, is that of {row}."
        )
    return (
        "Solid: now. Pale and transparent: the sub-goal, where it differs from now. "
        f"{source} Transparent in full colour: the task's goal."
    )


def _spread(length: int, count: int) -> list[int]:
    """Spreads steps evenly over an episode, the first step among them."""
    return np.unique(np.linspace(0, length - 1, count + 1)[:-1].astype(int)).tolist()
