"""IQL: implicit Q-learning, with advantage-weighted regression of a Gaussian policy.

Three losses at the same old parameters: expectile V and twin Q (see
``implicit_values``), and the log-likelihood of recorded actions, weighted by
``exp(alpha * advantage)``. The policy's deviation is fixed at 1, so it is weighted
least squares; acting takes its mean.

Follows the code published with Flow Q-Learning. Where that differs from the paper of
IQL the code is the default: its advantage comes from the online critics
(``advantage_critics``), and its policy has one fixed deviation.

Source: Kostrikov, Nair & Levine (2021), *Offline Reinforcement Learning with Implicit
Q-Learning*; Park, Li & Levine (2025), *Flow Q-Learning*, for networks and settings.

Dimensions: B batch, S observation, A action, E = 2 critics.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp

from trainer.agents.base import AgentState, Metrics
from trainer.agents.iql_config import IQLConfig
from trainer.agents.parts.baseline import (
    BaselineAgent,
    clip_actions,
    figures,
)
from trainer.agents.parts.implicit_values import ImplicitValues
from trainer.data.nstep_windows import NStepBatch, NStepSampler
from trainer.nn import networks
from trainer.nn.networks import MLP, Params


@dataclass(frozen=True)
class IQL(BaselineAgent):
    """The agent: pure functions of its configuration and the data set's facts."""

    config: IQLConfig

    chunk = 1

    @cached_property
    def sampler(self) -> NStepSampler:
        """Single steps, each equally likely."""
        return NStepSampler(1, self.config.discount)

    def init(self, key: jax.Array) -> AgentState:
        """Draws fresh parameters; the target critics start as exact copies."""
        S, A = self.facts.observation_dim, self.facts.action_dim
        values_key, actor_key = jax.random.split(key)
        params = self._values.init(values_key, S, A)
        params["actor"] = networks.init(self._actor, actor_key, S)
        return self.first_state(params, target="critic")

    def act(self, params: Params, observation: jax.Array, key: jax.Array) -> jax.Array:
        """The policy's mean, whatever the key: ``f32[S]`` to ``f32[1, A]``."""
        mean = networks.apply(self._actor, params["actor"], observation)
        return jnp.clip(mean, -1, 1)[None]

    def total_loss(
        self, params: Params, targets: Params, batch: NStepBatch, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Sum of the three losses, all at the same parameters.

        Args:
            params: Trained parameters.
            targets: Target critics.
            batch: ``B`` steps.
            key: Not used: nothing is drawn.

        Returns:
            ``f32[]`` and the figures to log.
        """
        batch = clip_actions(batch)
        frozen = jax.lax.stop_gradient(params)
        value_loss, values = self._values.value_loss(params, targets, batch)
        critic_loss, critics = self._values.critic_loss(params, frozen, batch)
        advantage = self.advantage(frozen, targets, batch)
        actor_loss, weights = self.actor_loss(params, batch, advantage)
        metrics = figures(
            {
                "value_loss": value_loss,
                "critic_loss": critic_loss,
                "actor_loss": actor_loss,
            },
            critics,
            return_max=self.facts.return_max,
            value=values.mean(),
            advantage=advantage.mean(),
            weight=weights.mean(),
        )
        metrics.max.update({"value_max": values.max(), "weight_max": weights.max()})
        return metrics.mean["loss"], metrics

    def action_values(
        self, params: Params, batch: NStepBatch, key: jax.Array
    ) -> jax.Array:
        """Values of the recorded actions, the mean of both critics: ``f32[B]``."""
        return self._values.recorded(params, batch)

    def advantage(
        self, frozen: Params, targets: Params, batch: NStepBatch
    ) -> jax.Array:
        """How much better than V the recorded actions are, by the smaller critic.

        Args:
            frozen: Read for ``value`` and, by default, ``critic``.
            targets: Target critics, read if so configured.
            batch: ``B`` steps.

        Returns:
            ``f32[B]``.
        """
        source = frozen if self.config.advantage_critics == "online" else targets
        critics = self._values.critics(source, batch.observations, batch.actions)
        return critics.min(axis=0) - self._values.value(frozen, batch.observations)

    def actor_loss(
        self, params: Params, batch: NStepBatch, advantage: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Weighted negative log-likelihood of the recorded actions.

        Args:
            params: Trains ``actor``.
            batch: ``B`` steps.
            advantage: ``f32[B]``.

        Returns:
            ``f32[]``, and the weights ``f32[B]``.
        """
        weights = jnp.minimum(
            jnp.exp(self.config.alpha * advantage), self.config.max_weight
        )
        means = networks.apply(self._actor, params["actor"], batch.observations)
        squares = jnp.square(batch.actions - means) + math.log(2 * math.pi)
        return (weights * squares.sum(axis=-1) / 2).mean(), weights

    @cached_property
    def _values(self) -> ImplicitValues:
        net = self.network(1, layer_norm=True)
        return ImplicitValues(net, self.config.expectile)

    @cached_property
    def _actor(self) -> MLP:
        return self.network(self.facts.action_dim, layer_norm=False, output_scale=0.01)
