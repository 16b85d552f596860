"""IFQL: implicit Q-learning that acts by the best of a behaviour flow's actions.

Three losses at the same old parameters: expectile V and twin Q (see
``implicit_values``), and flow matching of the recorded actions, unweighted. Acting
draws candidates from the flow and takes the best by the smaller online critic.

With ``n_step`` above 1 it is IFQL-n: the critics are backed up from V after several
steps, and nothing else changes. No code of IFQL-n is published; its windows are those
of the published n-step code (``window_rule``).

Source: Park, Li & Levine (2025), *Flow Q-Learning*, and its code, where IFQL is named;
Li, Zhou & Levine (2025), *Reinforcement Learning with Action Chunking*, for IFQL-n.

Dimensions: B batch, S observation, A action, E = 2 critics.
"""

from dataclasses import dataclass
from functools import cached_property

import jax

from trainer.agents.base import AgentState, Metrics
from trainer.agents.ifql_config import IFQLConfig
from trainer.agents.parts.baseline import (
    BaselineAgent,
    clip_actions,
    figures,
)
from trainer.agents.parts.flow_policies import FlowPolicy, pick_best
from trainer.agents.parts.implicit_values import ImplicitValues
from trainer.data.nstep_windows import NStepBatch, NStepSampler
from trainer.nn.networks import Params


@dataclass(frozen=True)
class IFQL(BaselineAgent):
    """The agent: pure functions of its configuration and the data set's facts."""

    config: IFQLConfig

    chunk = 1

    @cached_property
    def sampler(self) -> NStepSampler:
        """Windows of ``n_step`` steps."""
        c = self.config
        return NStepSampler(c.n_step, c.discount, rule=c.window_rule)

    def init(self, key: jax.Array) -> AgentState:
        """Draws fresh parameters; the target critics start as exact copies."""
        S, A = self.facts.observation_dim, self.facts.action_dim
        values_key, flow_key = jax.random.split(key)
        params = self._values.init(values_key, S, A)
        params["flow"] = self._policy.init(flow_key, S)
        return self.first_state(params, target="critic")

    def act(self, params: Params, observation: jax.Array, key: jax.Array) -> jax.Array:
        """The best of several actions of the flow: ``f32[S]`` to ``f32[1, A]``."""
        count = self.config.candidates
        states, actions = self._policy.candidates(
            params, observation[None], key, count=count
        )
        scores = self._values.critics(params, states, actions).min(axis=0)
        return pick_best(actions, scores, count=count)

    def total_loss(
        self, params: Params, targets: Params, batch: NStepBatch, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Sum of the three losses, all at the same parameters.

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
        value_loss, values = self._values.value_loss(params, targets, batch)
        critic_loss, critics = self._values.critic_loss(params, frozen, batch)
        flow_loss = self._policy.error(
            params, batch.observations, batch.actions, key
        ).mean()
        metrics = figures(
            {
                "value_loss": value_loss,
                "critic_loss": critic_loss,
                "flow_loss": flow_loss,
            },
            critics,
            return_max=self.facts.return_max,
            value=values.mean(),
        )
        metrics.max["value_max"] = values.max()
        return metrics.mean["loss"], metrics

    def action_values(
        self, params: Params, batch: NStepBatch, key: jax.Array
    ) -> jax.Array:
        """Values of the recorded actions, the mean of both critics: ``f32[B]``."""
        return self._values.recorded(params, batch)

    @cached_property
    def _values(self) -> ImplicitValues:
        net = self.network(1, layer_norm=True)
        return ImplicitValues(net, self.config.expectile)

    @cached_property
    def _policy(self) -> FlowPolicy:
        net = self.network(self.facts.action_dim, layer_norm=False)
        return FlowPolicy(net, self.config.flow_steps)
