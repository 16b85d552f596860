"""The interface of agents: pure functions over a state, and facts of the data.

An agent knows nothing of stores, meshes, files or seeds that are trained in parallel:
the training call maps and shards its functions.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import optax

from trainer.agents.settings import AgentSettings
from trainer.data.sampling import Sampler
from trainer.nn.choices import StateScaling
from trainer.nn.networks import Params


@dataclass(frozen=True)
class DataFacts:
    """Constants of a data set and task that an agent may build on.

    They are taken from the store when training starts and kept in the checkpoint, so
    that acting needs no data.

    Attributes:
        observation_dim: Components S of an observation.
        action_dim: Components A of an action.
        observation_mean: Mean of each component over the train split.
        observation_std: Standard deviation of each component over the train split.
        reward_min: Smallest reward of the task in the data.
        reward_max: Largest reward of the task in the data.
        return_max: Largest discounted return to the end of an episode in the data;
            values far above it are over-estimated.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    observation_dim: int
    action_dim: int
    observation_mean: tuple[float, ...]
    observation_std: tuple[float, ...]
    reward_min: float
    reward_max: float
    return_max: float

    def return_range(self, discount: float) -> tuple[float, float]:
        """Computes the smallest and largest discounted sum that rewards can have.

        Args:
            discount: Discount of rewards, in (0, 1].

        Returns:
            ``(low, high)``, the sums over an endless episode.
        """
        # An episode may end at once, so 0 is always possible. At discount 1 the number
        # of steps is infinite, and `low and` keeps 0 * inf from becoming NaN.
        steps = math.inf if discount >= 1 else 1 / (1 - discount)
        low, high = min(0.0, self.reward_min), max(0.0, self.reward_max)
        return (low and low * steps), (high and high * steps)


class AgentState(NamedTuple):
    """Everything that an update changes.

    Attributes:
        params: Optimised parameters by network.
        targets: Target networks' parameters. They lie outside the optimised tree, so
            that Adam keeps no moments for them.
        opt_state: State of the optimiser.
        step: ``i32[]``, updates done.
        average: Moving average of ``params``, which acts in their place; None if the
            agent's ``ema_decay`` is 0.
    """

    params: Params
    targets: Params
    opt_state: Any
    step: jax.Array
    average: Params | None = None

    @property
    def acting(self) -> Params:
        """Parameters that act."""
        return self.params if self.average is None else self.average


class Metrics(NamedTuple):
    """Metrics of one update, grouped by how they are reduced over several updates.

    Attributes:
        mean: Metrics that are averaged.
        max: Metrics whose maximum is taken.
        total: Metrics that are summed, among them vectors by horizon.
    """

    mean: dict[str, jax.Array]
    max: dict[str, jax.Array]
    total: dict[str, jax.Array]

    def reduce(self) -> "Metrics":
        """Reduces metrics over their leading axis, which counts updates."""
        return Metrics(
            mean=jax.tree.map(lambda x: x.mean(axis=0), self.mean),
            max=jax.tree.map(lambda x: x.max(axis=0), self.max),
            total=jax.tree.map(lambda x: x.sum(axis=0), self.total),
        )


BatchT = TypeVar("BatchT")


class Agent(Protocol[BatchT]):
    """One algorithm, and the batches that it learns from.

    Agents are immutable and hashable: equal agents share their compiled functions.
    """

    def __hash__(self) -> int:
        """Hashes the settings and facts, as frozen dataclasses do."""

    @property
    def config(self) -> AgentSettings:
        """Hyperparameters of the agent."""

    @property
    def sampler(self) -> Sampler[Any, BatchT]:
        """Sampler of the windows that the agent trains on."""

    @property
    def chunk(self) -> int:
        """Actions that one call of ``act`` returns, to be executed open loop."""

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Optimiser of all networks."""

    def init(self, key: jax.Array) -> AgentState:
        """Draws the state before the first update."""

    def total_loss(
        self, params: Params, targets: Params, batch: BatchT, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Computes the sum of the losses of all networks, and the metrics to log."""

    def action_values(self, params: Params, batch: BatchT, key: jax.Array) -> jax.Array:
        """Computes values of a batch's recorded actions, as returns: ``f32[B]``."""

    def move_targets(self, targets: Params, *, before: Params, after: Params) -> Params:
        """Moves the targets, after a step that led from ``before`` to ``after``."""

    def act(self, params: Params, observation: jax.Array, key: jax.Array) -> jax.Array:
        """Chooses actions for one observation ``f32[S]``: ``f32[chunk, A]``."""


def scale_states(states: jax.Array, facts: DataFacts, how: StateScaling) -> jax.Array:
    """Scales states ``f32[..., S]`` for networks, see ``observation_scale``."""
    if how == "none":
        return states
    shift, scale = observation_scale(facts, how)
    return (states - jnp.broadcast_to(shift, states.shape)) / jnp.broadcast_to(
        scale, states.shape
    )


def observation_scale(
    facts: DataFacts, how: StateScaling
) -> tuple[jax.Array, jax.Array]:
    """Computes the shift and scale that are applied to observations.

    Args:
        facts: Facts of the data set.
        how: ``"none"``; ``"common"``, one scale for all components (the root mean
            square of their standard deviations); or ``"standard"``, each component
            shifted and scaled to mean 0 and standard deviation 1.

    Returns:
        ``(shift, scale)``, ``f32[S]`` each: networks see ``(s - shift) / scale``.

    Raises:
        ValueError: If ``how`` is none of these.
    """
    std = jnp.asarray(facts.observation_std, jnp.float32)
    zeros, ones = jnp.zeros_like(std), jnp.ones_like(std)
    if how == "none":
        return zeros, ones
    if how == "common":
        # One scale for all components keeps distances between states in proportion.
        return zeros, ones * jnp.maximum(jnp.sqrt(jnp.mean(jnp.square(std))), 1e-6)
    if how == "standard":
        mean = jnp.asarray(facts.observation_mean, jnp.float32)
        # The standard deviation of a constant component is rounding error; dividing by
        # it would blow that error up to the size of a real component.
        return mean, jnp.where(std > 1e-6, std, 1.0)
    raise ValueError(
        "agent.state_scaling: expected 'none', 'common' or 'standard', got "
        f"{how!r}; choose one of these"
    )
