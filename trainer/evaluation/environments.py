"""Environments in worker processes, each of which plays a list of episodes.

This module knows NumPy and, through ``pipeline.domains``, Gymnasium and OGBench, which
are imported when an environment is made. It knows nothing of JAX, agents or files, so
that a worker starts quickly and touches no accelerator.

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
    check_time_limit,
    episode_seed,
    ignore_known_warnings,
    make_named_environment,
)
from pipeline.domains.observations import flatten
from pipeline.domains.spaces import Spaces, read_observation_space, read_spaces
from pipeline.store.errors import UsageError
from trainer.evaluation.child import Failure

Float32 = npt.NDArray[np.float32]
SuccessTiming = Literal["pre", "post"]

# Episode number of an environment that has no episode left to play.
IDLE = -1
# Names of success in `info`: OGBench's, and that of Gymnasium's robots.
_SUCCESS = ("success", "is_success")
# NumPy's global generator and Gymnasium's spaces take seeds of 32 bits at most.
_SEED_BITS = 2**31 - 1


@dataclass(frozen=True)
class MazeMap:
    """The walls of a maze, on a grid of square cells.

    Attributes:
        walls: Rows of cells with ascending y; a row has columns with ascending x. True
            where a wall fills the cell.
        unit_m: Side of a cell, in metres.
        origin_m: Centre ``(x, y)`` of the cell in row 0 and column 0, in metres.
    """

    walls: tuple[tuple[bool, ...], ...]
    unit_m: float
    origin_m: tuple[float, float]


@dataclass(frozen=True)
class EnvironmentFacts:
    """Facts that are read from an environment.

    Attributes:
        spaces: Spaces of observations and actions.
        success_timing: ``"pre"`` if success of a step is judged by the state before
            it, ``"post"`` if by the state after it.
        maze: Walls; None if the environment is no maze.
    """

    spaces: Spaces
    success_timing: SuccessTiming
    maze: MazeMap | None = None


@dataclass(frozen=True)
class Episode:
    """The outcome of one episode.

    Attributes:
        index: Number of the episode within its evaluation, from 0.
        success: Whether the last step reported success; None if the environment does
            not report success.
        total_reward: Undiscounted sum of rewards.
        length: Number of steps.
    """

    index: int
    success: bool | None
    total_reward: float
    length: int


class Turn(NamedTuple):
    """The state of a worker's environments, which wait for actions.

    Attributes:
        observations: ``f32[E, S]``; zeros of idle environments.
        episodes: ``i64[E]``, episode that each environment plays, or ``IDLE``.
        finished: Outcomes of the episodes that ended in this turn.
    """

    observations: Float32
    episodes: npt.NDArray[np.int64]
    finished: tuple[Episode, ...]


def make_task_environment(spec: TaskEnvironment) -> Any:
    """Makes the environment of a task, whose episodes must have a time limit.

    Args:
        spec: Environment to make.

    Returns:
        A ``gymnasium.Env`` with a time limit and without a renderer.

    Raises:
        MissingPackageError: If the simulator is not installed.
        UsageError: If the environment has no time limit, so that episodes might never
            end.
    """
    environment = make_named_environment(spec)
    with ignore_known_warnings():
        _keep_action_space(environment.unwrapped)
    check_time_limit(environment, spec.environment_id)
    return environment


def read_facts(environment: Any) -> EnvironmentFacts:
    """Reads the facts of an environment.

    Args:
        environment: Environment from ``make_task_environment``.

    Returns:
        The facts.

    Raises:
        UsageError: If observations are not numbers, or actions not continuous.
    """
    # OGBench before 1.2 had no such option and judged the state after the step. The
    # attribute is private, but no public one tells.
    timing: Any = getattr(environment.unwrapped, "_success_timing", "post")
    return EnvironmentFacts(
        spaces=read_spaces(environment),
        success_timing=timing,
        maze=_read_maze(environment.unwrapped),
    )


def _read_maze(environment: Any) -> MazeMap | None:
    """Reads the walls of an OGBench maze; None for any other environment."""
    if not hasattr(environment, "maze_map"):
        return None
    # The distance of two neighbouring cells is the unit of the grid.
    (x, y), (beside, _) = (environment.ij_to_xy((0, column)) for column in (0, 1))
    return MazeMap(
        walls=tuple(tuple(bool(cell) for cell in row) for row in environment.maze_map),
        unit_m=float(beside - x),
        origin_m=(float(x), float(y)),
    )


def _keep_action_space(environment: Any) -> None:
    """Makes an environment use a single action space, which can be seeded."""
    # OGBench's robot arms build a new space at every access, and their resets draw from
    # it. Each space would be seeded by the operating system, and no episode could be
    # repeated.
    kind = type(environment)
    if isinstance(getattr(kind, "action_space", None), property):
        members = {"action_space": environment.action_space}
        environment.__class__ = type(kind.__name__, (kind,), members)


class EpisodeEnvironment:
    """One environment and the episodes that it plays, one after another.

    An episode is a function of the evaluation's seed, its own number and the actions:
    the environment's generator, that of its action space and NumPy's global one are
    seeded when the episode starts.

    Attributes:
        episode: Number of the episode that is being played, or ``IDLE``.
        observation: ``f32[S]``, the current observation.

    Args:
        environment: Environment from ``make_task_environment``.
        evaluation_seed: Seed of the evaluation, at least 0.
        episodes: Numbers of the episodes, in order; none is allowed.
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
        """Takes one action; if that ends the episode, the next one starts.

        Args:
            action: ``f32[A]``; clipped to the environment's bounds, as OGBench does.

        Returns:
            The outcome of the episode if it ended, else None.
        """
        space = self._environment.action_space
        with self._own_numpy_state():
            observation, reward, terminated, truncated, info = self._environment.step(
                np.clip(action, space.low, space.high)
            )
        self.observation = _flatten_to_row(observation)
        self._total_reward += float(reward)
        self._length += 1
        if not (terminated or truncated):
            return None
        # Success of the last step: OGBench ends an episode at its first success.
        given = (info.get(name) for name in _SUCCESS)
        success = next((bool(value) for value in given if value is not None), None)
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
        # Resets of some environments draw from the action space.
        self._environment.action_space.seed(seed)
        with self._own_numpy_state():
            observation, _ = self._environment.reset(seed=seed)
        self.observation = _flatten_to_row(observation)

    @contextlib.contextmanager
    def _own_numpy_state(self) -> Iterator[None]:
        """Puts this episode's state into NumPy's global generator, for a while."""
        # OGBench's mazes draw from the global generator, which all environments of a
        # process share: without this, an episode would depend on its neighbours.
        outer = np.random.get_state()  # noqa: NPY002
        np.random.set_state(self._numpy_state)  # noqa: NPY002
        try:
            yield
        finally:
            self._numpy_state = np.random.get_state()  # noqa: NPY002
            np.random.set_state(outer)  # noqa: NPY002


