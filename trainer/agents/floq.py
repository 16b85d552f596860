"""floq: flow Q-learning whose critic is a flow from noise to the value.

Twin velocity fields ``f(s, a, z, t)`` carry bounded noise at t = 0 to Q at t = 1 in J
Euler steps. They are trained by flow matching towards a backed-up value, averaged over
several noises. Their own value, averaged likewise, is distilled into plain twin
critics, which train the policies exactly as in FQL. Acting draws one action of the
one-step policy.

The interval of noise and the bins that z is encoded by come from the smallest and
largest reward of the task's data.

Where the published code and the paper differ, the code is followed:

- time enters as the single number cos(t); the paper, and unused settings of the code,
  have a Fourier embedding;
- both ends of the interval of noise are scaled by κ; the paper puts its upper end at
  the largest value and scales its width, which differs only if the task is never
  solved in the data;
- the largest reward is never below 0 and the smallest never above it, because the
  code's buffer is padded with zeros;
- the code has a switch, off by default, that trains fields at t = 0 only; it is left
  out.

Source: *floq: Training Critics via Flow-Matching for Scaling Compute in Value-Based RL*
and its code.

Dimensions: B batch, S observation, A action, E = 2 critics, R noises.
"""

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np

from trainer.agents.base import AgentState, Metrics
from trainer.agents.floq_config import FloqConfig
from trainer.agents.parts.baseline import (
    CRITICS,
    BaselineAgent,
    collect_metrics,
)
from trainer.agents.parts.flow_policies import DistilledPolicy, FlowPolicy
from trainer.data.nstep_windows import NStepBatch, NStepSampler
from trainer.nn import flow, losses, networks
from trainer.nn.networks import MLP, Params

# Values are encoded as if they lay at most this many standard deviations beyond the
# outer edges: further out, single precision would divide zero by zero.
_FARTHEST = 4.0


