"""Environments in worker processes: each knows its episodes and starts the next itself.

Knows NumPy and, through ``pipeline.domains``, Gymnasium and OGBench, which are imported
only where a worker needs them. Knows nothing of JAX, agents or files, so a worker
starts quickly and touches no accelerator.

Dimensions: E environments of one worker, S observation, A action.
"""

import contextlib
import os
import signal
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.domains.datasets import TaskEnvironment
from pipeline.domains.environments import (
    episode_seed,
    known_warnings_ignored,
    make_named_environment,
)
from pipeline.domains.observations import flatten
from pipeline.domains.spaces import Spaces, read_observation_space, read_spaces
from pipeline.store.errors import UsageError
from trainer.evaluation.child import Failure

Float32 = npt.NDArray[np.float32]
SuccessTiming = Literal["pre", "post"]

IDLE = -1
# What environments call it: OGBench, and Gymnasium's robots.
_SUCCESS = ("success", "is_success")
# NumPy's global generator and Gymnasium's spaces take seeds of one word.
_SEED_BITS = 2**31 - 1


@dataclass(frozen=True)
class MazeMap:
    """Where the walls of a maze stand, on a grid of square cells.

    Attributes:
        walls: Rows of cells with ascending y, in each its columns with ascending x;
            True where a wall fills the cell.
        unit_m: Side of a cell, in metres.
        origin_m: Centre ``(x, y)`` of the cell in row 0 and column 0, in metres.
    """

    walls: tuple[tuple[bool, ...], ...]
    unit_m: float
    origin_m: tuple[float, float]


@dataclass(frozen=True)
class EnvironmentFacts:
    """What an environment says of itself.

    Attributes:
        spaces: What it observes and takes.
        success_timing: ``"pre"`` if success of a step is judged by the state before
            it, ``"post"`` by the state after it.
        maze: Its walls; None if the environment is no maze.
    """

    spaces: Spaces
    success_timing: SuccessTiming
    maze: MazeMap | None = None


@dataclass(frozen=True)
class Episode:
    """What came of one episode.

    Attributes:
        index: Number of the episode within its evaluation, from 0.
        success: Whether its last step was one of success; None if the environment
            says nothing of it.
        total_reward: Undiscounted sum of its rewards.
        length: Steps.
    """

    index: int
    success: bool | None
    total_reward: float
    length: int


class Turn(NamedTuple):
    """Where a worker's environments stand, waiting for actions.

    Attributes:
        observations: ``f32[E, S]``; zeros where idle.
        episodes: ``i64[E]``, episode each one is in, or ``IDLE``.
        finished: Episodes that ended in this turn.
    """

    observations: Float32
    episodes: npt.NDArray[np.int64]
    finished: tuple[Episode, ...]


def make_task_environment(spec: TaskEnvironment) -> Any:
    """Makes the environment of a task, in which every episode comes to an end.

    Args:
        spec: Which one.

    Returns:
        A ``gymnasium.Env`` with a time limit and without a renderer.

    Raises:
        MissingPackageError: If the simulator is not installed.
        UsageError: If the environment has no time limit, so episodes might not end.
    """
    environment = make_named_environment(spec)
    with known_warnings_ignored():
        _keep_action_space(environment.unwrapped)
    if getattr(environment.spec, "max_episode_steps", None) is None:
        raise UsageError(
            f"{spec.environment_id}: expected an environment with a time limit, this "
            "one has none; register it with max_episode_steps, or give "
            "--environment-arguments max_episode_steps=1000"
        )
    return environment


def read_facts(environment: Any) -> EnvironmentFacts:
    """Reads the facts of an environment.

    Args:
        environment: As ``make_task_environment`` returned it.

    Returns:
        Its facts.

    Raises:
        UsageError: If its observations are no numbers, or its actions not continuous.
    """
    # OGBench before 1.2 had no such choice and judged the state after the step.
    timing: Any = getattr(environment.unwrapped, "_success_timing", "post")
    return EnvironmentFacts(
        spaces=read_spaces(environment),
        success_timing=timing,
        maze=_read_maze(environment.unwrapped),
    )


def _read_maze(environment: Any) -> MazeMap | None:
    """Reads the walls of one of OGBench's mazes."""
    if not hasattr(environment, "maze_map"):
        return None
    (x, y), (beside, _) = (environment.ij_to_xy((0, column)) for column in (0, 1))
    return MazeMap(
        walls=tuple(tuple(bool(cell) for cell in row) for row in environment.maze_map),
        unit_m=float(beside - x),
        origin_m=(float(x), float(y)),
    )


def _keep_action_space(environment: Any) -> None:
    """Makes an environment use one action space, which can be seeded.

    OGBench's robot arms build a new one at every access, and their resets draw from
    it: an episode would depend on the operating system's entropy.
    """
    kind = type(environment)
    if isinstance(getattr(kind, "action_space", None), property):
        members = {"action_space": environment.action_space}
        environment.__class__ = type(kind.__name__, (kind,), members)


