"""QC: Q-learning over chunks of actions, executing the best of a cloned flow's chunks.

Two losses are evaluated at the same old parameters: twin Q of a state and h actions,
backed up from the state h steps later and the policy's chunk there; and flow matching
of recorded chunks. The policy draws candidate chunks from the flow and takes the best
by the *online* critics; targets value that chunk by the *target* critics. Acting
executes all h actions of a chunk before it draws the next one.

This is the published code's offline training, with two differences:

- the discount of rewards within a chunk and that of the value after it are one setting
  here; the code has two, which must be changed together;
- the code also builds a one-step policy, which gets no gradient in this mode.

Source: Li, Zhou & Levine (2025), *Reinforcement Learning with Action Chunking*.

Dimensions: B batch, S observation, A action, h chunk, N candidates, E = 2 critics.
"""

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp

from trainer.agents.base import AgentState, Metrics
from trainer.agents.parts.baseline import (
    CRITICS,
    BaselineAgent,
    collect_metrics,
)
from trainer.agents.parts.flow_policies import FlowPolicy, pick_best
from trainer.agents.qc_config import QCConfig
from trainer.data.nstep_windows import NStepBatch, NStepSampler
from trainer.nn import losses, networks
from trainer.nn.networks import MLP, Params


@dataclass(frozen=True)
class QC(BaselineAgent):
    """QC as pure functions of its configuration and the facts of the data."""

    config: QCConfig

    @property
    def chunk(self) -> int:
        """Actions h of a chunk, which are executed open loop."""
        return self.config.n_step

    @cached_property
    def sampler(self) -> NStepSampler:
        """Sampler of windows of h steps, with all their actions."""
        c = self.config
        return NStepSampler(c.n_step, c.discount, rule=c.window_rule)

    def init(self, key: jax.Array) -> AgentState:
        """Draws the state before the first update."""
        S, size = self.facts.observation_dim, self._policy.net.outputs
        critic_key, flow_key = jax.random.split(key)
        params = {
            "critic": networks.init_ensemble(
                self._critic, critic_key, CRITICS, S, size
            ),
            "flow": self._policy.init(flow_key, S),
        }
        return self.first_state(params, target="critic")

    def act(self, params: Params, observation: jax.Array, key: jax.Array) -> jax.Array:
        """Takes the best of several chunks: ``f32[S]`` to ``f32[h, A]``."""
        state = self.scale_states(observation)[None]
        chunk = self.best_chunks(params, state, key)
        return chunk.reshape(self.chunk, self.facts.action_dim)

    def best_chunks(
        self, params: Params, states: jax.Array, key: jax.Array
    ) -> jax.Array:
        """Chooses the best of N chunks of the flow by the online critics.

        Args:
            params: Parameters of ``flow`` and ``critic``.
            states: ``f32[B, S]``, scaled.
            key: PRNG key.

        Returns:
            ``f32[B, h * A]`` in [-1, 1].
        """
        count = self.config.candidates
        repeated, chunks = self._policy.candidates(params, states, key, count=count)
        scores = self._values(params, repeated, chunks)
        return pick_best(chunks, scores, count=count)

    def total_loss(
        self, params: Params, targets: Params, batch: NStepBatch, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Computes the sum of both losses.

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
        target_key, flow_key = jax.random.split(key)
        target = self.critic_target(frozen, targets, batch, target_key)
        critic_loss, critics = self.critic_loss(params, batch, target)
        flow_loss = self.flow_loss(params, batch, flow_key)
        metrics = collect_metrics(
            {"critic_loss": critic_loss, "flow_loss": flow_loss},
            critics,
            return_max=self.facts.return_max,
        )
        return metrics.mean["loss"], metrics

    def action_values(
        self, params: Params, batch: NStepBatch, key: jax.Array
    ) -> jax.Array:
        """Computes values of the recorded chunks, as acting ranks them: ``f32[B]``."""
        batch = self.prepare(batch)
        return self._values(params, batch.observations, _flatten(batch.chunks))

    def critic_target(
        self, frozen: Params, targets: Params, batch: NStepBatch, key: jax.Array
    ) -> jax.Array:
        """Computes the critics' targets, continuing with the policy's next chunk.

        Args:
            frozen: Online networks, which choose the next chunk.
            targets: Target critics, which value it.
            batch: ``B`` windows.
            key: PRNG key.

        Returns:
            ``f32[B]``.
        """
        # Online critics choose and targets value, as in double Q-learning: one set for
        # both would value its own errors, of which the best of N takes the largest.
        chunks = self.best_chunks(frozen, batch.states_n, key)
        next_values = self._values(targets, batch.states_n, chunks)
        return batch.returns_n + batch.bootstraps * next_values

    def critic_loss(
        self, params: Params, batch: NStepBatch, target: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Computes the squared error of both critics at the recorded chunks.

        Args:
            params: Parameters; the loss trains ``critic``.
            batch: ``B`` windows.
            target: ``f32[B]``.

        Returns:
            The loss ``f32[]``, and the critics' values ``f32[E, B]``.
        """
        critics = networks.apply_ensemble(
            self._critic, params["critic"], batch.observations, _flatten(batch.chunks)
        )
        # As in the published code, windows that are not valid weigh nothing, but the
        # mean still counts them.
        errors = jnp.square(critics - target[None]) * batch.valid[None]
        return errors.mean(), critics

    def flow_loss(self, params: Params, batch: NStepBatch, key: jax.Array) -> jax.Array:
        """Computes the flow-matching loss of recorded chunks: ``f32[]``."""
        errors = self._policy.error(
            params, batch.observations, _flatten(batch.chunks), key
        )
        # As in the published code, actions beyond an episode's end weigh nothing, but
        # the mean still counts them.
        by_action = errors.reshape(batch.chunks.shape)
        return (by_action * batch.valid_actions[..., None]).mean()

    def _values(
        self, params: Params, states: jax.Array, chunks: jax.Array
    ) -> jax.Array:
        critics = networks.apply_ensemble(
            self._critic, params["critic"], states, chunks
        )
        return losses.aggregate(critics, self.config.aggregation)

    @cached_property
    def _critic(self) -> MLP:
        return self.network(1, layer_norm=True)

    @cached_property
    def _policy(self) -> FlowPolicy:
        size = self.chunk * self.facts.action_dim
        net = self.network(size, layer_norm=False)
        return FlowPolicy(net, self.config.flow_steps)


def _flatten(chunks: jax.Array) -> jax.Array:
    """Joins the actions of chunks: ``f32[B, h, A]`` to ``f32[B, h * A]``."""
    return chunks.reshape(len(chunks), -1)
