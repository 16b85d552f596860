"""floq: flow Q-learning whose critic is a flow from noise to the value.

A velocity field ``f(s, a, z, t)`` carries a bounded noise at t = 0 to Q at t = 1 in J
steps. It is trained by flow matching towards a backed-up value, averaged over several
noises; its own result, averaged likewise, is distilled into plain twin critics, and
those train the policies exactly as in FQL. Acting draws one action of the one-step
policy.

Follows the published code. Where the paper differs or the code has a switch:

- time enters as the single number cos(t), though settings speak of a Fourier embedding
  (``time_features``);
- both ends of the noise's interval are scaled by κ; the paper fixes its upper end at
  the largest value and scales its width (``noise_interval``). The two differ only if
  the task is never solved in the data;
- ``time_zero`` trains the field at t = 0 alone, which with ``critic_steps = 1`` is a
  plain critic.

The noise's interval and the bins that z is encoded by come from the smallest and
largest reward of the task's data. As in the code, whose buffer is padded with zeros,
the largest is never below 0; the paper's interval takes it as it is.

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
    clip_actions,
    figures,
)
from trainer.agents.parts.flow_policies import DistilledPolicy, FlowPolicy
from trainer.data.nstep_windows import NStepBatch, NStepSampler
from trainer.nn import flow, losses, networks
from trainer.nn.networks import MLP, Params

_FOURIER = 64
# Of the encoding's deviation, beyond the outer edges: from there on single precision
# would divide zero by zero.
_FARTHEST = 4.0


@dataclass(frozen=True)
class Floq(BaselineAgent):
    """The agent: pure functions of its configuration and the data set's facts."""

    config: FloqConfig

    chunk = 1

    @cached_property
    def sampler(self) -> NStepSampler:
        """Single steps, each equally likely."""
        return NStepSampler(1, self.config.discount)

    @cached_property
    def noise_bounds(self) -> tuple[float, float]:
        """Interval that noise is drawn from."""
        c, scale = self.config, 1 - self.config.discount
        low, high = self.facts.reward_min / scale, self.facts.reward_max / scale
        if c.noise_interval == "scaled":
            return c.noise_share * low, c.noise_share * self._reward_max / scale
        return high - c.noise_share * (high - low), high

    def init(self, key: jax.Array) -> AgentState:
        """Draws fresh parameters; the target fields start as exact copies."""
        S, A = self.facts.observation_dim, self.facts.action_dim
        c = self.config
        field_key, critic_key, policy_key = jax.random.split(key, 3)
        params = self._policy.init(policy_key, S)
        params["field"] = networks.init_ensemble(
            self._field,
            field_key,
            CRITICS,
            S,
            A,
            c.bins - 1,
            1 if c.time_features == "cosine" else _FOURIER,
        )
        params["critic"] = networks.init_ensemble(
            self._critic, critic_key, CRITICS, S, A
        )
        return self.first_state(params, target="field")

    def act(self, params: Params, observation: jax.Array, key: jax.Array) -> jax.Array:
        """One action of the one-step policy: ``f32[S]`` to ``f32[1, A]``."""
        noise = jax.random.normal(key, (1, self.facts.action_dim))
        return self._policy.act(params, observation[None], noise)

    # Losses. Each takes `params`, which it may train; all else is stopped.

    def total_loss(
        self, params: Params, targets: Params, batch: NStepBatch, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Sum of all losses, at the same parameters.

        Args:
            params: Trained parameters.
            targets: Target fields.
            batch: ``B`` steps.
            key: PRNG key.

        Returns:
            ``f32[]`` and the figures to log.
        """
        batch = clip_actions(batch)
        frozen = jax.lax.stop_gradient(params)
        value_key, noise_key, time_key, policy_key = jax.random.split(key, 4)
        rows = len(batch.actions) * self.config.noises
        noise = self._noise(noise_key, rows, batch.actions)
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
        metrics = figures(
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
        """Values of the recorded actions, the mean of both critics: ``f32[B]``."""
        batch = clip_actions(batch)
        return self._critics(params, batch.observations, batch.actions).mean(axis=0)

    def values(
        self,
        frozen: Params,
        targets: Params,
        batch: NStepBatch,
        noise: jax.Array,
        key: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Backed-up values by the targets, and values by the online fields.

        Both are flows of the same shape from unrelated noise, so they are integrated
        together: one loop of J steps over stacked networks.

        Args:
            frozen: Read for ``field`` and ``one_step``.
            targets: Target fields.
            batch: ``B`` steps.
            noise: ``f32[B * R, 1]``, for the online fields.
            key: PRNG key; policy's and targets' noise is fresh for each repeat.

        Returns:
            ``f32[B]`` each: the target, aggregated over fields and averaged over
            noises; and the recorded actions' value, averaged over both.
        """
        c = self.config
        next_states = jnp.repeat(batch.states_n, c.noises, axis=0)
        policy_key, noise_key = jax.random.split(key)
        policy_noise = jax.random.normal(
            policy_key, (len(next_states), self.facts.action_dim), noise.dtype
        )
        next_actions = self._policy.act(frozen, next_states, policy_noise)
        states = jnp.repeat(batch.observations, c.noises, axis=0)
        actions = jnp.repeat(batch.actions, c.noises, axis=0)

        ends = jax.vmap(self.integrate)(
            jax.tree.map(
                lambda *each: jnp.stack(each), targets["field"], frozen["field"]
            ),
            jnp.stack([next_states, states]),
            jnp.stack([next_actions, actions]),
            jnp.stack([self._noise(noise_key, len(noise), noise), noise]),
        )
        following = losses.aggregate(ends[0], c.aggregation)
        averaged = following.reshape(-1, c.noises).mean(axis=1)
        target = batch.returns_n + batch.bootstraps * averaged
        own = ends[1].mean(axis=0).reshape(-1, c.noises).mean(axis=1)
        return target, own

    def integrate(
        self, field: Params, states: jax.Array, actions: jax.Array, noise: jax.Array
    ) -> jax.Array:
        """Carries noise to values, by each field on its own.

        Args:
            field: Parameters of E fields.
            states: ``f32[B, S]``.
            actions: ``f32[B, A]``.
            noise: ``f32[B, 1]``.

        Returns:
            ``f32[E, B]``.
        """

        def follow(one: Params) -> jax.Array:
            return flow.integrate(
                self._velocity(one, states, actions),
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
        """Flow matching of the fields from each noise towards the backed-up value.

        Args:
            params: Trains ``field``.
            batch: ``B`` steps.
            noise: ``f32[B * R, 1]``, the same as the online values started from.
            target: ``f32[B]``.
            key: PRNG key of the times.

        Returns:
            ``f32[]``, summed over noises, averaged over fields and batch.
        """
        R = self.config.noises
        states = jnp.repeat(batch.observations, R, axis=0)
        actions = jnp.repeat(batch.actions, R, axis=0)
        time = jax.random.uniform(key, noise.shape, noise.dtype)
        if self.config.time_zero:
            time = jnp.zeros_like(time)

        def error(one: Params) -> jax.Array:
            return flow.path_error(
                self._velocity(one, states, actions),
                noise,
                jnp.repeat(target, R)[:, None],
                time,
            )

        errors: jax.Array = jax.vmap(error)(params["field"])
        return errors.mean() * R

    def critic_loss(
        self, params: Params, batch: NStepBatch, values: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Distillation of the fields' values into the plain critics.

        Args:
            params: Trains ``critic``.
            batch: ``B`` steps.
            values: ``f32[B]``, of the recorded actions, by the fields.

        Returns:
            ``f32[]``, and the critics' values ``f32[E, B]``.
        """
        critics = self._critics(params, batch.observations, batch.actions)
        return jnp.square(critics - values[None]).mean(), critics

    def encode(self, z: jax.Array) -> jax.Array:
        """Shares of a normal distribution around z in each bin, of all bins' share.

        Args:
            z: ``f32[B, 1]``.

        Returns:
            ``f32[B, bins - 1]``, summing to 1; at least 0, up to rounding.
        """
        c, scale = self.config, 1 - self.config.discount
        low = (self.facts.reward_min - c.reward_margin) / scale
        high = (self._reward_max + c.reward_margin) / scale
        deviation = c.bin_deviation * (high - low) / (c.bins - 1)
        z = jnp.clip(z, low - _FARTHEST * deviation, high + _FARTHEST * deviation)
        edges = jnp.asarray(np.linspace(low, high, c.bins), z.dtype)[None]
        below = jax.scipy.special.erf((edges - z) / (deviation * np.sqrt(2).item()))
        return (below[:, 1:] - below[:, :-1]) / (below[:, -1:] - below[:, :1])

    # Parts.

    @property
    def _reward_max(self) -> float:
        """Largest reward, padding included."""
        return max(self.facts.reward_max, 0.0)

    @cached_property
    def _field(self) -> MLP:
        return self.network(1, layer_norm=True, depth=self.config.critic_depth)

    @cached_property
    def _critic(self) -> MLP:
        return self.network(1, layer_norm=True)

    @cached_property
    def _policy(self) -> DistilledPolicy:
        c = self.config
        net = self.network(self.facts.action_dim, layer_norm=False)
        return DistilledPolicy(
            FlowPolicy(net, c.flow_steps), net, alpha=c.alpha, normalize=c.normalize_q
        )

    def _critics(
        self, params: Params, states: jax.Array, actions: jax.Array
    ) -> jax.Array:
        return networks.apply_ensemble(self._critic, params["critic"], states, actions)

    def _velocity(
        self, field: Params, states: jax.Array, actions: jax.Array
    ) -> flow.Field:
        return lambda z, time: networks.apply(
            self._field, field, states, actions, self.encode(z), self._encode_time(time)
        )

    def _encode_time(self, time: jax.Array) -> jax.Array:
        if self.config.time_features == "cosine":
            return jnp.cos(time)
        frequencies = jnp.arange(1, _FOURIER + 1, dtype=time.dtype)[None]
        return jnp.cos(jnp.pi * frequencies * time)

    def _noise(self, key: jax.Array, rows: int, like: jax.Array) -> jax.Array:
        low, high = self.noise_bounds
        return low + (high - low) * jax.random.uniform(key, (rows, 1), like.dtype)
