"""What an agent is: pure functions over one state, and what it needs from the data.

An agent knows nothing of stores, meshes, seeds in parallel or files: the loop maps
and shards it.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp
import optax

from trainer.agents.settings import AgentSettings
from trainer.data.sampling import Sampler
from trainer.nn.networks import Params


@dataclass(frozen=True)
class DataFacts:
    """Constants of a data set and task that an agent may build on.

    Taken from the store when training starts and kept in the checkpoint, so that
    acting needs no data.

    Attributes:
        observation_dim: S.
        action_dim: A.
        observation_mean: Of each component over the train split.
        observation_std: Of each component over the train split.
        reward_min: Smallest reward of the task in the data.
        reward_max: Largest reward of the task in the data.
        return_max: Largest discounted return to the end of an episode in the data;
            no value of a policy that stitches the data's rewards should be far above.
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
        """Least and largest discounted return that such rewards can sum up to.

        An episode may end at once, so that 0 is always among them.
        """
        steps = math.inf if discount >= 1 else 1 / (1 - discount)
        low, high = min(0.0, self.reward_min), max(0.0, self.reward_max)
        return (low and low * steps), (high and high * steps)


class AgentState(NamedTuple):
    """Everything an update changes.

    Attributes:
        params: Optimised parameters by network.
        targets: Slowly moving copies, outside the optimised tree.
        opt_state: Of the optimiser.
        step: ``i32[]``, updates done.
    """

    params: Params
    targets: Params
    opt_state: Any
    step: jax.Array


class Metrics(NamedTuple):
    """Figures of one update, by how they combine over updates and shards of time.

    Attributes:
        mean: Averaged.
        max: Maximum taken.
        total: Summed; vectors by horizon among them.
    """

    mean: dict[str, jax.Array]
    max: dict[str, jax.Array]
    total: dict[str, jax.Array]

    def reduce(self) -> "Metrics":
        """Combines over a leading axis of updates."""
        return Metrics(
            mean=jax.tree.map(lambda x: x.mean(axis=0), self.mean),
            max=jax.tree.map(lambda x: x.max(axis=0), self.max),
            total=jax.tree.map(lambda x: x.sum(axis=0), self.total),
        )


BatchT = TypeVar("BatchT")


class Agent(Protocol[BatchT]):
    """One algorithm, and the batches it learns from. Immutable and hashable."""

    @property
    def config(self) -> AgentSettings:
        """Its hyperparameters."""

    @property
    def sampler(self) -> Sampler[Any, BatchT]:
        """What it trains on."""

    @property
    def chunk(self) -> int:
        """Actions returned by one call of ``act``, executed open loop."""

    @property
    def optimizer(self) -> optax.GradientTransformation:
        """Of all networks."""

    def init(self, key: jax.Array) -> AgentState:
        """Draws a fresh state."""

    def total_loss(
        self, params: Params, targets: Params, batch: BatchT, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Sum of the losses of all networks, and the figures to log."""

    def action_values(self, params: Params, batch: BatchT, key: jax.Array) -> jax.Array:
        """Values of a batch's recorded actions, in the units of returns: ``f32[B]``."""

    def move_targets(self, targets: Params, *, before: Params, after: Params) -> Params:
        """Targets after a step that led from ``before`` to ``after``."""

    def act(self, params: Params, observation: jax.Array, key: jax.Array) -> jax.Array:
        """Chooses actions for one observation ``f32[S]``: ``f32[chunk, A]``."""


def observation_scale(facts: DataFacts, how: str) -> tuple[jax.Array, jax.Array]:
    """Shift and scale that networks and flows see observations through.

    Args:
        facts: Of the data set.
        how: ``"none"``; ``"common"``, one scale for all components (the root mean
            square of their standard deviations); or ``"standard"``, each component
            shifted and scaled to mean 0 and deviation 1.

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
        return zeros, ones * jnp.maximum(jnp.sqrt(jnp.mean(jnp.square(std))), 1e-6)
    if how == "standard":
        mean = jnp.asarray(facts.observation_mean, jnp.float32)
        # A component that never changes carries nothing: leave its scale alone.
        return mean, jnp.where(std > 1e-6, std, 1.0)
    raise ValueError(
        f"expected state scaling 'none', 'common' or 'standard', got {how!r}"
    )