@dataclass(frozen=True)
class Floq(BaselineAgent):
    """floq as pure functions of its configuration and the facts of the data."""

    config: FloqConfig

    chunk = 1

    @cached_property
    def sampler(self) -> NStepSampler:
        """Sampler of single steps."""
        return NStepSampler(1, self.config.discount)

    @cached_property
    def noise_bounds(self) -> tuple[float, float]:
        """Interval that noise is drawn from, in units of returns."""
        # As in the published code. The paper keeps the upper end at the largest value
        # and scales the interval's width, which differs where rewards stay below 0.
        share, scale = self.config.noise_share, 1 - self.config.discount
        low, high = self._rewards
        return share * low / scale, share * high / scale

    def init(self, key: jax.Array) -> AgentState:
        """Draws the state before the first update."""
        S, A = self.facts.observation_dim, self.facts.action_dim
        field_key, critic_key, policy_key = jax.random.split(key, 3)
        params = self._policy.init(policy_key, S)
        params["field"] = networks.init_ensemble(
            self._field, field_key, CRITICS, S, A, self.config.bins - 1, 1
        )
        params["critic"] = networks.init_ensemble(
            self._critic, critic_key, CRITICS, S, A
        )
        return self.first_state(params, target="field")

    def act(self, params: Params, observation: jax.Array, key: jax.Array) -> jax.Array:
        """Draws an action of the one-step policy: ``f32[S]`` to ``f32[1, A]``."""
        noise = jax.random.normal(key, (1, self.facts.action_dim))
        return self._policy.act(params, self.scale_states(observation)[None], noise)

    def total_loss(
        self, params: Params, targets: Params, batch: NStepBatch, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Computes the sum of all losses.

        Args:
            params: Trained parameters.
            targets: Target fields.
            batch: ``B`` steps.
            key: PRNG key.

        Returns:
            The loss ``f32[]``, and the metrics to log.
        """
        batch = self.prepare(batch)
        # Each loss trains its own network in `params` and reads the others from here.
        frozen = jax.lax.stop_gradient(params)
        value_key, noise_key, time_key, policy_key = jax.random.split(key, 4)
        rows = len(batch.actions) * self.config.noises
        # The online fields' values start from the noise that the fields are trained
        # with, as in the published code.
        noise = self._draw_noise(noise_key, rows, batch.actions)
        target, own = self.values(frozen, targets, batch, noise, value_key)
        field_loss = self.field_loss(params, batch, noise, target, time_key)
        critic_loss, critics = self.critic_loss(params, batch, own)
        policy_losses = self._policy.losses(
            params,
            frozen,
            batch.observations,
            batch.actions,
            lambda states, actions: self._critics(frozen, states, actions),
            policy_key,
        )
        metrics = collect_metrics(
            {"field_loss": field_loss, "critic_loss": critic_loss, **policy_losses},
            critics,
            return_max=self.facts.return_max,
            field=own.mean(),
            td_error=jnp.square(own - target).mean(),
        )
        return metrics.mean["loss"], metrics

    def action_values(
        self, params: Params, batch: NStepBatch, key: jax.Array
    ) -> jax.Array:
        """Computes the mean of both critics at the recorded actions: ``f32[B]``."""
        batch = self.prepare(batch)
        return self._critics(params, batch.observations, batch.actions).mean(axis=0)

    def values(
        self,
        frozen: Params,
        targets: Params,
        batch: NStepBatch,
        noise: jax.Array,
        key: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Computes backed-up values by the targets, and values by the online fields.

        Args:
            frozen: Parameters of ``field`` and ``one_step``, not trained here.
            targets: Target fields.
            batch: ``B`` steps.
            noise: ``f32[B * R, 1]``, start of the online fields' values.
            key: PRNG key of the policy's and the targets' noise.

        Returns:
            Two arrays ``f32[B]``: the backed-up value, aggregated over fields and
            averaged over noises; and the value of the recorded action, averaged over
            both.
        """
        c = self.config
        # Each of the R repeats of a step has its own next action and its own noise.
        next_states = jnp.repeat(batch.states_n, c.noises, axis=0)
        policy_key, noise_key = jax.random.split(key)
        policy_noise = jax.random.normal(
            policy_key, (len(next_states), self.facts.action_dim), noise.dtype
        )
        next_actions = self._policy.act(frozen, next_states, policy_noise)
        states = jnp.repeat(batch.observations, c.noises, axis=0)
        actions = jnp.repeat(batch.actions, c.noises, axis=0)

        # Targets and online fields are flows of one shape from unrelated noise, so they
        # are integrated together: one loop of J steps over stacked networks.
        ends = jax.vmap(self.integrate)(
            jax.tree.map(
                lambda *leaves: jnp.stack(leaves), targets["field"], frozen["field"]
            ),
            jnp.stack([next_states, states]),
            jnp.stack([next_actions, actions]),
            jnp.stack([self._draw_noise(noise_key, len(noise), noise), noise]),
        )
        # Fields are aggregated noise by noise, before the average over noises.
        next_values = losses.aggregate(ends[0], c.aggregation)
        averaged = next_values.reshape(-1, c.noises).mean(axis=1)
        target = batch.returns_n + batch.bootstraps * averaged
        own = ends[1].mean(axis=0).reshape(-1, c.noises).mean(axis=1)
        return target, own

    def integrate(
        self, field: Params, states: jax.Array, actions: jax.Array, noise: jax.Array
    ) -> jax.Array:
        """Carries noise to values by each field of an ensemble.

        Args:
            field: Parameters of E fields.
            states: ``f32[B, S]``.
            actions: ``f32[B, A]``.
            noise: ``f32[B, 1]``.

        Returns:
            ``f32[E, B]``.
        """

        # Values are not clipped on the way, unlike in Value Flows.
        def follow(member: Params) -> jax.Array:
            return flow.integrate(
                self._velocity(member, states, actions),
                noise,
                steps=self.config.critic_steps,
            )

        return jax.vmap(follow)(field)[..., 0]

    def field_loss(
        self,
        params: Params,
        batch: NStepBatch,
        noise: jax.Array,
        target: jax.Array,
        key: jax.Array,
    ) -> jax.Array:
        """Computes the flow-matching loss from each noise to the backed-up value.

        Args:
            params: Parameters; the loss trains ``field``.
            batch: ``B`` steps.
            noise: ``f32[B * R, 1]``, start of the paths.
            target: ``f32[B]``, end of the paths.
            key: PRNG key of the times.

        Returns:
            The loss ``f32[]``, summed over noises, averaged over fields and batch.
        """
        R = self.config.noises
        states = jnp.repeat(batch.observations, R, axis=0)
        actions = jnp.repeat(batch.actions, R, axis=0)
        time = jax.random.uniform(key, noise.shape, noise.dtype)

        def error(member: Params) -> jax.Array:
            return flow.path_error(
                self._velocity(member, states, actions),
                noise,
                jnp.repeat(target, R)[:, None],
                time,
            )

        errors: jax.Array = jax.vmap(error)(params["field"])
        return errors.mean() * R

    def critic_loss(
        self, params: Params, batch: NStepBatch, values: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Computes the loss that distils the fields' values into the plain critics.

        Args:
            params: Parameters; the loss trains ``critic``.
            batch: ``B`` steps.
            values: ``f32[B]``, values of the recorded actions by the fields.

        Returns:
            The loss ``f32[]``, and the critics' values ``f32[E, B]``.
        """
        # A gradient of the policy through a critic costs one evaluation, where through
        # the fields it would cost J.
        critics = self._critics(params, batch.observations, batch.actions)
        return jnp.square(critics - values[None]).mean(), critics

    def encode(self, z: jax.Array) -> jax.Array:
        """Encodes numbers by the shares of a normal distribution in bins.

        Args:
            z: ``f32[B, 1]``, means of the distributions.

        Returns:
            ``f32[B, bins - 1]``, share of each bin among all bins; shares sum to 1 and
            are at least 0 up to rounding.
        """
        # A value as large as the range of returns would be one input among many that
        # are near 1. Encoded, it is many inputs in [0, 1] that change smoothly with it.
        c, scale = self.config, 1 - self.config.discount
        smallest, largest = self._rewards
        low = (smallest - c.reward_margin) / scale
        high = (largest + c.reward_margin) / scale
        deviation = c.bin_deviation * (high - low) / (c.bins - 1)
        z = jnp.clip(z, low - _FARTHEST * deviation, high + _FARTHEST * deviation)
        edges = jnp.asarray(np.linspace(low, high, c.bins), z.dtype)[None]
        below = jax.scipy.special.erf((edges - z) / (deviation * np.sqrt(2).item()))
        return (below[:, 1:] - below[:, :-1]) / (below[:, -1:] - below[:, :1])

    @property
    def _rewards(self) -> tuple[float, float]:
        """Smallest and largest reward in the data, at most and at least 0."""
        # The published code takes both over a buffer that is padded with zeros. Where
        # all rewards are equal, the interval of noise would be a point without them.
        return min(self.facts.reward_min, 0.0), max(self.facts.reward_max, 0.0)

    @cached_property
    def _field(self) -> MLP:
        return self.network(1, layer_norm=True, depth=self.config.critic_depth)

    @cached_property
    def _critic(self) -> MLP:
        return self.network(1, layer_norm=True)

    @cached_property
    def _policy(self) -> DistilledPolicy:
        # Without LayerNorm, as in FQL.
        net = self.network(self.facts.action_dim, layer_norm=False)
        flow_policy = FlowPolicy(net, self.config.flow_steps)
        return DistilledPolicy(flow_policy, net, alpha=self.config.alpha)

    def _critics(
        self, params: Params, states: jax.Array, actions: jax.Array
    ) -> jax.Array:
        return networks.apply_ensemble(self._critic, params["critic"], states, actions)

    def _velocity(
        self, field: Params, states: jax.Array, actions: jax.Array
    ) -> flow.Field:
        # cos(t) alone, as in the published code.
        return lambda z, time: networks.apply(
            self._field, field, states, actions, self.encode(z), jnp.cos(time)
        )

    def _draw_noise(self, key: jax.Array, rows: int, like: jax.Array) -> jax.Array:
        low, high = self.noise_bounds
        return low + (high - low) * jax.random.uniform(key, (rows, 1), like.dtype)
