"""Rollouts of a policy in several processes, as a function of seeds alone.

Environments live in worker processes; the policy is called in this one, for all
environments at once. Episode ``e`` is always played by environment ``e mod E`` and in
row ``e mod E`` of the policy's batch. So neither the number of workers nor the order in
which episodes end can change a result, and short episodes are not favoured.

Dimensions: E environments, C actions of a call, S observation, A action.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from types import TracebackType
from typing import Any, Protocol, cast

import jax
import numpy as np
import numpy.typing as npt

from pipeline.domains.datasets import TaskEnvironment
from pipeline.store.action_scale import ActionScale
from pipeline.store.errors import UsageError
from trainer.agents.base import Agent
from trainer.errors import EvaluationError
from trainer.evaluation.child import Child
from trainer.evaluation.environments import (
    IDLE,
    EnvironmentFacts,
    Episode,
    serve,
)
from trainer.nn.networks import Params

# More environments would make the policy's batch larger, but the start longer: making
# one of a robot arm takes two seconds.
DEFAULT_ENVIRONMENTS = 8

Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]


class Policy(Protocol):
    """Chooses actions for many environments at once."""

    def __call__(
        self, observations: Float32, episodes: Int64, steps: Int64
    ) -> npt.ArrayLike:
        """Chooses actions.

        Args:
            observations: ``f32[E, S]``, in the units of the data.
            episodes: ``i64[E]``, episode of each row; rows of ``IDLE`` are not used.
            steps: ``i64[E]``, steps taken in that episode.

        Returns:
            ``f32[E, C, A]`` in [-1, 1]: C actions of each row, to be taken one after
            another.
        """


def make_acting_key(seed: jax.Array, episode: jax.Array, step: jax.Array) -> jax.Array:
    """Makes the key of one call of a policy, from seed, episode and step alone."""
    # No key is handed on from step to step, so that an episode draws the same noise
    # whatever row it is in and whichever episodes were played before it.
    root = jax.random.key(seed)
    return jax.random.fold_in(jax.random.fold_in(root, episode), step)


def make_acting_function(agent: Agent[Any]) -> Callable[..., jax.Array]:
    """Makes the pure function that a policy of an agent computes.

    Args:
        agent: Agent whose ``act`` is called.

    Returns:
        A function of parameters, a seed ``u32[]``, observations ``f32[E, S]``, episodes
        ``u32[E]`` and steps ``u32[E]`` to actions ``f32[E, C, A]``.
    """

    def act(
        params: Params,
        seed: jax.Array,
        observations: jax.Array,
        episodes: jax.Array,
        steps: jax.Array,
    ) -> jax.Array:
        def act_in_row(
            observation: jax.Array, episode: jax.Array, step: jax.Array
        ) -> jax.Array:
            key = make_acting_key(seed, episode, step)
            return agent.act(params, observation, key)

        return jax.vmap(act_in_row)(observations, episodes, steps)

    return act


@lru_cache(maxsize=8)  # Another evaluation of the same agent compiles nothing again.
def _jit_acting(agent: Agent[Any]) -> Callable[..., jax.Array]:
    return jax.jit(make_acting_function(agent))


class AgentActor:
    """Makes policies of an agent's parameters, with one compilation for all of them.

    Args:
        agent: Agent whose ``act`` is called.
    """

    def __init__(self, agent: Agent[Any]) -> None:
        self._act = _jit_acting(agent)

    def make_policy(self, params: Params, seed: int) -> Policy:
        """Makes the policy of some parameters and a seed.

        Args:
            params: Parameters of the agent.
            seed: Seed of the evaluation, see ``make_acting_key``.

        Returns:
            The policy.
        """

        def act(observations: Float32, episodes: Int64, steps: Int64) -> Float32:
            return np.asarray(
                self._act(
                    params,
                    np.uint32(seed),
                    observations,
                    # Idle rows act, too, but nobody looks; -1 would wrap around.
                    np.maximum(episodes, 0).astype(np.uint32),
                    steps.astype(np.uint32),
                )
            )

        return act


class RolloutPool:
    """Worker processes with environments, for any number of evaluations.

    The pool is a context manager; leaving it ends the workers.

    Args:
        spec: Environment to act in.
        environments: Environments E that are acted in at once. A result's last digits
            may depend on it, since a policy's arithmetic depends on the size of its
            batch.
        workers: Number of processes; at most E are started.
        action_scale: Environment's actions that -1 and 1 of the policy stand for; None
            if they are -1 and 1.

    Raises:
        UsageError: If either number is below 1; on entering, if there is no such
            environment.
        EvaluationError: On entering, if an environment fails.
    """

    def __init__(
        self,
        spec: TaskEnvironment,
        *,
        environments: int = DEFAULT_ENVIRONMENTS,
        workers: int,
        action_scale: ActionScale | None = None,
    ) -> None:
        for name, number in (("environments", environments), ("workers", workers)):
            if number < 1:
                raise UsageError(f"{name}: expected at least 1, got {number}; raise it")
        self.environments = environments
        self._spec = spec
        self._action_scale = action_scale
        self._count = min(workers, environments)
        self._workers: list[Child] = []
        self._facts: EnvironmentFacts | None = None

    def __enter__(self) -> "RolloutPool":
        try:
            self._workers = [
                Child(
                    f"environment-{index}",
                    f"{self._spec.environment_id}, worker {index}",
                    serve,
                    (self._spec,),
                )
                for index in range(self._count)
            ]
            # Waited for only after all were started: each takes seconds.
            facts = [worker.receive() for worker in self._workers]
        except BaseException:
            self.close()
            raise
        self._facts = cast(EnvironmentFacts, facts[0])
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def facts(self) -> EnvironmentFacts:
        """Facts of the environment, once the pool is entered."""
        assert self._facts is not None, "enter the pool first"
        return self._facts

    def close(self) -> None:
        """Ends the workers; may be called twice."""
        for worker in self._workers:
            worker.close()
        self._workers = []

    def roll_out(
        self,
        policy: Policy,
        *,
        episodes: int,
        seed: int,
        on_episode: Callable[[Episode], None] | None = None,
    ) -> list[Episode]:
        """Plays exactly the episodes 0 to ``episodes - 1``.

        Args:
            policy: Policy that chooses the actions.
            episodes: Number of episodes.
            seed: Seed of the evaluation, which fixes how every episode starts.
            on_episode: Callback for each episode as it ends, in no fixed order.

        Returns:
            The outcomes, sorted by episode.

        Raises:
            UsageError: If ``episodes`` or ``seed`` is out of range.
            EvaluationError: If an environment or its process fails, or the policy
                returns an action that is not finite. The pool is then closed.
        """
        if episodes < 1:
            raise UsageError(f"episodes: expected at least 1, got {episodes}; raise it")
        if not 0 <= seed < 2**32:
            raise UsageError(
                f"seed: expected 0 to 2**32 - 1, got {seed}; choose another"
            )
        try:
            return self._play(policy, episodes, seed, on_episode)
        except BaseException:
            # Workers that are in the middle of an episode cannot be used again.
            self.close()
            raise

    def _play(
        self,
        policy: Policy,
        episodes: int,
        seed: int,
        on_episode: Callable[[Episode], None] | None,
    ) -> list[Episode]:
        E = self.environments
        rows = ActingRows(E, self.facts.spaces.observation.size)
        playing: list[tuple[Child, Int64]] = []
        for index, worker in enumerate(self._workers):
            # Worker w has environments w, w + W, ...: also a few episodes then keep all
            # workers busy.
            slots = np.arange(index, min(E, episodes), self._count)
            if len(slots):
                queues = [list(range(slot, episodes, E)) for slot in slots.tolist()]
                worker.send((seed, queues))
                playing.append((worker, slots))
        done: list[Episode] = []
        while True:
            # All workers step at once; results do not depend on who answers first.
            for worker, slots in playing:
                turn = worker.receive()
                rows.update(slots, turn.observations, turn.episodes)
                for episode in turn.finished:
                    done.append(episode)
                    if on_episode is not None:
                        on_episode(episode)
            playing = [
                (worker, slots) for worker, slots in playing if rows.active[slots].any()
            ]
            if not playing:
                return sorted(done, key=lambda episode: episode.index)
            actions = rows.next_actions(policy)
            if self._action_scale is not None:
                actions = self._action_scale.from_unit(actions)
            for worker, slots in playing:
                worker.send(actions[slots])


class ActingRows:
    """The policy's batch: each environment's state, and its actions yet to be taken.

    Args:
        environments: Environments E.
        observation_dim: Components S of an observation.
    """

    def __init__(self, environments: int, observation_dim: int) -> None:
        self._observations = np.zeros((environments, observation_dim), np.float32)
        self._episodes = np.full(environments, IDLE, np.int64)
        self._steps = np.zeros(environments, np.int64)
        self._chunks: list[Float32] = [np.zeros((0, 0), np.float32)] * environments

    @property
    def active(self) -> npt.NDArray[np.bool_]:
        """``bool[E]``, environments that are playing an episode."""
        return np.not_equal(self._episodes, IDLE)

    def update(
        self, slots: Int64, observations: Float32, episodes: Sequence[int]
    ) -> None:
        """Takes the observations of some environments after a step or a reset.

        Args:
            slots: ``i64[n]``, numbers of the environments.
            observations: ``f32[n, ...]``, S numbers of each environment.
            episodes: Episode of each environment, or ``IDLE``.
        """
        self._observations[slots] = observations.reshape(len(slots), -1)
        for slot, episode in zip(slots.tolist(), episodes, strict=True):
            if self._episodes[slot] == episode:
                self._steps[slot] += 1
            else:
                # The rest of a chunk was planned for the episode that has ended.
                self._episodes[slot] = episode
                self._steps[slot] = 0
                self._chunks[slot] = self._chunks[slot][:0]

    def next_actions(self, policy: Policy) -> Float32:
        """Takes the next action of each row: ``f32[E, A]``; idle rows have zeros.

        Args:
            policy: Policy, which is called if a row has no planned action left.

        Returns:
            The actions.

        Raises:
            EvaluationError: If the policy's actions are not finite; the message says
                whether the observation was.
        """
        empty = np.array([len(chunk) == 0 for chunk in self._chunks]) & self.active
        if empty.any():
            # For all rows, though some need none: the batch keeps its size, for which
            # the policy is compiled and which its last digits may depend on.
            chunks = np.asarray(
                policy(self._observations, self._episodes, self._steps), np.float32
            )
            bad = empty & ~np.isfinite(chunks).all(axis=(1, 2))
            if bad.any():
                row = int(bad.argmax())
                place = f"episode {self._episodes[row]}, step {self._steps[row]}"
                seen = self._observations[row]
                if not np.isfinite(seen).all():
                    at = int(np.isfinite(seen).argmin())
                    raise EvaluationError(
                        f"{place}: expected finite observations of the environment, "
                        f"got {seen[at]} as observations[{at}]; its simulation is not "
                        "stable under these actions, look there"
                    )
                raise EvaluationError(
                    f"{place}: expected finite actions of the policy, got "
                    f"{chunks[row].tolist()}; the parameters have diverged, evaluate "
                    "an earlier checkpoint"
                )
            for index in np.flatnonzero(empty).tolist():
                self._chunks[index] = chunks[index]
        width = max(chunk.shape[1] for chunk in self._chunks)
        actions = np.zeros((len(self._chunks), width), np.float32)
        for index in np.flatnonzero(self.active).tolist():
            chunk = self._chunks[index]
            actions[index], self._chunks[index] = chunk[0], chunk[1:]
        return actions
