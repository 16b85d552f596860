"""VAST: horizon-adaptive offline policy learning via value stitching.

VAST has five networks with one loss each, all evaluated at the same old parameters:

- ``G(s, s+, k)``, the discounted return collected on the way from ``s`` to ``s+`` in
  ``k`` steps (eq. 8 to 10 of the paper);
- the stitching policy ``(k, s_k) ~ stitch(s)``, a flow weighted by advantage;
- the execution policy ``a ~ exec(s, s_goal)``, a flow that clones behaviour;
- ``V(s)``, the expectile of ``G + discount ** k * Q`` over stitched continuations, or
  over recorded windows;
- ``Q(s, a)``, twin critics with targets.

Source: *Horizon Adaptive Offline Policy Learning via Value Stitching*, sections 3 and
4 and appendix B. No code of VAST is published; where the paper leaves a point open,
``VASTConfig`` says how it is read and why.

Dimensions: B batch, S observation, A action, E = 2 critics, K maximum horizon.
"""

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import optax

from trainer.agents import vast_metrics
from trainer.agents.base import (
    AgentState,
    DataFacts,
    Metrics,
    observation_scale,
    scale_states,
)
from trainer.agents.vast_config import VASTConfig
from trainer.agents.vast_networks import VASTNetworks
from trainer.data.horizon_windows import STATE_FIELDS, HorizonBatch, HorizonSampler
from trainer.nn import flow, losses, networks, optimizers
from trainer.nn.networks import Params