class EpisodeEnvironment:
    """One environment and the episodes it is to play, one after another.

    An episode is a function of the evaluation's seed, its own number and the actions:
    whatever the environment draws from, its own generator, that of its action space or
    NumPy's global one, is seeded when the episode starts and kept apart from the other
    environments of the process.

    Args:
        environment: As ``make_task_environment`` returned it.
        evaluation_seed: Not negative.
        episodes: Their numbers, in order; with none left it is idle.
    """

    def __init__(
        self, environment: Any, evaluation_seed: int, episodes: Sequence[int]
    ) -> None:
        self._environment = environment
        self._seed = evaluation_seed
        self._waiting = list(reversed(episodes))
        self._numpy_state: Any = None
        self._total_reward = 0.0
        self._length = 0
        self.episode = IDLE
        size = read_observation_space(environment.observation_space).size
        self.observation: Float32 = np.zeros(size, np.float32)
        self._start_next()

    def step(self, action: Float32) -> Episode | None:
        """Takes one action; when that ends the episode, the next one starts.

        Args:
            action: ``f32[A]``; clipped to the environment's bounds, as OGBench does.

        Returns:
            What came of the episode if it ended, else None.
        """
        space = self._environment.action_space
        with self._own_numpy_state():
            observation, reward, terminated, truncated, info = self._environment.step(
                np.clip(action, space.low, space.high)
            )
        self.observation = _flat(observation)
        self._total_reward += float(reward)
        self._length += 1
        if not (terminated or truncated):
            return None
        success = next((bool(info[name]) for name in _SUCCESS if name in info), None)
        episode = Episode(self.episode, success, self._total_reward, self._length)
        self._start_next()
        return episode

    def _start_next(self) -> None:
        self._total_reward, self._length = 0.0, 0
        if not self._waiting:
            self.episode = IDLE
            self.observation = np.zeros_like(self.observation)
            return
        self.episode = self._waiting.pop()
        seed = episode_seed(self._seed, self.episode) & _SEED_BITS
        self._numpy_state = np.random.RandomState(seed).get_state()
        self._environment.action_space.seed(seed)  # Resets draw from it.
        with self._own_numpy_state():
            observation, _ = self._environment.reset(seed=seed)
        self.observation = _flat(observation)

    @contextlib.contextmanager
    def _own_numpy_state(self) -> Iterator[None]:
        """Lends NumPy's global generator, which mazes draw from, to this episode."""
        outer = np.random.get_state()  # noqa: NPY002
        np.random.set_state(self._numpy_state)  # noqa: NPY002
        try:
            yield
        finally:
            self._numpy_state = np.random.get_state()  # noqa: NPY002
            np.random.set_state(outer)  # noqa: NPY002


def _flat(observation: Any) -> Float32:
    """An observation as one row, laid out as stores have it."""
    return flatten(observation).astype(np.float32).reshape(-1)


def serve(connection: Connection, spec: TaskEnvironment) -> None:
    """Runs one worker: makes environments and steps them as its parent asks.

    First it makes one environment and sends its ``EnvironmentFacts``. Then it answers
    each message with a ``Turn``:

    - ``(evaluation_seed, queues)``: starts the episodes of ``queues``, one list for
      each environment, at least one; missing environments are made first;
    - ``f32[E, A]``: takes one step in every environment that is not idle.

    It ends when the parent closes the connection or dies. When anything raises, it
    sends a ``Failure`` and ends.

    Args:
        connection: To the parent.
        spec: The environment.
    """
    # Stopping is the parent's business; it hears of Ctrl-C too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Nothing is drawn here. Without this, importing the simulator looks for a display
    # and warns that there is none, or fails on a GPU setting it cannot use.
    os.environ["MUJOCO_GL"] = "disabled"
    doing = "making the environment"
    try:
        made = [make_task_environment(spec)]
        connection.send(read_facts(made[0]))
        running: list[EpisodeEnvironment] = []
        while True:
            message = connection.recv()
            finished: list[Episode | None] = []
            if isinstance(message, tuple):
                evaluation_seed, queues = message
                doing = "making the environment"
                made += [make_task_environment(spec) for _ in queues[len(made) :]]
                doing = "starting the first episodes"
                running = [
                    EpisodeEnvironment(environment, evaluation_seed, queue)
                    for environment, queue in zip(made, queues, strict=False)
                ]
            else:
                for one, action in zip(running, message, strict=True):
                    if one.episode != IDLE:
                        doing = f"in episode {one.episode}"
                        finished.append(one.step(action))
            connection.send(
                Turn(
                    np.stack([one.observation for one in running]),
                    np.array([one.episode for one in running], np.int64),
                    tuple(episode for episode in finished if episode is not None),
                )
            )
    except EOFError:
        return
    except UsageError as error:
        with contextlib.suppress(OSError):
            connection.send(Failure(str(error), traceback.format_exc(), usage=True))
    except Exception as error:  # Sent to the parent, which raises it.
        summary = f"{type(error).__name__}: {error} ({doing})"
        with contextlib.suppress(OSError):
            connection.send(Failure(summary, traceback.format_exc()))
