"""VAST: horizon-adaptive offline policy learning via value stitching.

Five networks, one loss each, all taken at the same old parameters:

- ``G(s, s+, k)``, the discounted return collected on the way from ``s`` to ``s+`` in
  ``k`` steps (eq. 8 to 10 of the paper);
- the stitching policy ``(k, s_k) ~ stitch(s)``, a flow weighted by advantage;
- the execution policy ``a ~ exec(s, s_goal)``, a flow that clones behaviour;
- ``V(s)``, the expectile of ``G + discount ** k * Q`` over stitched continuations;
- ``Q(s, a)``, twins with targets.

Source: *Horizon Adaptive Offline Policy Learning via Value Stitching*, sections 3 and
4 and appendix B. Where the paper leaves a point open, the option's comment says how
it is read and why.

Dimensions: B batch, S observation, A action, E = 2 critics, K maximum horizon.
"""

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import optax

from trainer.agents import vast_metrics
from trainer.agents.base import AgentState, DataFacts, Metrics, observation_scale
from trainer.agents.vast_config import VASTConfig
from trainer.data.horizon_windows import (
    STATE_FIELDS,
    HorizonBatch,
    HorizonSampler,
)
from trainer.nn import flow, losses, networks, optimizers
from trainer.nn.networks import MLP, Params

CRITICS = 2