@dataclass(frozen=True)
class VAST:
    """VAST as pure functions of its configuration and the facts of the data."""

    config: VASTConfig
    facts: DataFacts

    chunk = 1

    @cached_property
    def sampler(self) -> HorizonSampler:
        """Sampler of windows with an intermediate row and a goal."""
        return self.config.make_sampler()

    def init(self, key: jax.Array) -> AgentState:
        """Draws the state before the first update.

        The target critics start as exact copies of the critics.

        Args:
            key: PRNG key.

        Returns:
            The state.
        """
        params = self._networks.init(key)
        return AgentState(
            params=params,
            targets={"critic": params["critic"]},
            opt_state=self.optimizer.init(params),
            step=jnp.zeros((), jnp.int32),
        )

    def move_targets(self, targets: Params, *, before: Params, after: Params) -> Params:
        """Moves the target critics towards the critics after the step."""
        # After the step, as in the usual Polyak update; the published code of the
        # baselines takes the critics from before it.
        return optimizers.soft_update(
            targets, {"critic": after["critic"]}, rate=self.config.target_rate
        )

    def act(self, params: Params, observation: jax.Array, key: jax.Array) -> jax.Array:
        """Draws a sub-goal, then actions towards it, and takes the best by Q.

        Args:
            params: Parameters of the agent.
            observation: ``f32[S]``, in the units of the data.
            key: PRNG key of this step.

        Returns:
            ``f32[1, A]`` in [-1, 1].

        References:
            Eq. 20 (rejection sampling) and algorithm 1 of the paper.
        """
        stitch_key, exec_key = jax.random.split(key)
        state = self._scale(observation)[None]
        # Algorithm 1 draws a sub-goal anew at every step, so the horizon of the
        # previous plan is not kept.
        _, goal = self.sample_stitch(params, state, stitch_key)
        states, goals = (
            jnp.repeat(x, self.config.candidates, axis=0) for x in (state, goal)
        )
        actions = self.sample_exec(params, states, goals, exec_key)
        best = self._networks.critic(params, states, actions).argmax()
        return actions[best][None]

    def predict_subgoal(
        self, params: Params, observation: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Draws the sub-goal that ``act`` would pursue with the same key.

        Args:
            params: Parameters of the agent.
            observation: ``f32[S]``, in the units of the data.
            key: PRNG key of this step.

        Returns:
            ``(horizon f32[], state f32[S])``, the state in the units of the data.
        """
        stitch_key, _ = jax.random.split(key)
        horizon, goal = self.sample_stitch(
            params, self._scale(observation)[None], stitch_key
        )
        shift, scale = observation_scale(self.facts, self.config.state_scaling)
        return horizon[0], goal[0] * scale + shift

    def value(self, params: Params, observations: jax.Array) -> jax.Array:
        """Computes V ``f32[...]`` of states ``f32[..., S]``, in the data's units."""
        return self._networks.value(params, self._scale(observations))

    def critic(
        self, params: Params, observations: jax.Array, actions: jax.Array
    ) -> jax.Array:
        """Computes Q, aggregated over the twins: ``f32[...]``."""
        return self._networks.critic(params, self._scale(observations), actions)

    def total_loss(
        self, params: Params, targets: Params, batch: HorizonBatch, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Computes the sum of the five losses.

        Args:
            params: Trained parameters.
            targets: Target critics.
            batch: ``B`` windows, states in the units of the data.
            key: PRNG key.

        Returns:
            The loss ``f32[]``, and the metrics to log.
        """
        batch = self._scale_batch(batch)
        # A loss trains its own network in `params` and reads all others from `frozen`,
        # where gradients are stopped. So every network has the gradient of one loss,
        # and the weights of the sum do not matter under Adam, but for clipping.
        # Layers are cast once here; each of a flow's steps would cast them again.
        frozen = networks.cast_hidden(
            jax.lax.stop_gradient(params), self.config.precision
        )
        sample_key, next_key, stitch_key, exec_key = jax.random.split(key, 4)
        segment_loss, segments = self.segment_loss(params, batch)
        if self.config.value_windows == "recorded":
            horizon, at_window_end = self.continuation(
                frozen, targets, batch.states_k, next_key
            )
            window_values = self.window_values(batch, segments, at_window_end)
            target = window_values
        else:
            horizon, subgoal = self.sample_stitch(
                frozen, batch.observations, sample_key
            )
            # Both continuations are sampled in one call: flow steps run one after
            # another, so a call on 2B rows costs little more than one on B. States are
            # stacked, not concatenated, so that a device keeps its rows of the batch.
            _, (at_subgoal, at_window_end) = self.continuation(
                frozen, targets, jnp.stack([subgoal, batch.states_k]), next_key
            )
            window_values = self.window_values(batch, segments, at_window_end)
            target = self.stitched_values(frozen, batch, horizon, subgoal, at_subgoal)

        value_loss, values = self.value_loss(params, batch, target)
        critic_loss, critics = self.critic_loss(params, frozen, batch)
        # The advantage of eq. 18.
        advantage = jax.lax.stop_gradient(window_values - values)
        stitch_loss, weights = self.stitch_loss(params, batch, advantage, stitch_key)
        exec_loss = self.exec_loss(params, batch, exec_key)
        total = segment_loss + value_loss + critic_loss + stitch_loss + exec_loss
        metrics = vast_metrics.summarise(
            batch,
            horizon,
            segments,
            values,
            critics,
            max_horizon=self.config.max_horizon,
            return_max=self.facts.return_max,
        )
        metrics.mean.update(
            {
                "loss": total,
                "segment_loss": segment_loss,
                "value_loss": value_loss,
                "critic_loss": critic_loss,
                "stitch_loss": stitch_loss,
                "exec_loss": exec_loss,
                "weight": weights.mean(),
                "advantage": advantage.mean(),
            }
        )
        metrics.max.update(
            {"weight_max": weights.max(), "advantage_max": advantage.max()}
        )
        return total, metrics

    def action_values(
        self, params: Params, batch: HorizonBatch, key: jax.Array
    ) -> jax.Array:
        """Computes Q of the recorded actions, aggregated over the twins: ``f32[B]``."""
        return self.critic(params, batch.observations, batch.actions)

    def stitched_values(
        self,
        params: Params,
        batch: HorizonBatch,
        horizon: jax.Array,
        subgoal: jax.Array,
        continuation: jax.Array,
    ) -> jax.Array:
        """Computes the values of reaching drawn sub-goals, for V (eq. 17).

        Args:
            params: Parameters of G, ``segment``.
            batch: ``B`` windows, scaled states.
            horizon: ``f32[B]``, horizons κ in [1, K] from the stitching policy.
            subgoal: ``f32[B, S]``, scaled states that were drawn with the horizons.
            continuation: ``f32[B]``, value of continuing from the sub-goals.

        Returns:
            ``f32[B]``.
        """
        segment = self._networks.segment(params, batch.observations, subgoal, horizon)
        return segment + self.config.discount**horizon * continuation

    def window_values(
        self, batch: HorizonBatch, segments: jax.Array, continuation: jax.Array
    ) -> jax.Array:
        """Computes the values of recorded windows, for the advantage (eq. 18) and V.

        Args:
            batch: ``B`` windows.
            segments: ``f32[B]``, G of the windows.
            continuation: ``f32[B]``, value of continuing from the windows' ends.

        Returns:
            ``f32[B]``.
        """
        returns = (
            segments if self.config.advantage_return == "model" else batch.returns_k
        )
        discounts = self.config.discount**batch.horizons
        return returns + discounts * batch.alive_k * continuation

    def value_loss(
        self, params: Params, batch: HorizonBatch, target: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Computes the expectile loss of V (eq. 17 and 26).

        Args:
            params: Parameters; the loss trains ``value``.
            batch: ``B`` windows, scaled states.
            target: ``f32[B]``, values of drawn or recorded windows.

        Returns:
            The loss ``f32[]``, and V of the windows' first states ``f32[B]``.
        """
        # The paper has no terminal states. Where success is one, a solved row's return
        # is its reward, whatever sub-goal is drawn. G of a drawn sub-goal would only be
        # an estimate of it, and is smooth where solved states begin: V there was -5 on
        # cube-single-play, so that reaching the goal was worth five steps too little.
        if self.config.success == "ends":
            target = jnp.where(batch.masks > 0, target, batch.rewards)
        values = self._networks.value(params, batch.observations)
        difference = jax.lax.stop_gradient(target) - values
        loss = losses.expectile_loss(difference, expectile=self.config.expectile)
        return loss.mean(), values

    def critic_loss(
        self, params: Params, frozen: Params, batch: HorizonBatch
    ) -> tuple[jax.Array, jax.Array]:
        """Computes the loss of both critics on one-step targets from V (eq. 15).

        Args:
            params: Parameters; the loss trains ``critic``.
            frozen: Parameters of V, not trained here.
            batch: ``B`` windows, scaled states.

        Returns:
            The loss ``f32[]``, summed over critics, and Q ``f32[E, B]``.
        """
        # V is the online one: only the critics have targets.
        next_values = self._networks.value(frozen, batch.next_observations)
        target = batch.rewards + self.config.discount * batch.masks * next_values
        values = self._networks.critics(params, batch.observations, batch.actions)
        return jnp.square(values - target[None]).mean(axis=1).sum(), values

    def segment_loss(
        self, params: Params, batch: HorizonBatch
    ) -> tuple[jax.Array, jax.Array]:
        """Computes the Monte-Carlo and compositional losses of G (eq. 8 to 10).

        Args:
            params: Parameters; the loss trains ``segment``.
            batch: ``B`` windows, scaled states.

        Returns:
            The loss ``f32[]``, and G of the whole windows ``f32[B]``.
        """
        k, i = batch.horizons, batch.intermediates
        # The three evaluations are one on stacked rows: larger products, fewer kernels.
        whole, first, second = self._networks.segment(
            params,
            jnp.stack([batch.observations, batch.observations, batch.states_i]),
            jnp.stack([batch.states_k, batch.states_i, batch.states_k]),
            jnp.stack([k, i, k - i]),
        )
        # A window that is solved before row i collects nothing after it.
        composed = first + self.config.discount**i * batch.alive_i * second
        if not self.config.composed_gradient:
            composed = jax.lax.stop_gradient(composed)
        monte_carlo = jnp.square(whole - batch.returns_k).mean()
        composition = jnp.square(whole - composed).mean()
        return monte_carlo + self.config.composition * composition, whole

    def stitch_loss(
        self,
        params: Params,
        batch: HorizonBatch,
        advantage: jax.Array,
        key: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Computes the weighted flow-matching loss of ``(k / K, s_k)`` (eq. 19).

        Args:
            params: Parameters; the loss trains ``stitch``.
            batch: ``B`` windows, scaled states.
            advantage: ``f32[B]``.
            key: PRNG key.

        Returns:
            The loss ``f32[]``, and the weights ``f32[B]``.
        """
        weights = self.weights(advantage)
        # The horizon enters as k / K, in [0, 1], since the flow's noise is of one size
        # for all components.
        data = jnp.concatenate(
            [batch.horizons[:, None] / self.config.max_horizon, batch.states_k], axis=-1
        )
        field = self._networks.stitch_field(params, batch.observations)
        error = flow.matching_error(field, data, key).sum(axis=-1)
        return (weights * error).mean(), weights

    def weights(self, advantage: jax.Array) -> jax.Array:
        """Computes the weights of windows in the stitching loss: ``f32[B]``."""
        beta = self.config.temperature
        if self.config.weight_form == "exp_beta":
            weights = jnp.exp(beta * advantage)
        else:
            weights = beta * jnp.exp(advantage)
        # Bounded, since a few windows can dominate a batch while V is still wrong.
        return jnp.minimum(weights, self.config.max_weight)

    def exec_loss(
        self, params: Params, batch: HorizonBatch, key: jax.Array
    ) -> jax.Array:
        """Computes the flow-matching loss of actions towards goals (eq. 29)."""
        # The base code clips recorded actions to the bounds less 1e-5, which keeps
        # densities of squashed Gaussians finite. A flow needs no densities.
        field = self._networks.exec_field(params, batch.observations, batch.goals)
        return flow.matching_error(field, batch.actions, key).sum(axis=-1).mean()

    def sample_stitch(
        self, params: Params, states: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Draws horizons and sub-goals from the stitching policy.

        Args:
            params: Parameters of the stitching policy, ``stitch``.
            states: ``f32[B, S]``, scaled.
            key: PRNG key.

        Returns:
            Horizons κ ``f32[B]`` in [1, K], not rounded, and sub-goals ``f32[B, S]``,
            scaled.
        """
        noise = jax.random.normal(key, (*states.shape[:-1], 1 + states.shape[-1]))
        field = self._networks.stitch_field(params, states)
        plans = flow.integrate(field, noise, steps=self.config.flow_steps)
        K = self.config.max_horizon
        # A flow may overshoot the range of its data, and G was trained within it. G and
        # the discount take real numbers, so rounding would only lose precision.
        return jnp.clip(plans[..., 0] * K, 1, K), plans[..., 1:]

    def sample_exec(
        self, params: Params, states: jax.Array, goals: jax.Array, key: jax.Array
    ) -> jax.Array:
        """Draws actions towards goals from the execution policy.

        Args:
            params: Parameters of the execution policy, ``exec``.
            states: ``f32[B, S]``, scaled.
            goals: ``f32[B, S]``, scaled.
            key: PRNG key.

        Returns:
            ``f32[B, A]`` in [-1, 1].
        """
        noise = jax.random.normal(key, (*states.shape[:-1], self.facts.action_dim))
        field = self._networks.exec_field(params, states, goals)
        actions = flow.integrate(field, noise, steps=self.config.flow_steps)
        return jnp.clip(actions, -1, 1)

    def continuation(
        self, params: Params, targets: Params, states: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Draws what both policies do from states, and its value (eq. 26).

        Args:
            params: Parameters of the policies ``stitch`` and ``exec``.
            targets: Target critics.
            states: ``f32[B, S]``, scaled.
            key: PRNG key.

        Returns:
            Horizons that were drawn, ``f32[B]``, and Q of the actions, ``f32[B]``.
        """
        stitch_key, exec_key = jax.random.split(key)
        horizons, goals = self.sample_stitch(params, states, stitch_key)
        actions = self.sample_exec(params, states, goals, exec_key)
        return horizons, self._networks.critic(targets, states, actions)

    @cached_property
    def _networks(self) -> VASTNetworks:
        return VASTNetworks(self.config, self.facts)

    @cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam for all networks, with the global norm of their gradient clipped."""
        return optimizers.adam(
            self.config.learning_rate, clip_norm=self.config.clip_norm
        )

    def _scale(self, states: jax.Array) -> jax.Array:
        return scale_states(states, self.facts, self.config.state_scaling)

    def _scale_batch(self, batch: HorizonBatch) -> HorizonBatch:
        return batch._replace(
            **{name: self._scale(getattr(batch, name)) for name in STATE_FIELDS}
        )
