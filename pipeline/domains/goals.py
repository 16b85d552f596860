"""Rewards and masks of a domain's tasks, from physics state.

Reading the tasks out of their environment needs the simulator. Relabelling is
NumPy alone, so a worker that only relabels has no need of it.

The reward of row ``t`` is minus the number of parts of the goal that its own state
``s_t`` does not meet, the mask 0 where it meets them all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.domains.datasets import (
    TASKS,
    Domain,
    Environment,
    Family,
    cube_place,
    find_environment,
)
from pipeline.domains.environments import (
    known_warnings_ignored,
    make_environment,
    numpy_seeded,
)
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.manifest import Task

# A cube, the drawer and the window are in place within this distance of their
# target, in metres.
_IN_PLACE = 0.04

# Which physics state the rewards of a family are made of.
_NEEDS: dict[Family, tuple[str, ...]] = {
    "maze": ("qpos",),
    "cube": ("qpos",),
    "scene": ("qpos", "button_states"),
    "puzzle": ("button_states",),
}

# What makes a goal depend on the task alone, as in the single-task environments.
_FIXED_GOALS: dict[Family, dict[str, Any]] = {
    "maze": {"add_noise_to_goal": False},
    "cube": {"permute_blocks": False},
    "scene": {"permute_blocks": False},
    "puzzle": {},
}

_Array = NDArray[Any]


def read_tasks(domain: Domain, tasks: Sequence[int] = TASKS) -> tuple[Task, ...]:
    """Reads the goals of a domain's tasks out of its environment.

    Args:
        domain: The data set.
        tasks: Task numbers, from 1.

    Returns:
        One task each, in order: all that relabelling and evaluation need.

    Raises:
        UsageError: If the domain has no such task.
        MissingPackageError: If the simulator is not installed.
    """
    evaluated_in = [domain.task_environment(task) for task in tasks]
    # One environment serves all tasks: making it takes a second or two.
    environment = make_environment(domain.environment_id, **_FIXED_GOALS[domain.family])
    found = []
    with numpy_seeded(0), known_warnings_ignored():
        for task, there in zip(tasks, evaluated_in, strict=True):
            environment.reset(seed=0, options={"task_id": task})
            found.append(
                Task(
                    task=task,
                    name=environment.cur_task_info["task_name"],
                    environment_id=there.environment_id,
                    environment_kwargs=dict(there.kwargs),
                    recipe=domain.family,
                    goal=_goal(domain.family, environment),
                )
            )
    return tuple(found)


def relabel(
    task: Task, qpos: _Array | None, button_states: _Array | None = None
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Rewards and masks of one task.

    Args:
        task: The task, as read from its environment.
        qpos: ``float32|float64[n, Q]``, positions before each step, in metres
            and radians. A puzzle does without.
        button_states: ``int[n, buttons]``, where the environment has buttons.

    Returns:
        ``float32[n]`` rewards, from minus the number of the goal's parts to 0,
        and ``uint8[n]`` masks, 0 where the state solves the task, else 1.

    Raises:
        DataFormatError: If physics state is missing or does not fit.
        UsageError: If the task's rewards came with the data.
    """
    given = {"qpos": qpos, "button_states": button_states}
    rewards, masks = relabel_tasks(
        [task], {name: array for name, array in given.items() if array is not None}
    )
    return rewards[:, 0], masks[:, 0]


