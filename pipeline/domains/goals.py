"""Computes rewards and masks of a domain's tasks from the physics state.

The reward of row ``t`` is minus the number of parts of the goal that state ``s_t`` does
not meet. The mask is 0 where ``s_t`` meets all of them, else 1.

Reading the goals of the tasks needs the simulator. Relabelling needs NumPy alone, so
that Beam's workers need no simulator.
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
    ignore_known_warnings,
    make_environment,
    seed_numpy,
)
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.manifest import SuccessTiming, Task

# Distance to the target, in metres, within which OGBench counts a cube, the drawer or
# the window as in place.
_IN_PLACE = 0.04

# Physics fields from which the rewards of a family are computed.
_NEEDS: dict[Family, tuple[str, ...]] = {
    "maze": ("qpos",),
    "cube": ("qpos",),
    "scene": ("qpos", "button_states"),
    "puzzle": ("button_states",),
}

# Options that make a goal depend on the task alone, as in OGBench's single-task
# environments. By default an environment perturbs or permutes goals at every reset.
_FIXED_GOALS: dict[Family, dict[str, Any]] = {
    "maze": {"add_noise_to_goal": False},
    "cube": {"permute_blocks": False},
    "scene": {"permute_blocks": False},
    "puzzle": {},
}

_Array = NDArray[Any]


def read_tasks(
    domain: Domain,
    tasks: Sequence[int] = TASKS,
    *,
    success_timing: SuccessTiming = "pre",
) -> tuple[Task, ...]:
    """Reads the goals of a domain's tasks from its environment.

    Args:
        domain: The data set.
        tasks: Task numbers, from 1.
        success_timing: State that rewards are to be of, see `Task`.

    Returns:
        The tasks in order, with all that relabelling and evaluation need.

    Raises:
        UsageError: If the domain has no such task.
        MissingPackageError: If the simulator is not installed.
    """
    evaluated_in = [domain.task_environment(task) for task in tasks]
    # One environment serves all tasks, because making one takes a second or two.
    environment = make_environment(domain.environment_id, **_FIXED_GOALS[domain.family])
    read = []
    # Mazes draw from NumPy's global generator when they are reset. A fixed seed makes
    # the goals, and so the manifest, the same on every machine.
    with seed_numpy(0), ignore_known_warnings():
        for task, spec in zip(tasks, evaluated_in, strict=True):
            environment.reset(seed=0, options={"task_id": task})
            kwargs = dict(spec.kwargs)
            # Single-task environments judge before the step unless told otherwise.
            if success_timing != "pre":
                kwargs["success_timing"] = success_timing
            read.append(
                Task(
                    task=task,
                    name=environment.cur_task_info["task_name"],
                    environment_id=spec.environment_id,
                    environment_kwargs=kwargs,
                    recipe=domain.family,
                    goal=_read_goal(domain.family, environment),
                    success_timing=success_timing,
                )
            )
    return tuple(read)


def relabel_tasks(
    tasks: Sequence[Task], physics: Mapping[str, _Array]
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Computes rewards and masks of several tasks of one environment.

    Args:
        tasks: At least one task.
        physics: Physics state before each step, by name: ``qpos``,
            ``float32|float64[n, Q]`` in metres and radians, and
            ``button_states``, ``int[n, buttons]``. Other fields are ignored.

    Returns:
        ``float32[n, tasks]`` rewards, from minus the number of the goal's parts to 0,
        and ``uint8[n, tasks]`` masks, 0 where the state solves the task, else 1.

    Raises:
        DataFormatError: If physics fields are missing or of wrong shape.
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


def _read_goal(family: Family, environment: Any) -> dict[str, Any]:
    """Reads the goal that an environment was last reset to, as JSON values."""
    if family == "maze":
        return {
            "xy": [float(coordinate) for coordinate in environment.cur_goal_xy],
            "tolerance": float(environment._goal_tol),
        }
    goal: dict[str, Any] = {}
    if family in ("cube", "scene"):
        # OGBench keeps the target of each cube as a mocap body of MuJoCo.
        goal["cube_xyzs"] = environment.data.mocap_pos.tolist()
    if family in ("puzzle", "scene"):
        goal["button_states"] = environment._target_button_states.tolist()
    if family == "scene":
        goal["drawer"] = float(environment._target_drawer_pos)
        goal["window"] = float(environment._target_window_pos)
    return goal


def _environment_of(tasks: Sequence[Task]) -> Environment:
    """Finds the one environment that all tasks belong to."""
    if stored := [task.name for task in tasks if task.recipe == "stored"]:
        raise UsageError(
            f"rewards of {', '.join(stored)} came with the data and cannot be made "
            "from physics state; leave these tasks out"
        )
    environments = {find_environment(task.environment_id) for task in tasks}
    if len(environments) != 1:
        names = ", ".join(sorted(known.name for known in environments)) or "no task"
        raise UsageError(
            f"expected tasks of one environment, got {names}; relabel each "
            "environment's data by its own tasks"
        )
    return environments.pop()


def _check_physics(environment: Environment, physics: Mapping[str, _Array]) -> int:
    """Refuses physics fields of another environment; returns the number of rows."""
    widths = {"qpos": environment.qpos_width, "button_states": environment.button_count}
    needs = _NEEDS[environment.family]
    for name in needs:
        if name not in physics:
            raise DataFormatError(
                f"relabelling {environment.environment_id} needs {name} "
                f"[rows, {widths[name]}], and the data have only "
                f"{', '.join(sorted(physics)) or 'no physics state'}; use data with "
                "physics state kept, or shard data with rewards of their own under "
                "another --dataset"
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
    """The columns of a block of rows that goals are compared with.

    Columns are copied out once for all tasks, because a contiguous column is compared
    faster than a strided view of wide rows.

    Attributes:
        places: Positions of cubes, or of the maze's body, in metres: for each body a
            list of ``float64[n]``, one for each axis.
        buttons: States ``int[n]`` of each button.
        slides: Positions ``float[n]`` of drawer and window, by their names in a goal,
            in metres.
    """

    places: list[list[_Array]]
    buttons: list[_Array]
    slides: dict[str, _Array]


def _gather(environment: Environment, physics: Mapping[str, _Array]) -> _State:
    """Copies the columns that goals are compared with out of a block of rows."""
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
    """Counts the parts of a goal that each row meets.

    Returns:
        ``int8[n]``, parts that are met, and the number of all parts.
    """
    met = np.zeros(rows, np.int8)
    targets = [goal["xy"]] if "xy" in goal else goal.get("cube_xyzs", [])
    within = goal.get("tolerance", _IN_PLACE)
    for place, target in zip(state.places, targets, strict=True):
        # The squares are summed in the order of np.linalg.norm, which OGBench calls, so
        # that rounding judges even a state on the boundary as OGBench does.
        squares = [(to - at) * (to - at) for to, at in zip(target, place, strict=True)]
        met += np.sqrt(sum(squares[1:], start=squares[0])) <= within
    for pressed, wanted in zip(
        state.buttons, goal.get("button_states", []), strict=True
    ):
        met += pressed == wanted
    for name, position in state.slides.items():
        # Compared in the data's own precision, float32 in OGBench's files, as OGBench
        # does.
        met += np.abs(position - goal[name]) <= _IN_PLACE
    return met, len(state.places) + len(state.buttons) + len(state.slides)
