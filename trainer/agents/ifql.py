"""IFQL: implicit Q-learning that executes the best of a cloned flow's actions.

Three losses are evaluated at the same old parameters: expectile V and twin Q (see
``implicit_values``), and flow matching of the recorded actions, unweighted. Acting
draws candidates from the flow and takes the best by the smaller online critic.

With ``n_step`` above 1 the agent is IFQL-n: the critics are backed up from V after
several steps, and nothing else changes. No code of IFQL-n is published; its windows are
those of the published code of FQL-n (``window_rule``).

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
    collect_metrics,
)
from trainer.agents.parts.flow_policies import FlowPolicy, pick_best
from trainer.agents.parts.implicit_values import ImplicitValues
from trainer.data.nstep_windows import NStepBatch, NStepSampler
from trainer.nn.networks import Params


@dataclass(frozen=True)
class IFQL(BaselineAgent):
    """IFQL as pure functions of its configuration and the facts of the data."""

    config: IFQLConfig

    chunk = 1

    @cached_property
    def sampler(self) -> NStepSampler:
        """Sampler of windows of ``n_step`` steps."""
        c = self.config
        return NStepSampler(c.n_step, c.discount, rule=c.window_rule)

    def init(self, key: jax.Array) -> AgentState:
        """Draws the state before the first update."""
        S, A = self.facts.observation_dim, self.facts.action_dim
        values_key, flow_key = jax.random.split(key)
        params = self._values.init(values_key, S, A)
        params["flow"] = self._policy.init(flow_key, S)
        return self.first_state(params, target="critic")

    def act(self, params: Params, observation: jax.Array, key: jax.Array) -> jax.Array:
        """Takes the best of several flow actions: ``f32[S]`` to ``f32[1, A]``."""
        count = self.config.candidates
        state = self.scale_states(observation)[None]
        states, actions = self._policy.candidates(params, state, key, count=count)
        # The smaller of the online critics; only losses read the targets.
        scores = self._values.critics(params, states, actions).min(axis=0)
        return pick_best(actions, scores, count=count)

    def total_loss(
        self, params: Params, targets: Params, batch: NStepBatch, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Computes the sum of the three losses.

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
        value_loss, values = self._values.value_loss(params, targets, batch)
        critic_loss, critics = self._values.critic_loss(params, frozen, batch)
        # The policy clones first actions of all windows: each was recorded, whether
        # its window is valid or not.
        flow_loss = self._policy.error(
            params, batch.observations, batch.actions, key
        ).mean()
        metrics = collect_metrics(
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
        """Computes the mean of both critics at the recorded actions: ``f32[B]``."""
        batch = self.prepare(batch)
        return self._values.recorded_values(params, batch)

    @cached_property
    def _values(self) -> ImplicitValues:
        net = self.network(1, layer_norm=True)
        return ImplicitValues(net, self.config.expectile)

    @cached_property
    def _policy(self) -> FlowPolicy:
        # The published code normalises layers of critics, but not of policies.
        net = self.network(self.facts.action_dim, layer_norm=False)
        return FlowPolicy(net, self.config.flow_steps)