def relabel_tasks(
    tasks: Sequence[Task], physics: Mapping[str, _Array]
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Rewards and masks of several tasks of one environment.

    Args:
        tasks: At least one task.
        physics: Physics state before each step, by name: ``qpos``,
            ``float32|float64[n, Q]`` in metres and radians, and
            ``button_states``, ``int[n, buttons]``. Other fields are ignored.

    Returns:
        ``float32[n, tasks]`` rewards and ``uint8[n, tasks]`` masks, each column
        as ``relabel`` gives it.

    Raises:
        DataFormatError: If physics state is missing or does not fit.
        UsageError: If there is no task, the tasks differ in environment, or
            their rewards came with the data.
    """
    environment = _environment_of(tasks)
    rows = _check_physics(environment, physics)
    rewards = np.empty((rows, len(tasks)), np.float32)
    masks = np.empty((rows, len(tasks)), np.uint8)
    state = _gather(environment, physics)
    for column, task in enumerate(tasks):
        met, parts = _count_met(task.goal, state, rows)
        rewards[:, column] = met - parts
        masks[:, column] = met < parts
    return rewards, masks


def _goal(family: Family, environment: Any) -> dict[str, Any]:
    """The goal of the task an environment was last reset to, fit for JSON."""
    if family == "maze":
        return {
            "xy": [float(each) for each in environment.cur_goal_xy],
            "tolerance": float(environment._goal_tol),
        }
    goal: dict[str, Any] = {}
    if family in ("cube", "scene"):
        # The targets of the cubes are the scene's mocap bodies.
        goal["cube_xyzs"] = environment.data.mocap_pos.tolist()
    if family in ("puzzle", "scene"):
        goal["button_states"] = environment._target_button_states.tolist()
    if family == "scene":
        goal["drawer"] = float(environment._target_drawer_pos)
        goal["window"] = float(environment._target_window_pos)
    return goal


def _environment_of(tasks: Sequence[Task]) -> Environment:
    """The one environment that all tasks belong to."""
    if stored := [task.name for task in tasks if task.recipe == "stored"]:
        raise UsageError(
            f"rewards of {', '.join(stored)} came with the data and cannot be made "
            "from physics state; leave these tasks out"
        )
    environments = {find_environment(task.environment_id) for task in tasks}
    if len(environments) != 1:
        names = ", ".join(sorted(each.name for each in environments)) or "no task"
        raise UsageError(
            f"expected tasks of one environment, got {names}; relabel each "
            "environment's data by its own tasks"
        )
    return environments.pop()


def _check_physics(environment: Environment, physics: Mapping[str, _Array]) -> int:
    """Refuses state that cannot be this environment's; returns the rows."""
    widths = {"qpos": environment.qpos_width, "button_states": environment.button_count}
    needs = _NEEDS[environment.family]
    for name in needs:
        if name not in physics:
            raise DataFormatError(
                f"relabelling {environment.environment_id} needs {name} "
                f"[rows, {widths[name]}], and the data have only "
                f"{', '.join(sorted(physics)) or 'no physics state'}; use data with "
                "physics state kept"
            )
    given = [name for name in widths if name in physics]
    rows = len(physics[needs[0]])
    for name in given:
        expected = (rows, widths[name])
        if physics[name].shape != expected:
            raise DataFormatError(
                f"expected {name} of shape {expected} for "
                f"{environment.environment_id}, got {physics[name].shape}; the data "
                "are of another environment, name the one they were made in"
            )
    return rows


@dataclass(frozen=True)
class _State:
    """What goals speak of, gathered once for all tasks of a block of rows.

    Attributes:
        places: Positions of cubes, or of the maze's body: one ``float64[n]`` an
            axis each, in metres.
        buttons: ``int[n]`` each.
        slides: ``float[n]`` each, by their name in a goal, in metres.
    """

    places: list[list[_Array]]
    buttons: list[_Array]
    slides: dict[str, _Array]


def _gather(environment: Environment, physics: Mapping[str, _Array]) -> _State:
    """Copies the columns that goals speak of out of a block of rows."""
    bodies = [cube_place(cube) for cube in range(environment.cube_count)]
    if environment.family == "maze":
        bodies = [slice(0, 2)]
    slides = {}
    if environment.family == "scene":
        slides = {"drawer": physics["qpos"][:, -2], "window": physics["qpos"][:, -1]}
    return _State(
        places=[
            [
                physics["qpos"][:, axis].astype(np.float64)
                for axis in range(body.start, body.stop)
            ]
            for body in bodies
        ],
        buttons=[
            physics["button_states"][:, button].copy()
            for button in range(environment.button_count)
        ],
        slides=slides,
    )


def _count_met(goal: Mapping[str, Any], state: _State, rows: int) -> tuple[_Array, int]:
    """How many parts of a goal each row meets, ``int8[n]``, and how many there are."""
    met = np.zeros(rows, np.int8)
    targets = [goal["xy"]] if "xy" in goal else goal.get("cube_xyzs", [])
    within = goal.get("tolerance", _IN_PLACE)
    for place, target in zip(state.places, targets, strict=True):
        # Summed axis by axis in this order, as the norm of a row is, so that not
        # even a state on the boundary is judged differently.
        squares = [(to - at) * (to - at) for to, at in zip(target, place, strict=True)]
        met += np.sqrt(sum(squares[1:], start=squares[0])) <= within
    for pressed, wanted in zip(
        state.buttons, goal.get("button_states", []), strict=True
    ):
        met += pressed == wanted
    for name, position in state.slides.items():
        # In the precision of the data, as OGBench does: float32 for its own files.
        met += np.abs(position - goal[name]) <= _IN_PLACE
    return met, len(state.places) + len(state.buttons) + len(state.slides)
