"""The table of OGBench's data sets, environments and tasks.

The table lists the known environments, the names of their data sets, and the
environment in which each of their five tasks is evaluated. This module does not import
the simulator, so that a name can be checked on a machine without it.
"""

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.store.errors import UsageError

Family = Literal["maze", "cube", "scene", "puzzle"]

TASKS = (1, 2, 3, 4, 5)

_VERSION = "-v0"
# The qpos of a manipulation environment holds, in this order: the arm and its gripper;
# position and quaternion of each cube; the buttons; the drawer and the window.
ARM_QPOS = 14
CUBE_QPOS = 7


def cube_place(cube: int) -> slice:
    """Returns the columns of qpos with a cube's position: x, y and z in metres.

    Args:
        cube: Number of the cube, from 0.

    Example:
        >>> cube_place(0)
        slice(14, 17, None)
    """
    start = ARM_QPOS + CUBE_QPOS * cube
    return slice(start, start + 3)


@dataclass(frozen=True)
class Environment:
    """An environment, described without making it.

    Attributes:
        name: Gymnasium id without version, such as ``"cube-single"``.
        family: Kind of its tasks, which decides how rewards are computed.
        qpos_width: Components of the physics state ``qpos``.
        cube_count: Cubes in the scene.
        button_count: Buttons in the scene.
        dataset_types: Types of data sets that OGBench publishes for the environment.
        default_task: Task that a single-task id without a number stands for.
    """

    name: str
    family: Family
    qpos_width: int
    cube_count: int = 0
    button_count: int = 0
    dataset_types: tuple[str, ...] = ("play", "noisy")
    default_task: int = 2

    @property
    def environment_id(self) -> str:
        """Gymnasium id, such as ``"cube-single-v0"``."""
        return self.name + _VERSION


@dataclass(frozen=True)
class TaskEnvironment:
    """The environment in which one task is evaluated.

    Attributes:
        environment_id: Gymnasium id.
        kwargs: Arguments of ``gymnasium.make`` besides the id.
        module: Module that registers the id and is imported first. It is always typed
            by the user, and never read from a run or a store, which may come from a
            stranger.
    """

    environment_id: str
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    module: str = ""


@dataclass(frozen=True)
class Domain:
    """A data set of an environment; it is relabelled for the environment's tasks.

    Attributes:
        environment: The environment that the data were collected in.
        dataset_type: Kind of policy that collected them: ``"play"``, ``"noisy"``,
            ``"navigate"``, ``"stitch"`` or ``"explore"``.
    """

    environment: Environment
    dataset_type: str

    @property
    def dataset(self) -> str:
        """Data-set name without version, such as ``"cube-single-play"``."""
        return f"{self.environment.name}-{self.dataset_type}"

    @property
    def environment_id(self) -> str:
        """Gymnasium id of the data's environment, such as ``"cube-single-v0"``."""
        return self.environment.environment_id

    @property
    def family(self) -> Family:
        """Kind of the environment's tasks."""
        return self.environment.family

    @property
    def episode_rows(self) -> int:
        """Rows of one published episode, one more than its transitions."""
        usual = 2001 if self.environment.name.endswith("giant") else 1001
        return {"stitch": 201, "explore": 501}.get(self.dataset_type, usual)

    def task_environment(self, task: int) -> TaskEnvironment:
        """Finds the environment in which a task is evaluated.

        Args:
            task: Task number, from 1.

        Returns:
            Gymnasium id and arguments. Goals have no noise, and success is judged
            before each step, as for the rewards of the data.

        Raises:
            UsageError: If the environment has no such task.
        """
        if task not in TASKS:
            raise UsageError(
                f"{self.dataset} has no task {task}; its tasks are "
                f"{', '.join(map(str, TASKS))}, choose one of them"
            )
        if self.environment.name.startswith("pointmaze"):
            # Some releases of OGBench register no single-task ids for the point mass,
            # but every release takes the arguments that those ids stand for.
            return TaskEnvironment(
                self.environment_id,
                {
                    "reward_task_id": task,
                    "add_noise_to_goal": False,
                    "success_timing": "pre",
                },
            )
        return TaskEnvironment(
            f"{self.environment.name}-singletask-task{task}{_VERSION}"
        )


def _cube(name: str, cubes: int) -> Environment:
    """Describes an environment with cubes."""
    return Environment(
        f"cube-{name}", "cube", ARM_QPOS + CUBE_QPOS * cubes, cube_count=cubes
    )


def _puzzle(rows: int, columns: int) -> Environment:
    """Describes an environment with a grid of buttons."""
    return Environment(
        f"puzzle-{rows}x{columns}",
        "puzzle",
        ARM_QPOS + rows * columns,
        button_count=rows * columns,
        default_task=4 if rows * columns <= 16 else 2,
    )


def _maze(body: str, size: str, qpos_width: int, *dataset_types: str) -> Environment:
    """Describes a maze for a point mass or an ant."""
    return Environment(
        f"{body}-{size}",
        "maze",
        qpos_width,
        dataset_types=dataset_types,
        default_task=1,
    )


