"""Sub-goals along rollouts, beside the states that the policy then reached.

This module knows neither files nor pictures. Dimensions: T steps of an episode,
S observation, A action, K maximum horizon, N compared steps.
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

# A component whose deviation is below this share of the median one hardly changes, such
# as a joint that holds a gripper upright. A flow with one scale for all components is
# off by little there, but by many of its deviations: that would outweigh all else.
_LEAST_SHARE = 0.05


@runtime_checkable
class SubgoalAgent(Protocol):
    """An agent that predicts the states that it is about to reach."""

    def predict_subgoal(
        self, params: Params, observation: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Draws the horizon and the sub-goal that ``act`` with this key pursues."""


@dataclass(frozen=True)
class Trace:
    """One episode, step by step.

    Attributes:
        episode: Outcome of the episode.
        observations: ``f32[T, S]``, before each action, in the units of the data.
        actions: ``f32[T, A]``, actions taken.
        horizons: ``f32[T]``, number of steps in which each sub-goal is to be reached.
        subgoals: ``f32[T, S]``, predicted states in the units of the data.
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
    """Predicted states against those that came after as many steps as predicted.

    Steps whose horizon goes past the last observation of their episode are left out.

    Attributes:
        episodes: ``i64[N]``, number of the episode.
        steps: ``i64[N]``, step within the episode.
        horizons: ``i64[N]``, in whole steps.
        errors: ``f64[N]``, Euclidean distance in the units of the data.
        relative_errors: ``f64[N]``, root mean square of the error in standard
            deviations of the data, over components that vary. Two unrelated states
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


def select_varying(std: Sequence[float]) -> npt.NDArray[np.bool_]:
    """Selects the components of a state that tell states apart.

    Args:
        std: Standard deviation of each component in the data.

    Returns:
        ``bool[S]``; False for deviations below a twentieth of the median.

    Example:
        >>> select_varying((1.0, 0.5, 0.01, 0.0)).tolist()
        [True, True, False, False]
    """
    deviations = np.asarray(std, np.float64)
    moving = deviations[deviations > 0]
    floor = _LEAST_SHARE * float(np.median(moving)) if len(moving) else 0.0
    return np.asarray(deviations > floor)


def play_traces(
    pool: RolloutPool, agent: Agent[Any], params: Params, *, episodes: int, seed: int
) -> list[Trace]:
    """Plays episodes as an evaluation does, and records every step.

    Args:
        pool: Environments; the pool has been entered.
        agent: An agent that predicts sub-goals and acts one step at a time.
        params: Parameters of one training seed.
        episodes: Number of episodes.
        seed: Seed of the evaluation; equal seeds give equal episodes.

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

    # Sub-goal and action are drawn from the same key, as when acting: an evaluation
    # of the same seed plays the same episodes.
    @jax.jit
    def choose(
        seed: jax.Array, observations: jax.Array, episodes: jax.Array, steps: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        def choose_one(
            observation: jax.Array, episode: jax.Array, step: jax.Array
        ) -> tuple[jax.Array, jax.Array, jax.Array]:
            key = make_acting_key(seed, episode, step)
            horizon, subgoal = predict(params, observation, key)
            return agent.act(params, observation, key), horizon, subgoal

        return jax.vmap(choose_one)(observations, episodes, steps)

    records: dict[int, list[tuple[Float32, ...]]] = {}

    def policy(observations: Float32, episodes: Int64, steps: Int64) -> Float32:
        actions, horizons, subgoals = (
            np.asarray(drawn)
            for drawn in choose(
                np.uint32(seed),
                observations,
                # Rows that idle have a negative episode; what is drawn there is unused.
                np.maximum(episodes, 0).astype(np.uint32),
                steps.astype(np.uint32),
            )
        )
        for row in np.flatnonzero(episodes != IDLE).tolist():
            # Copies: the pool writes its next observations into the same array.
            columns = (observations, actions[:, 0], horizons, subgoals)
            records.setdefault(int(episodes[row]), []).append(
                tuple(column[row].copy() for column in columns)
            )
        return cast(Float32, actions)

    played = pool.roll_out(policy, episodes=episodes, seed=seed)
    return [
        Trace(episode, *(np.stack(column) for column in zip(*records[episode.index])))  # noqa: B905
        for episode in played
    ]


def compare(traces: Sequence[Trace], std: Sequence[float]) -> Comparison:
    """Compares every predicted state with the state that came.

    Args:
        traces: Episodes with their sub-goals.
        std: Standard deviation of each component of the observations in the data.

    Returns:
        The comparison, by episode, then step.
    """
    deviations = np.asarray(std, np.float64)
    varies = select_varying(std)
    columns: list[tuple[npt.NDArray[np.generic], ...]] = []
    for trace in traces:
        ahead = trace.steps_ahead
        steps = np.flatnonzero(np.arange(len(ahead)) + ahead < len(ahead))
        now, came, predicted = (
            states.astype(np.float64)
            for states in (
                trace.observations[steps],
                trace.observations[steps + ahead[steps]],
                trace.subgoals[steps],
            )
        )
        relative_error, relative_change = (
            np.sqrt(np.square(change[:, varies] / deviations[varies]).mean(axis=1))
            for change in (predicted - came, now - came)
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
    """Averages by horizon: ``f64[K + 1]``, NaN where no step has the horizon."""
    counts = np.bincount(horizons, minlength=max_horizon + 1)
    sums = np.bincount(horizons, weights=values, minlength=max_horizon + 1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
