"""What a policy means to reach, beside what it reached: sub-goals along rollouts.

Knows neither files nor pictures. Dimensions: T steps of an episode, S observation,
A action, K maximum horizon, N compared steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import jax
import numpy as np
import numpy.typing as npt

from pipeline.store.errors import UsageError
from trainer.agents.base import Agent
from trainer.evaluation.environments import IDLE, Episode
from trainer.evaluation.rollouts import RolloutPool, make_acting_key
from trainer.nn.networks import Params

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

# A component that deviates by less than this share of the median deviation hardly
# changes, such as a joint that holds a gripper upright. A flow that has one scale for
# all of them misses it by little; in its own deviations that would drown all else.
_HARDLY = 0.05


@runtime_checkable
class SubgoalAgent(Protocol):
    """An agent that can say what it is about to do."""

    def predict_subgoal(
        self, params: Params, observation: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Draws the horizon and the sub-goal that ``act`` with this key pursues."""


@dataclass(frozen=True)
class Trace:
    """One episode, step by step.

    Attributes:
        episode: What came of it.
        observations: ``f32[T, S]``, before each action, in the units of the data.
        actions: ``f32[T, A]``.
        horizons: ``f32[T]``, in how many steps each sub-goal is to be reached.
        subgoals: ``f32[T, S]``, in the units of the data.
    """

    episode: Episode
    observations: Float32
    actions: Float32
    horizons: Float32
    subgoals: Float32

    @property
    def steps_ahead(self) -> Int64:
        """``i64[T]``, horizons in whole steps."""
        return np.rint(self.horizons).astype(np.int64)


@dataclass(frozen=True)
class Comparison:
    """Predicted states against those that came, as many steps later as was said.

    Steps whose horizon goes past the last observation of their episode are left out.

    Attributes:
        episodes: ``i64[N]``, which episode.
        steps: ``i64[N]``, step within it.
        horizons: ``i64[N]``, in whole steps.
        errors: ``f64[N]``, Euclidean distance in the units of the data.
        relative_errors: ``f64[N]``, root mean square of the error in standard
            deviations of the data, over components that ``vary``. Two unrelated states
            of the data are about 1.4 apart.
        relative_changes: ``f64[N]``, the same distance between the state now and the
            one that came: the error of predicting that nothing moves.
    """

    episodes: Int64
    steps: Int64
    horizons: Int64
    errors: Float64
    relative_errors: Float64
    relative_changes: Float64


def vary(std: Sequence[float]) -> npt.NDArray[np.bool_]:
    """Which components of a state tell states apart.

    Args:
        std: Standard deviation of each in the data.

    Returns:
        ``bool[S]``; False where one deviates by less than a twentieth of the median.

    Example:
        >>> vary((1.0, 0.5, 0.01, 0.0)).tolist()
        [True, True, False, False]
    """
    deviations = np.asarray(std, np.float64)
    moving = deviations[deviations > 0]
    floor = _HARDLY * float(np.median(moving)) if len(moving) else 0.0
    return np.asarray(deviations > floor)


def play_traces(
    pool: RolloutPool, agent: Agent[Any], params: Params, *, episodes: int, seed: int
) -> list[Trace]:
    """Plays episodes as an evaluation does, and notes every step.

    Args:
        pool: Entered.
        agent: One that predicts sub-goals and acts one step at a time.
        params: Of one training seed.
        episodes: How many.
        seed: Of the evaluation; the same one gives the same episodes.

    Returns:
        The episodes by number.

    Raises:
        UsageError: If the agent has no sub-goals.
        EvaluationError: If the environment or its process fails.
    """
    if not isinstance(agent, SubgoalAgent) or agent.chunk != 1:
        raise UsageError(
            f"{type(agent).__name__} predicts no sub-goals; name a run of an agent "
            "that does, such as vast"
        )
    predict = agent.predict_subgoal

    @jax.jit
    def choose(
        seed: jax.Array, observations: jax.Array, episodes: jax.Array, steps: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        def one(
            observation: jax.Array, episode: jax.Array, step: jax.Array
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            key = make_acting_key(seed, episode, step)
            horizon, subgoal = predict(params, observation, key)
            return agent.act(params, observation, key), horizon, subgoal

        return jax.vmap(one)(observations, episodes, steps)

    notes: dict[int, list[tuple[Float32, ...]]] = {}

    def policy(observations: Float32, episodes: Int64, steps: Int64) -> Float32:
        actions, horizons, subgoals = (
            np.asarray(each)
            for each in choose(
                np.uint32(seed),
                observations,
                np.maximum(episodes, 0).astype(np.uint32),
                steps.astype(np.uint32),
            )
        )
        for row in np.flatnonzero(episodes != IDLE).tolist():
            noted = (observations, actions[:, 0], horizons, subgoals)
            notes.setdefault(int(episodes[row]), []).append(
                tuple(each[row].copy() for each in noted)
            )
        return cast(Float32, actions)

    played = pool.roll_out(policy, episodes=episodes, seed=seed)
    return [
        Trace(episode, *(np.stack(column) for column in zip(*notes[episode.index])))  # noqa: B905
        for episode in played
    ]


def compare(traces: Sequence[Trace], std: Sequence[float]) -> Comparison:
    """Compares every predicted state with the one that came.

    Args:
        traces: Episodes.
        std: Standard deviation of each component of the observations in the data.

    Returns:
        The comparison, by episode, then step.
    """
    deviations = np.asarray(std, np.float64)
    varies = vary(std)
    columns: list[tuple[npt.NDArray[np.generic], ...]] = []
    for trace in traces:
        ahead = trace.steps_ahead
        steps = np.flatnonzero(np.arange(len(ahead)) + ahead < len(ahead))
        now, came, predicted = (
            each.astype(np.float64)
            for each in (
                trace.observations[steps],
                trace.observations[steps + ahead[steps]],
                trace.subgoals[steps],
            )
        )
        relative_error, relative_change = (
            np.sqrt(np.square(each[:, varies] / deviations[varies]).mean(axis=1))
            for each in (predicted - came, now - came)
        )
        columns.append(
            (
                np.full(len(steps), trace.episode.index),
                steps,
                ahead[steps],
                np.linalg.norm(predicted - came, axis=1),
                relative_error,
                relative_change,
            )
        )
    joined = [np.concatenate(column) for column in zip(*columns, strict=True)]
    return Comparison(*joined)


def mean_by_horizon(
    values: Float64, horizons: Int64, max_horizon: int
) -> npt.NDArray[np.float64]:
    """Means by horizon: ``f64[K + 1]``, NaN where there is none."""
    counts = np.bincount(horizons, minlength=max_horizon + 1)
    sums = np.bincount(horizons, weights=values, minlength=max_horizon + 1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