_ENVIRONMENTS: dict[str, Environment] = {
    environment.name: environment
    for environment in (
        _cube("single", 1),
        _cube("double", 2),
        _cube("triple", 3),
        _cube("quadruple", 4),
        _cube("octuple", 8),
        # A scene has a cube, two buttons, a drawer and a window.
        Environment(
            "scene",
            "scene",
            ARM_QPOS + CUBE_QPOS + 2 + 2,
            cube_count=1,
            button_count=2,
        ),
        _puzzle(3, 3),
        _puzzle(4, 4),
        _puzzle(4, 5),
        _puzzle(4, 6),
        _maze("pointmaze", "medium", 2, "navigate", "stitch"),
        _maze("pointmaze", "large", 2, "navigate", "stitch"),
        _maze("pointmaze", "giant", 2, "navigate", "stitch"),
        _maze("pointmaze", "teleport", 2, "navigate", "stitch"),
        _maze("antmaze", "medium", 15, "navigate", "stitch", "explore"),
        _maze("antmaze", "large", 15, "navigate", "stitch", "explore"),
        _maze("antmaze", "giant", 15, "navigate", "stitch"),
        _maze("antmaze", "teleport", 15, "navigate", "stitch", "explore"),
    )
}


def known_datasets() -> tuple[str, ...]:
    """Lists the names of all known data sets, without version."""
    return tuple(
        f"{environment.name}-{dataset_type}"
        for environment in _ENVIRONMENTS.values()
        for dataset_type in environment.dataset_types
    )


def parse_dataset(name: str) -> Domain:
    """Looks up a data set by its name.

    Args:
        name: ``ENVIRONMENT-TYPE``, with or without ``-v0``.

    Returns:
        The domain of that name.

    Raises:
        UsageError: If the name is unknown; the message lists the nearest known names.

    Example:
        >>> parse_dataset("puzzle-4x4-noisy-v0").environment_id
        'puzzle-4x4-v0'
    """
    stem = name.removesuffix(_VERSION)
    environment_name, _, dataset_type = stem.rpartition("-")
    environment = _ENVIRONMENTS.get(environment_name)
    if environment is None or dataset_type not in environment.dataset_types:
        raise UsageError(
            f"unknown data set {name!r}; {_nearest(stem, known_datasets())}. Expected "
            "ENVIRONMENT-TYPE, such as 'cube-single-play', with or without '-v0': "
            "correct the name"
        )
    return Domain(environment, dataset_type)


def split_task(name: str) -> tuple[str, int | None]:
    """Splits OGBench's name of a task's data set into data set and task.

    Args:
        name: Such as ``"cube-single-play-singletask-task1-v0"``. A name without a
            number means the environment's default task; any other name is taken for
            the name of a data set.

    Returns:
        Name of the data set without version, and the task; None if no task is named.

    Example:
        >>> split_task("scene-play-singletask-v0")
        ('scene-play', 2)
    """
    match = re.fullmatch(r"(.+?)(-singletask(-task(\d{1,3}))?)?(-v\d+)?", name)
    if match is None:
        return name, None
    dataset, single, _, number, _ = match.groups()
    if single is None or number is not None:
        return dataset, None if number is None else int(number)
    environment = _ENVIRONMENTS.get(dataset.rpartition("-")[0])
    return dataset, None if environment is None else environment.default_task


def find_environment(environment_id: str) -> Environment:
    """Looks an environment up by its Gymnasium id.

    Args:
        environment_id: Id with version, of the environment itself or of one of its
            single tasks, such as ``"scene-singletask-task2-v0"``.

    Returns:
        Description of the environment.

    Raises:
        UsageError: If the id is unknown; the message lists the nearest known ids.
    """
    name = re.sub(r"(-singletask(-task\d+)?)?-v0$", "", environment_id)
    if name not in _ENVIRONMENTS or name == environment_id:
        known = [environment.environment_id for environment in _ENVIRONMENTS.values()]
        raise UsageError(
            f"unknown environment {environment_id!r}; "
            f"{_nearest(environment_id, known)}. Correct the id, which ends in '-v0'"
        )
    return _ENVIRONMENTS[name]


def find_domain(environment_id: str, dataset_type: str) -> Domain:
    """Finds the data set of an environment by its type.

    Args:
        environment_id: Gymnasium id, such as ``"cube-single-v0"``.
        dataset_type: Such as ``"play"``.

    Returns:
        The domain.

    Raises:
        UsageError: If the environment is unknown, or has no data of that type.
    """
    environment = find_environment(environment_id)
    return parse_dataset(f"{environment.name}-{dataset_type}")


def format_nearest(name: str, known: Sequence[str]) -> str:
    """Formats the known names nearest to an unknown one; empty if none is near."""
    matches = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"nearest known: {', '.join(matches)}" if matches else ""


def _nearest(name: str, known: Sequence[str]) -> str:
    """Formats the nearest known names, or all of them, for an error."""
    return format_nearest(name, known) or f"known: {', '.join(known)}"
