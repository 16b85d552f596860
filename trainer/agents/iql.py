"""IQL: implicit Q-learning, with advantage-weighted regression of a Gaussian policy.

Three losses are evaluated at the same old parameters: expectile V and twin Q (see
``implicit_values``), and the log-likelihood of recorded actions, weighted by
``exp(alpha * advantage)``. Acting takes the policy's mean.

This is the IQL of the code published with Flow Q-Learning. Where code and paper of IQL
differ:

- the advantage is by the online critics; IQL's original implementation takes the
  targets;
- the policy's standard deviation is fixed at 1, so that its loss is weighted least
  squares; the original implementation does not fix it.

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
    collect_metrics,
)
from trainer.agents.parts.implicit_values import ImplicitValues
from trainer.data.nstep_windows import NStepBatch, NStepSampler
from trainer.nn import networks
from trainer.nn.networks import MLP, Params


@dataclass(frozen=True)
class IQL(BaselineAgent):
    """IQL as pure functions of its configuration and the facts of the data."""

    config: IQLConfig

    chunk = 1

    @cached_property
    def sampler(self) -> NStepSampler:
        """Sampler of single steps."""
        return NStepSampler(1, self.config.discount)

    def init(self, key: jax.Array) -> AgentState:
        """Draws the state before the first update."""
        S, A = self.facts.observation_dim, self.facts.action_dim
        values_key, actor_key = jax.random.split(key)
        params = self._values.init(values_key, S, A)
        params["actor"] = networks.init(self._actor, actor_key, S)
        return self.first_state(params, target="critic")

    def act(self, params: Params, observation: jax.Array, key: jax.Array) -> jax.Array:
        """Takes the policy's mean: ``f32[S]`` to ``f32[1, A]``; the key is not used."""
        # The published evaluation acts at temperature 0.
        state = self.scale_states(observation)
        mean = networks.apply(self._actor, params["actor"], state)
        return jnp.clip(mean, -1, 1)[None]

    def total_loss(
        self, params: Params, targets: Params, batch: NStepBatch, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Computes the sum of the three losses.

        Args:
            params: Trained parameters.
            targets: Target critics.
            batch: ``B`` steps.
            key: PRNG key; not used, since no loss is random.

        Returns:
            The loss ``f32[]``, and the metrics to log.
        """
        batch = self.prepare(batch)
        frozen = jax.lax.stop_gradient(params)
        value_loss, values = self._values.value_loss(params, targets, batch)
        critic_loss, critics = self._values.critic_loss(params, frozen, batch)
        advantage = self.advantage(frozen, batch)
        actor_loss, weights = self.actor_loss(params, batch, advantage)
        metrics = collect_metrics(
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
        """Computes the mean of both critics at the recorded actions: ``f32[B]``."""
        batch = self.prepare(batch)
        return self._values.recorded_values(params, batch)

    def advantage(self, frozen: Params, batch: NStepBatch) -> jax.Array:
        """Computes the advantage of recorded actions over V, by the smaller critic.

        Args:
            frozen: Parameters of ``value`` and ``critic``, not trained here.
            batch: ``B`` steps.

        Returns:
            ``f32[B]``.
        """
        # The online critics, as in the published code; the original implementation of
        # IQL takes the targets.
        critics = self._values.critics(frozen, batch.observations, batch.actions)
        return critics.min(axis=0) - self._values.value(frozen, batch.observations)

    def actor_loss(
        self, params: Params, batch: NStepBatch, advantage: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Computes the weighted negative log-likelihood of the recorded actions.

        Args:
            params: Parameters; the loss trains ``actor``.
            batch: ``B`` steps.
            advantage: ``f32[B]``.

        Returns:
            The loss ``f32[]``, and the weights ``f32[B]``.
        """
        weights = jnp.minimum(
            jnp.exp(self.config.alpha * advantage), self.config.max_weight
        )
        means = networks.apply(self._actor, params["actor"], batch.observations)
        # The density of a Gaussian of standard deviation 1; the constant moves no
        # gradient, and makes the logged loss that of the published code.
        squares = jnp.square(batch.actions - means) + math.log(2 * math.pi)
        return (weights * squares.sum(axis=-1) / 2).mean(), weights

    @cached_property
    def _values(self) -> ImplicitValues:
        net = self.network(1, layer_norm=True)
        return ImplicitValues(net, self.config.expectile)

    @cached_property
    def _actor(self) -> MLP:
        # The published code starts the policy near zero actions.
        return self.network(self.facts.action_dim, layer_norm=False, output_scale=0.01)
