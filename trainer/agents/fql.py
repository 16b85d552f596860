"""FQL: Q-learning with a one-step policy distilled from a cloned flow.

Four losses are evaluated at the same old parameters: twin Q, backed up from the
one-step policy's action at the window's end; flow matching of the recorded actions;
and, for the one-step policy, its distance to the flow's action of the same noise, and
minus Q.

With ``n_step`` above 1 the agent is FQL-n: the critics are backed up after several
steps, while the policies' losses read only the first state and action of a window.

Where the published code and the papers differ, the code is followed:

- the distance to the flow's action is a mean over components, which published values
  of α belong to; the paper writes a sum;
- both target critics value one action; the formula of the n-step paper draws one for
  each;
- windows that cross an episode's end train no critic, and rewards after success are
  still summed (``window_rule`` has the strict reading, too);
- the code has a switch, off by default, that divides the policy's Q term by its mean
  size; no published setting uses it, and it is left out.

Source: Park, Li & Levine (2025), *Flow Q-Learning*; Li, Zhou & Levine (2025),
*Reinforcement Learning with Action Chunking*, for FQL-n.

Dimensions: B batch, S observation, A action, E = 2 critics.
"""

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp

from trainer.agents.base import AgentState, Metrics
from trainer.agents.fql_config import FQLConfig
from trainer.agents.parts.baseline import (
    CRITICS,
    BaselineAgent,
    collect_metrics,
)
from trainer.agents.parts.flow_policies import DistilledPolicy, FlowPolicy
from trainer.data.nstep_windows import NStepBatch, NStepSampler
from trainer.nn import losses, networks
from trainer.nn.networks import MLP, Params


@dataclass(frozen=True)
class FQL(BaselineAgent):
    """FQL as pure functions of its configuration and the facts of the data."""

    config: FQLConfig

    chunk = 1

    @cached_property
    def sampler(self) -> NStepSampler:
        """Sampler of windows of ``n_step`` steps."""
        c = self.config
        return NStepSampler(c.n_step, c.discount, rule=c.window_rule)

    def init(self, key: jax.Array) -> AgentState:
        """Draws the state before the first update."""
        S, A = self.facts.observation_dim, self.facts.action_dim
        critic_key, policy_key = jax.random.split(key)
        params = self._policy.init(policy_key, S)
        params["critic"] = networks.init_ensemble(
            self._critic, critic_key, CRITICS, S, A
        )
        return self.first_state(params, target="critic")

    def act(self, params: Params, observation: jax.Array, key: jax.Array) -> jax.Array:
        """Draws an action of the one-step policy: ``f32[S]`` to ``f32[1, A]``."""
        # The published evaluation is stochastic, too: it draws one noise.
        noise = jax.random.normal(key, (1, self.facts.action_dim))
        return self._policy.act(params, self.scale_states(observation)[None], noise)

    def total_loss(
        self, params: Params, targets: Params, batch: NStepBatch, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Computes the sum of the four losses.

        Args:
            params: Trained parameters.
            targets: Target critics.
            batch: ``B`` windows.
            key: PRNG key.

        Returns:
            The loss ``f32[]``, and the metrics to log.
        """
        batch = self.prepare(batch)
        frozen = jax.lax.stop_gradient(params)
        target_key, policy_key = jax.random.split(key)
        target = self.critic_target(frozen, targets, batch, target_key)
        critic_loss, critics = self.critic_loss(params, batch, target)
        policy_losses = self._policy.losses(
            params,
            frozen,
            batch.observations,
            batch.actions,
            lambda states, actions: self._critics(frozen, states, actions),
            policy_key,
        )
        metrics = collect_metrics(
            {"critic_loss": critic_loss, **policy_losses},
            critics,
            return_max=self.facts.return_max,
        )
        return metrics.mean["loss"], metrics

    def action_values(
        self, params: Params, batch: NStepBatch, key: jax.Array
    ) -> jax.Array:
        """Computes the mean of both critics at the recorded actions: ``f32[B]``."""
        batch = self.prepare(batch)
        return self._critics(params, batch.observations, batch.actions).mean(axis=0)

    def critic_target(
        self, frozen: Params, targets: Params, batch: NStepBatch, key: jax.Array
    ) -> jax.Array:
        """Computes the critics' targets, continuing with the one-step policy.

        Args:
            frozen: Parameters of ``one_step``; policies have no targets.
            targets: Target critics.
            batch: ``B`` windows.
            key: PRNG key.

        Returns:
            ``f32[B]``.
        """
        # One action for both critics, as in the published code.
        noise = jax.random.normal(key, batch.actions.shape, batch.actions.dtype)
        actions = self._policy.act(frozen, batch.states_n, noise)
        values = self._critics(targets, batch.states_n, actions)
        next_values = losses.aggregate(values, self.config.aggregation)
        return batch.returns_n + batch.bootstraps * next_values

    def critic_loss(
        self, params: Params, batch: NStepBatch, target: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Computes the squared error of both critics.

        Args:
            params: Parameters; the loss trains ``critic``.
            batch: ``B`` windows.
            target: ``f32[B]``.

        Returns:
            The loss ``f32[]``, and the critics' values ``f32[E, B]``.
        """
        critics = self._critics(params, batch.observations, batch.actions)
        # As in the published code, windows that are not valid weigh nothing, but the
        # mean still counts them.
        errors = jnp.square(critics - target[None]) * batch.valid[None]
        return errors.mean(), critics

    def _critics(
        self, params: Params, states: jax.Array, actions: jax.Array
    ) -> jax.Array:
        return networks.apply_ensemble(self._critic, params["critic"], states, actions)

    @cached_property
    def _critic(self) -> MLP:
        return self.network(1, layer_norm=True)

    @cached_property
    def _policy(self) -> DistilledPolicy:
        # The published code normalises layers of critics, but not of policies.
        net = self.network(self.facts.action_dim, layer_norm=False)
        flow = FlowPolicy(net, self.config.flow_steps)
        return DistilledPolicy(flow, net, alpha=self.config.alpha)