@dataclass(frozen=True)
class VAST:
    """The agent: pure functions of its configuration and the data set's facts."""

    config: VASTConfig
    facts: DataFacts

    chunk = 1

    @cached_property
    def sampler(self) -> HorizonSampler:
        """Windows with an intermediate row and a goal, see ``HorizonBatch``."""
        return self.config.make_sampler()

    def init(self, key: jax.Array) -> AgentState:
        """Draws fresh parameters; the target critics start as exact copies.

        Args:
            key: PRNG key.

        Returns:
            The state before the first update.
        """
        S, A = self.facts.observation_dim, self.facts.action_dim
        keys = jax.random.split(key, 5)
        params = {
            "value": networks.init(self._scalar, keys[0], S),
            "critic": networks.init_ensemble(self._scalar, keys[1], CRITICS, S, A),
            "segment": networks.init(self._scalar, keys[2], S, S, 1),
            "stitch": networks.init(self._stitch, keys[3], S, 1 + S, 1),
            "exec": networks.init(self._exec, keys[4], S, S, A, 1),
        }
        return AgentState(
            params=params,
            targets={"critic": params["critic"]},
            opt_state=self.optimizer.init(params),
            step=jnp.zeros((), jnp.int32),
        )

    def move_targets(self, targets: Params, *, before: Params, after: Params) -> Params:
        """Moves the target critics towards the critics after the step."""
        return optimizers.soft_update(
            targets, {"critic": after["critic"]}, rate=self.config.target_rate
        )

    def act(self, params: Params, observation: jax.Array, key: jax.Array) -> jax.Array:
        """Draws a sub-goal, then actions towards it, and takes the best by Q.

        The sub-goal is drawn anew at every step; its horizon is not kept.

        Args:
            params: Of the agent.
            observation: ``f32[S]``, in the units of the data.
            key: PRNG key of this step.

        Returns:
            ``f32[1, A]`` in [-1, 1].

        References:
            Eq. 20 (rejection sampling) and algorithm 1 of the paper.
        """
        stitch_key, exec_key = jax.random.split(key)
        state = self._scaled(observation)[None]
        _, goal = self.sample_stitch(params, state, stitch_key)
        states, goals = (
            jnp.repeat(x, self.config.candidates, axis=0) for x in (state, goal)
        )
        actions = self.sample_exec(params, states, goals, exec_key)
        best = self._critic(params, states, actions).argmax()
        return actions[best][None]

    def predict_subgoal(
        self, params: Params, observation: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Draws the sub-goal that ``act`` with the same key would pursue.

        Args:
            params: Of the agent.
            observation: ``f32[S]``, in the units of the data.
            key: PRNG key of this step.

        Returns:
            ``(horizon f32[], state f32[S])``, the state in the units of the data.
        """
        stitch_key, _ = jax.random.split(key)
        horizon, goal = self.sample_stitch(
            params, self._scaled(observation)[None], stitch_key
        )
        shift, scale = observation_scale(self.facts, self.config.state_scaling)
        return horizon[0], goal[0] * scale + shift

    def value(self, params: Params, observations: jax.Array) -> jax.Array:
        """State values: ``f32[..., S]`` in the units of the data to ``f32[...]``."""
        return self._value(params, self._scaled(observations))

    def critic(
        self, params: Params, observations: jax.Array, actions: jax.Array
    ) -> jax.Array:
        """Action values, aggregated over the twins: ``f32[...]``."""
        return self._critic(params, self._scaled(observations), actions)

    # Losses. Each takes `params`, which it may train, and reads everything else from
    # `frozen`, the same parameters with their gradient stopped.

    def total_loss(
        self, params: Params, targets: Params, batch: HorizonBatch, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Sum of the five losses, all at the same parameters.

        Args:
            params: Trained parameters.
            targets: Target critics.
            batch: ``B`` windows, states in the units of the data.
            key: PRNG key.

        Returns:
            ``f32[]`` and the figures to log.
        """
        batch = self._scaled_batch(batch)
        # A flow's ten steps would cast its layers anew each.
        frozen = networks.cast_hidden(
            jax.lax.stop_gradient(params), self.config.precision
        )
        sample_key, next_key, stitch_key, exec_key = jax.random.split(key, 4)
        horizon, subgoal = self.sample_stitch(frozen, batch.observations, sample_key)
        # Both continuations in one sampling call: flow steps run one after another,
        # so a call on 2B rows costs little more than one on B. Stacked, not joined: a
        # device keeps its rows of the batch.
        at_subgoal, at_window_end = self.continuation(
            frozen, targets, jnp.stack([subgoal, batch.states_k]), next_key
        )

        segment_loss, segments = self.segment_loss(params, batch)
        value_loss, values = self.value_loss(
            params, frozen, batch, horizon, subgoal, at_subgoal
        )
        critic_loss, critics = self.critic_loss(params, frozen, batch)
        advantage = self.advantage(batch, segments, values, at_window_end)
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
        """Values of the recorded actions, aggregated over the twins: ``f32[B]``."""
        return self.critic(params, batch.observations, batch.actions)

    def value_loss(
        self,
        params: Params,
        frozen: Params,
        batch: HorizonBatch,
        horizon: jax.Array,
        subgoal: jax.Array,
        continuation: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Expectile regression of V on stitched targets (eq. 17 and 26).

        The paper has no ends. Where success is one, nothing goes on from a solved
        state; its windows end at the next one, so that a plan does not lead past it,
        and there ``continuation`` is the reward alone, by the mask of Q.

        Args:
            params: Trains ``value``.
            frozen: Read for G.
            batch: ``B`` windows, scaled states.
            horizon: ``f32[B]``, κ in [1, K], drawn from the stitching policy.
            subgoal: ``f32[B, S]``, the state drawn with it, scaled.
            continuation: ``f32[B]``, value of going on from there.

        Returns:
            ``f32[]``, and V at the window starts ``f32[B]``.
        """
        gained = self._segment(frozen, batch.observations, subgoal, horizon)
        ahead = self.config.discount**horizon * continuation
        if self.config.success == "ends":
            ahead = batch.masks * ahead
        target = gained + ahead
        values = self._value(params, batch.observations)
        difference = jax.lax.stop_gradient(target) - values
        loss = losses.expectile_loss(difference, expectile=self.config.expectile)
        return loss.mean(), values

    def critic_loss(
        self, params: Params, frozen: Params, batch: HorizonBatch
    ) -> tuple[jax.Array, jax.Array]:
        """One-step backup of both critics from V (eq. 15).

        Args:
            params: Trains ``critic``.
            frozen: Read for V.
            batch: ``B`` windows, scaled states.

        Returns:
            ``f32[]``, summed over critics, and the critics' values ``f32[E, B]``.
        """
        following = self._value(frozen, batch.next_observations)
        target = batch.rewards + self.config.discount * batch.masks * following
        values = networks.apply_ensemble(
            self._scalar, params["critic"], batch.observations, batch.actions
        )
        return jnp.square(values - target[None]).mean(axis=1).sum(), values

    def segment_loss(
        self, params: Params, batch: HorizonBatch
    ) -> tuple[jax.Array, jax.Array]:
        """Monte-Carlo and compositional regression of G (eq. 8 to 10).

        Args:
            params: Trains ``segment``.
            batch: ``B`` windows, scaled states.

        Returns:
            ``f32[]``, and G of the whole windows ``f32[B]``.
        """
        k, i = batch.horizons, batch.intermediates
        whole, first, second = self._segment(
            params,
            jnp.stack([batch.observations, batch.observations, batch.states_i]),
            jnp.stack([batch.states_k, batch.states_i, batch.states_k]),
            jnp.stack([k, i, k - i]),
        )
        # A window solved before row i has nothing more to collect after it.
        composed = first + self.config.discount**i * batch.alive_i * second
        if not self.config.composed_gradient:
            composed = jax.lax.stop_gradient(composed)
        monte_carlo = jnp.square(whole - batch.returns_k).mean()
        composition = jnp.square(whole - composed).mean()
        return monte_carlo + self.config.composition * composition, whole

    def advantage(
        self,
        batch: HorizonBatch,
        segments: jax.Array,
        values: jax.Array,
        continuation: jax.Array,
    ) -> jax.Array:
        """How much better than V the recorded window is, stopped (eq. 18).

        Args:
            batch: ``B`` windows.
            segments: ``f32[B]``, G of the windows.
            values: ``f32[B]``, V of their first states.
            continuation: ``f32[B]``, value of going on from their ends.

        Returns:
            ``f32[B]``.
        """
        gained = (
            segments if self.config.advantage_return == "model" else batch.returns_k
        )
        discounts = self.config.discount**batch.horizons
        ahead = gained + discounts * batch.alive_k * continuation
        return jax.lax.stop_gradient(ahead - values)

    def stitch_loss(
        self,
        params: Params,
        batch: HorizonBatch,
        advantage: jax.Array,
        key: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Weighted flow matching of recorded ``(k / K, s_k)`` (eq. 19).

        Args:
            params: Trains ``stitch``.
            batch: ``B`` windows, scaled states.
            advantage: ``f32[B]``.
            key: PRNG key.

        Returns:
            ``f32[]``, and the weights ``f32[B]``.
        """
        weights = self.weights(advantage)
        data = jnp.concatenate(
            [batch.horizons[:, None] / self.config.max_horizon, batch.states_k], axis=-1
        )

        field = self._stitch_field(params, batch.observations)
        error = flow.matching_error(field, data, key).sum(axis=-1)
        return (weights * error).mean(), weights

    def weights(self, advantage: jax.Array) -> jax.Array:
        """Weights of windows in the stitching loss: ``f32[B]``."""
        beta = self.config.temperature
        if self.config.weight_form == "exp_beta":
            weights = jnp.exp(beta * advantage)
        else:
            weights = beta * jnp.exp(advantage)
        return jnp.minimum(weights, self.config.max_weight)

    def exec_loss(
        self, params: Params, batch: HorizonBatch, key: jax.Array
    ) -> jax.Array:
        """Flow matching of actions, given state and goal (eq. 29): ``f32[]``.

        Recorded actions are not moved off the bounds by 1e-5, as published code does:
        that keeps densities of squashed actions finite, and a flow asks for none.
        """
        field = self._exec_field(params, batch.observations, batch.goals)
        return flow.matching_error(field, batch.actions, key).sum(axis=-1).mean()

    # Samples.

    def sample_stitch(
        self, params: Params, states: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Draws horizons and sub-goals from the stitching policy.

        Args:
            params: Read for ``stitch``.
            states: ``f32[B, S]``, scaled.
            key: PRNG key.

        Returns:
            κ ``f32[B]``, clipped to [1, K] and not rounded, and sub-goals
            ``f32[B, S]``, scaled.
        """
        noise = jax.random.normal(key, (*states.shape[:-1], 1 + states.shape[-1]))

        field = self._stitch_field(params, states)
        plans = flow.integrate(field, noise, steps=self.config.flow_steps)
        K = self.config.max_horizon
        return jnp.clip(plans[..., 0] * K, 1, K), plans[..., 1:]

    def sample_exec(
        self, params: Params, states: jax.Array, goals: jax.Array, key: jax.Array
    ) -> jax.Array:
        """Draws actions towards goals: scaled ``f32[B, S]`` twice to ``f32[B, A]``."""
        noise = jax.random.normal(key, (*states.shape[:-1], self.facts.action_dim))

        field = self._exec_field(params, states, goals)
        actions = flow.integrate(field, noise, steps=self.config.flow_steps)
        return jnp.clip(actions, -1, 1)

    def continuation(
        self, params: Params, targets: Params, states: jax.Array, key: jax.Array
    ) -> jax.Array:
        """Value of going on from states as both policies would (eq. 26).

        Args:
            params: Read for ``stitch`` and ``exec``.
            targets: Target critics.
            states: ``f32[B, S]``, scaled.
            key: PRNG key.

        Returns:
            ``f32[B]``.
        """
        stitch_key, exec_key = jax.random.split(key)
        _, goals = self.sample_stitch(params, states, stitch_key)
        actions = self.sample_exec(params, states, goals, exec_key)
        return self._critic(targets, states, actions)

    # Parts.

    @cached_property
    def _scalar(self) -> MLP:
        return self._network(1)

    @cached_property
    def _stitch(self) -> MLP:
        return self._network(1 + self.facts.observation_dim)

    @cached_property
    def _exec(self) -> MLP:
        return self._network(self.facts.action_dim)

    def _network(self, outputs: int) -> MLP:
        c = self.config
        return MLP(
            outputs,
            c.width,
            c.depth,
            precision=c.precision,
            rematerialise=c.rematerialise,
        )

    @cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam for all networks, after clipping the norm of their gradient."""
        return optimizers.adam(
            self.config.learning_rate, clip_norm=self.config.clip_norm
        )

    def _value(self, params: Params, states: jax.Array) -> jax.Array:
        return networks.apply_scalar(self._scalar, params["value"], states)

    def _critic(
        self, params: Params, states: jax.Array, actions: jax.Array
    ) -> jax.Array:
        twins = networks.apply_ensemble(self._scalar, params["critic"], states, actions)
        return losses.aggregate(twins, self.config.aggregation)

    def _stitch_field(self, params: Params, states: jax.Array) -> flow.Field:
        return lambda x, time: networks.apply(
            self._stitch, params["stitch"], states, x, time
        )

    def _exec_field(
        self, params: Params, states: jax.Array, goals: jax.Array
    ) -> flow.Field:
        return lambda x, time: networks.apply(
            self._exec, params["exec"], states, goals, x, time
        )

    def _segment(
        self, params: Params, states: jax.Array, ends: jax.Array, horizons: jax.Array
    ) -> jax.Array:
        share = horizons[..., None] / self.config.max_horizon
        gained = networks.apply_scalar(
            self._scalar, params["segment"], states, ends, share
        )
        # What is left of a window of one step after its first: nothing.
        return jnp.where(horizons > 0, gained, 0.0)

    def _scaled(self, states: jax.Array) -> jax.Array:
        if self.config.state_scaling == "none":
            return states
        shift, scale = observation_scale(self.facts, self.config.state_scaling)
        return (states - jnp.broadcast_to(shift, states.shape)) / jnp.broadcast_to(
            scale, states.shape
        )

    def _scaled_batch(self, batch: HorizonBatch) -> HorizonBatch:
        return batch._replace(
            **{name: self._scaled(getattr(batch, name)) for name in STATE_FIELDS}
        )