def _flatten_to_row(observation: Any) -> Float32:
    """Lays an observation out as one row ``f32[S]``, as stores do."""
    return flatten(observation).astype(np.float32).reshape(-1)


def serve(connection: Connection, spec: TaskEnvironment) -> None:
    """Runs one worker: makes environments and steps them as its parent asks.

    The worker first makes one environment and sends its ``EnvironmentFacts``. Then it
    answers each message with a ``Turn``:

    - ``(evaluation_seed, queues)`` starts the episodes of ``queues``, one list for each
      environment, at least one; missing environments are made first;
    - ``f32[E, A]`` takes one step in every environment that is not idle.

    The worker ends when the parent closes the connection or dies. If an exception is
    raised, the worker sends a ``Failure`` and ends.

    Args:
        connection: Connection to the parent.
        spec: Environment to make.
    """
    # A terminal sends Ctrl-C to the parent as well, which then ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Evaluation renders nothing. Without this, importing the simulator looks for a
    # display and warns that there is none, or fails on a GPU setting it cannot use.
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
                # Environments are kept between evaluations: making one of a robot arm
                # takes seconds.
                doing = "making the environment"
                made += [make_task_environment(spec) for _ in queues[len(made) :]]
                doing = "starting the first episodes"
                running = [
                    EpisodeEnvironment(simulator, evaluation_seed, queue)
                    for simulator, queue in zip(made, queues, strict=False)
                ]
            else:
                for environment, action in zip(running, message, strict=True):
                    if environment.episode != IDLE:
                        doing = f"in episode {environment.episode}"
                        finished.append(environment.step(action))
            connection.send(
                Turn(
                    np.stack([environment.observation for environment in running]),
                    np.array(
                        [environment.episode for environment in running], np.int64
                    ),
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
