"""Value Flows: the distribution of returns as a flow from noise to returns.

Twin fields ``v(z, t, s, a)`` carry noise at t = 0 to returns at t = 1. They are trained
towards the backed-up returns of the policy's next action, as end points (bootstrapped
flow matching) and as points on the way (distributional flow matching), with more weight
where returns spread widely. A cloned flow proposes actions, and the policy takes the
best by a one-step reading of the fields. A one-step policy is distilled besides; only
online fine-tuning would act with it.

Where the published code departs from its own derivation or from the paper, the code is
followed:

- the target on the way is the next state's velocity itself, neither discounted nor
  masked, although its point is; carrying a return to its backup would multiply both;
- values are read with a single noise, so that choosing among candidates is noisy; the
  paper takes an expectation over noises;
- samples of returns are clipped from the first Euler step on, while the points that
  fields are trained at are not;
- actions are clipped after every step of their flow and, unlike in FQL, before the
  distillation.

The bounds of returns come from the smallest and largest reward of the task's data.

Source: *Value Flows* and its code, for offline training from states.

Dimensions: B batch, S observation, A action, E = 2 fields, N candidates.
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
from trainer.agents.value_flows_config import ValueFlowsConfig
from trainer.data.nstep_windows import NStepBatch, NStepSampler
from trainer.nn import flow, losses, networks
from trainer.nn.networks import MLP, Params


@dataclass(frozen=True)
class ValueFlows(BaselineAgent):
    """Value Flows as pure functions of its configuration and the facts of the data."""

    config: ValueFlowsConfig

    chunk = 1

    @cached_property
    def sampler(self) -> NStepSampler:
        """Sampler of single steps."""
        return NStepSampler(1, self.config.discount)

    @cached_property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest return of the task, if its data bound the rewards."""
        # As in the published code, the largest may be below 0 where the task is never
        # solved in the data.
        scale = 1 - self.config.discount
        return self.facts.reward_min / scale, self.facts.reward_max / scale

    def init(self, key: jax.Array) -> AgentState:
        """Draws the state before the first update."""
        S, A = self.facts.observation_dim, self.facts.action_dim
        critic_key, flow_key, one_step_key = jax.random.split(key, 3)
        params = {
            "critic": networks.init_ensemble(
                self._field, critic_key, CRITICS, 1, 1, S, A
            ),
            "flow": self._policy.init(flow_key, S),
        }
        if self.config.distill:
            params["one_step"] = networks.init(self._actor, one_step_key, S, A)
        return self.first_state(params, target="critic")

    def act(self, params: Params, observation: jax.Array, key: jax.Array) -> jax.Array:
        """Takes the best of several flow actions: ``f32[S]`` to ``f32[1, A]``."""
        actions_key, values_key = jax.random.split(key)
        count = self.config.candidates
        states, actions = self._policy.candidates(
            params, self.scale_states(observation)[None], actions_key, count=count
        )
        scores = self.values(params, states, actions, values_key)
        return pick_best(actions, scores, count=count)

    def values(
        self, params: Params, states: jax.Array, actions: jax.Array, key: jax.Array
    ) -> jax.Array:
        """Reads values off the fields by one Euler step of size 1 from noise.

        Args:
            params: Parameters of ``critic``.
            states: ``f32[B, S]``.
            actions: ``f32[B, A]``.
            key: PRNG key; both fields see the same noise.

        Returns:
            ``f32[B]``, within the bounds of returns.
        """
        # One noise for a value, as in the published code; the paper's value is the mean
        # over noises.
        noise = jax.random.normal(key, (len(states), 1), states.dtype)
        ends = noise[None] + self._velocity(
            params["critic"], noise, jnp.zeros_like(noise), states, actions
        )
        clipped = jnp.clip(ends[..., 0], *self.bounds)
        return losses.aggregate(clipped, self.config.aggregation)

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
        keys = jax.random.split(key, 7)
        distill_noise = jax.random.normal(
            keys[0], batch.actions.shape, batch.actions.dtype
        )
        next_actions, flow_actions = self.draw_actions(
            frozen, batch, distill_noise, keys[1], keys[2]
        )
        spread = self.spread(targets, batch, keys[3])
        # Between 1/2 and 1, and larger where returns spread more widely.
        weights = jax.nn.sigmoid(-self.config.confidence / spread) + 0.5
        end_loss, path_loss = self.return_losses(
            params, targets, batch, next_actions, weights, keys[4]
        )
        flow_loss = self._policy.error(
            params, batch.observations, batch.actions, keys[5]
        ).mean()
        parts = {
            "end_loss": self.config.end_weight * end_loss,
            "path_loss": self.config.path_weight * path_loss,
            "flow_loss": flow_loss,
        }
        read_key, improve_key = jax.random.split(keys[6])
        if self.config.distill:
            parts |= self.one_step_losses(
                params, frozen, batch, distill_noise, flow_actions, improve_key
            )
        metrics = collect_metrics(
            parts,
            self.values(frozen, batch.observations, batch.actions, read_key),
            return_max=self.facts.return_max,
            spread=spread.mean(),
            weight=weights.mean(),
        )
        metrics.max["spread_max"] = spread.max()
        return metrics.mean["loss"], metrics

    def action_values(
        self, params: Params, batch: NStepBatch, key: jax.Array
    ) -> jax.Array:
        """Computes values of the recorded actions, read off the fields: ``f32[B]``."""
        batch = self.prepare(batch)
        return self.values(params, batch.observations, batch.actions, key)

    def draw_actions(
        self,
        frozen: Params,
        batch: NStepBatch,
        distill_noise: jax.Array,
        actions_key: jax.Array,
        values_key: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Draws the policy's next actions and the flow's actions to distil.

        Args:
            frozen: Parameters of ``flow`` and of the online ``critic``.
            batch: ``B`` steps.
            distill_noise: ``f32[B, A]``, noise of the actions to distil.
            actions_key: PRNG key of the candidates.
            values_key: PRNG key of the candidates' values.

        Returns:
            The best of N actions at ``states_n``, and the flow's actions at
            ``observations``, both ``f32[B, A]``.
        """
        count = self.config.candidates
        states = jnp.repeat(batch.states_n, count, axis=0)
        noise = jax.random.normal(
            actions_key, (len(states), distill_noise.shape[-1]), distill_noise.dtype
        )
        # One call of the sampler for both, because its steps run one after another,
        # whatever the number of rows.
        samples = self._policy.sample(
            frozen,
            jnp.concatenate([states, batch.observations]),
            jnp.concatenate([noise, distill_noise]),
        )
        candidates, flow_actions = jnp.split(samples, [len(states)])
        # The online fields choose, as they do in acting.
        scores = self.values(frozen, states, candidates, values_key)
        return pick_best(candidates, scores, count=count), flow_actions

    def spread(self, targets: Params, batch: NStepBatch, key: jax.Array) -> jax.Array:
        """Computes how fast returns change with the noise that they start from.

        That is the absolute derivative of the flow's end with respect to its start, by
        the target fields.

        Args:
            targets: Target fields.
            batch: ``B`` steps.
            key: PRNG key; both fields see the same noise.

        Returns:
            ``f32[B]``, at least 0.
        """
        # Forward mode: one product with the Jacobian a step, beside the step itself,
        # where reverse mode would keep all steps. As in the published code, clipping is
        # not differentiated, or the spread would be 0 wherever a sample hit a bound.
        steps = self.config.flow_steps
        shape = (len(batch.actions), 1)
        start = jax.random.normal(key, shape, batch.actions.dtype)

        def follow(critic: Params) -> jax.Array:
            def step(
                carry: tuple[jax.Array, jax.Array], time: jax.Array
            ) -> tuple[tuple[jax.Array, jax.Array], None]:
                point, slope = carry
                velocity, change = jax.jvp(
                    lambda z: networks.apply(
                        self._field,
                        critic,
                        z,
                        jnp.full_like(z, time),
                        batch.observations,
                        batch.actions,
                    ),
                    (point,),
                    (slope,),
                )
                point = jnp.clip(point + velocity / steps, *self.bounds)
                return (point, slope + change / steps), None

            times = jnp.arange(steps, dtype=start.dtype) / steps
            (_, slope), _ = jax.lax.scan(step, (start, jnp.ones_like(start)), times)
            return jnp.abs(slope[:, 0])

        slopes = jax.vmap(follow)(targets["critic"])
        return losses.aggregate(slopes, self.config.aggregation)

    def return_losses(
        self,
        params: Params,
        targets: Params,
        batch: NStepBatch,
        next_actions: jax.Array,
        weights: jax.Array,
        key: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Computes the losses of both fields towards end points and points on the way.

        Args:
            params: Parameters; the losses train ``critic``.
            targets: Target fields.
            batch: ``B`` steps.
            next_actions: ``f32[B, A]``.
            weights: ``f32[B]``, weight of each step.
            key: PRNG key.

        Returns:
            Both losses ``f32[]``, summed over fields and not yet weighted by λ.
        """
        # As in the published code, one noise and one time for each step serve both
        # losses, and the noise that the next return starts from is also the start of
        # the path to the backed-up return.
        noise_key, time_key = jax.random.split(key)
        shape = (len(next_actions), 1)
        noise = jax.random.normal(noise_key, shape, next_actions.dtype)
        time = jax.random.uniform(time_key, shape, next_actions.dtype)
        next_returns, on_the_way = self.next_returns(
            targets, batch.states_n, next_actions, noise, time
        )
        bootstraps = batch.bootstraps[:, None]
        end = batch.returns_n[:, None] + bootstraps * next_returns
        point = batch.returns_n[:, None] + bootstraps * on_the_way
        # The published code takes the next state's velocity as it is. Carried to
        # `point`, it would have to be multiplied by `bootstraps`, too.
        velocity = losses.aggregate(
            self._velocity(
                targets["critic"], on_the_way, time, batch.states_n, next_actions
            ),
            self.config.return_aggregation,
        )

        def errors(critic: Params) -> tuple[jax.Array, jax.Array]:
            def field(z: jax.Array, at: jax.Array) -> jax.Array:
                return networks.apply(
                    self._field, critic, z, at, batch.observations, batch.actions
                )

            to_end = flow.path_error(field, noise, end, time)
            on_path = jnp.square(field(point, time) - velocity)
            return to_end[:, 0], on_path[:, 0]

        to_end, on_path = jax.vmap(errors)(params["critic"])
        return (
            (weights * to_end.sum(axis=0)).mean(),
            (weights * on_path.sum(axis=0)).mean(),
        )

    def next_returns(
        self,
        targets: Params,
        states: jax.Array,
        actions: jax.Array,
        noise: jax.Array,
        time: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """Draws returns by the target fields, to the end and up to a time.

        Args:
            targets: Target fields.
            states: ``f32[B, S]``.
            actions: ``f32[B, A]``.
            noise: ``f32[B, 1]``, start of both samples.
            time: ``f32[B, 1]``, time that the second sample stops at, after as many
                steps as the first.

        Returns:
            The complete and the partial samples, both ``f32[B, 1]``.
        """
        # Both in one call, because the steps of a flow run one after another. As in the
        # published code, a partial sample takes smaller steps, not fewer.
        twice = [jnp.concatenate([x, x]) for x in (states, actions, noise)]

        def follow(critic: Params) -> jax.Array:
            return flow.integrate(
                lambda z, at: networks.apply(
                    self._field, critic, z, at, twice[0], twice[1]
                ),
                twice[2],
                steps=self.config.flow_steps,
                end=jnp.concatenate([jnp.ones_like(time), time]),
                bounds=self.bounds,
            )

        returns = losses.aggregate(
            jax.vmap(follow)(targets["critic"]), self.config.return_aggregation
        )
        complete, partial = jnp.split(returns, 2)
        return complete, partial

    def one_step_losses(
        self,
        params: Params,
        frozen: Params,
        batch: NStepBatch,
        noise: jax.Array,
        flow_actions: jax.Array,
        key: jax.Array,
    ) -> dict[str, jax.Array]:
        """Computes the losses of the one-step policy.

        Args:
            params: Parameters; the losses train ``one_step``.
            frozen: Parameters of ``critic``, not trained here.
            batch: ``B`` steps.
            noise: ``f32[B, A]``.
            flow_actions: ``f32[B, A]``, the flow's actions of that noise.
            key: PRNG key of the values.

        Returns:
            ``distill_loss`` (weighted by α) and ``improve_loss``.
        """
        # Clipped before the distillation, too, unlike in FQL.
        actions = jnp.clip(
            networks.apply(self._actor, params["one_step"], batch.observations, noise),
            -1,
            1,
        )
        values = self.values(frozen, batch.observations, actions, key)
        distance = jnp.square(actions - flow_actions).mean()
        return {
            "distill_loss": self.config.alpha * distance,
            "improve_loss": -values.mean(),
        }

    @cached_property
    def _field(self) -> MLP:
        return self.network(1, layer_norm=True)

    @cached_property
    def _actor(self) -> MLP:
        # With LayerNorm, unlike the policies of the other baselines.
        return self.network(self.facts.action_dim, layer_norm=True)

    @cached_property
    def _policy(self) -> FlowPolicy:
        return FlowPolicy(self._actor, self.config.flow_steps, clip_steps=True)

    def _velocity(
        self,
        critic: Params,
        z: jax.Array,
        time: jax.Array,
        states: jax.Array,
        actions: jax.Array,
    ) -> jax.Array:
        return jax.vmap(
            lambda field: networks.apply(self._field, field, z, time, states, actions)
        )(critic)
