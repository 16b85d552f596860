"""FQL: Q-learning with a one-step policy distilled from a behaviour flow.

Four losses at the same old parameters: twin Q, backed up from the one-step policy's
action at the window's end; flow matching of the recorded actions; and for the one-step
policy its distance to the flow's action of the same noise, and minus Q. Acting draws
one action: the policy is stochastic in evaluation too.

With ``n_step`` above 1 it is FQL-n: the critics are backed up after several steps, and
the policies' losses still read the first state and action only.

Follows the published code. Where the papers differ, theirs is an option:

- the distance is a mean over the action's components, for which α is tuned; the paper
  writes a sum (``distance``);
- both target critics judge one action; the formula of the n-step paper draws one for
  each (``target_actions``);
- windows that cross an episode's end train no critic, and rewards after success are
  still summed (``window_rule``).

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
    clip_actions,
    figures,
)
from trainer.agents.parts.flow_policies import DistilledPolicy, FlowPolicy
from trainer.data.nstep_windows import NStepBatch, NStepSampler
from trainer.nn import losses, networks
from trainer.nn.networks import MLP, Params


@dataclass(frozen=True)
class FQL(BaselineAgent):
    """The agent: pure functions of its configuration and the data set's facts."""

    config: FQLConfig

    chunk = 1

    @cached_property
    def sampler(self) -> NStepSampler:
        """Windows of ``n_step`` steps."""
        c = self.config
        return NStepSampler(c.n_step, c.discount, rule=c.window_rule)

    def init(self, key: jax.Array) -> AgentState:
        """Draws fresh parameters; the target critics start as exact copies."""
        S, A = self.facts.observation_dim, self.facts.action_dim
        critic_key, policy_key = jax.random.split(key)
        params = self._policy.init(policy_key, S)
        params["critic"] = networks.init_ensemble(
            self._critic, critic_key, CRITICS, S, A
        )
        return self.first_state(params, target="critic")

    def act(self, params: Params, observation: jax.Array, key: jax.Array) -> jax.Array:
        """One action of the one-step policy: ``f32[S]`` to ``f32[1, A]``."""
        noise = jax.random.normal(key, (1, self.facts.action_dim))
        return self._policy.act(params, observation[None], noise)

    def total_loss(
        self, params: Params, targets: Params, batch: NStepBatch, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Sum of the four losses, all at the same parameters.

        Args:
            params: Trained parameters.
            targets: Target critics.
            batch: ``B`` windows.
            key: PRNG key.

        Returns:
            ``f32[]`` and the figures to log.
        """
        batch = clip_actions(batch)
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
        metrics = figures(
            {"critic_loss": critic_loss, **policy_losses},
            critics,
            return_max=self.facts.return_max,
        )
        return metrics.mean["loss"], metrics

    def action_values(
        self, params: Params, batch: NStepBatch, key: jax.Array
    ) -> jax.Array:
        """Values of the recorded actions, the mean of both critics: ``f32[B]``."""
        batch = clip_actions(batch)
        return self._critics(params, batch.observations, batch.actions).mean(axis=0)

    def critic_target(
        self, frozen: Params, targets: Params, batch: NStepBatch, key: jax.Array
    ) -> jax.Array:
        """Return of the windows, going on as the one-step policy would.

        Args:
            frozen: Read for ``one_step``: policies have no target.
            targets: Target critics.
            batch: ``B`` windows.
            key: PRNG key.

        Returns:
            ``f32[B]``.
        """
        draws = 1 if self.config.target_actions == "shared" else CRITICS
        shape = (draws, *batch.actions.shape)
        noise = jax.random.normal(key, shape, batch.actions.dtype)
        actions = jax.vmap(lambda z: self._policy.act(frozen, batch.states_n, z))(noise)

        def judge(critic: Params, actions: jax.Array) -> jax.Array:
            return networks.apply_scalar(self._critic, critic, batch.states_n, actions)

        if draws == 1:
            values = jax.vmap(judge, in_axes=(0, None))(targets["critic"], actions[0])
        else:
            values = jax.vmap(judge)(targets["critic"], actions)
        following = losses.aggregate(values, self.config.aggregation)
        return batch.returns_n + batch.bootstraps * following

    def critic_loss(
        self, params: Params, batch: NStepBatch, target: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Squared error of both critics.

        Args:
            params: Trains ``critic``.
            batch: ``B`` windows; those not ``valid`` weigh nothing but are counted.
            target: ``f32[B]``.

        Returns:
            ``f32[]``, and the critics' values ``f32[E, B]``.
        """
        critics = self._critics(params, batch.observations, batch.actions)
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
        c = self.config
        net = self.network(self.facts.action_dim, layer_norm=False)
        return DistilledPolicy(
            FlowPolicy(net, c.flow_steps),
            net,
            alpha=c.alpha,
            distance=c.distance,
            normalize=c.normalize_q,
        )
