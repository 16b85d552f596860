"""Policies that are flows, as the baselines use them.

Dimensions: B batch, S observation, D dimension of a sample (A, or h times A for a
chunk), N candidates.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from trainer.nn import flow, networks
from trainer.nn.networks import MLP, Params

# (states f32[B, S], actions f32[B, A]) -> f32[E, B], critics that are not trained here
Critics = Callable[[jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True)
class FlowPolicy:
    """A flow that clones the recorded actions; its parameters are called ``flow``.

    Attributes:
        net: The field, of ``(s, x, t)``.
        steps: Euler steps of a sample.
        clip_steps: Whether samples are kept in [-1, 1] after every step, not only at
            the end.
    """

    net: MLP
    steps: int
    clip_steps: bool = False

    def init(self, key: jax.Array, observation_dim: int) -> Params:
        """Draws the parameters."""
        return networks.init(self.net, key, observation_dim, self.net.outputs, 1)

    def error(
        self, params: Params, states: jax.Array, actions: jax.Array, key: jax.Array
    ) -> jax.Array:
        """Flow matching of recorded actions.

        Args:
            params: Trains ``flow``.
            states: ``f32[B, S]``.
            actions: ``f32[B, D]``.
            key: PRNG key.

        Returns:
            ``f32[B, D]``, squared error of each component.
        """
        return flow.matching_error(self._field(params, states), actions, key)

    def sample(self, params: Params, states: jax.Array, noise: jax.Array) -> jax.Array:
        """Carries noise ``f32[B, D]`` to samples ``f32[B, D]`` in [-1, 1]."""
        samples = flow.integrate(
            self._field(params, states),
            noise,
            steps=self.steps,
            bounds=(-1.0, 1.0) if self.clip_steps else None,
        )
        return jnp.clip(samples, -1, 1)

    def candidates(
        self, params: Params, states: jax.Array, key: jax.Array, *, count: int
    ) -> tuple[jax.Array, jax.Array]:
        """Draws several samples for each state, all in one call of the sampler.

        Args:
            params: Read for ``flow``.
            states: ``f32[B, S]``.
            key: PRNG key.
            count: N.

        Returns:
            States ``f32[B * N, S]``, each repeated N times in a row, and a sample for
            each ``f32[B * N, D]``.
        """
        repeated = jnp.repeat(states, count, axis=0)
        noise = jax.random.normal(key, (len(repeated), self.net.outputs), states.dtype)
        return repeated, self.sample(params, repeated, noise)

    def _field(self, params: Params, states: jax.Array) -> flow.Field:
        return lambda x, time: networks.apply(self.net, params["flow"], states, x, time)


def pick_best(candidates: jax.Array, scores: jax.Array, *, count: int) -> jax.Array:
    """The best of each state's candidates.

    Args:
        candidates: ``f32[B * N, D]``, those of one state in a row.
        scores: ``f32[B * N]``.
        count: N.

    Returns:
        ``f32[B, D]``.
    """
    best = scores.reshape(-1, count).argmax(axis=1)
    grouped = candidates.reshape(len(best), count, -1)
    return jnp.take_along_axis(grouped, best[:, None, None], axis=1)[:, 0]


@dataclass(frozen=True)
class DistilledPolicy:
    """A one-step policy between a flow that clones behaviour and a critic.

    Its parameters are called ``one_step``, beside those of the flow.

    Attributes:
        flow: That it is distilled from.
        net: The policy, of ``(s, z)``.
        alpha: Weight of the distillation.
        distance: Squared distance to the flow's action, by its ``"mean"`` over the
            action's components, as the published code takes it and α is tuned for, or
            by their ``"sum"``, as the paper writes it.
        normalize: Whether the critic's term is divided by its mean size.

    References:
        Park, Li & Levine (2025), Flow Q-Learning, section 4.
    """

    flow: FlowPolicy
    net: MLP
    alpha: float
    distance: Literal["mean", "sum"] = "mean"
    normalize: bool = False

    def init(self, key: jax.Array, observation_dim: int) -> Params:
        """Draws the parameters of both policies."""
        flow_key, one_step_key = jax.random.split(key)
        return {
            "flow": self.flow.init(flow_key, observation_dim),
            "one_step": networks.init(
                self.net, one_step_key, observation_dim, self.net.outputs
            ),
        }

    def propose(self, params: Params, states: jax.Array, noise: jax.Array) -> jax.Array:
        """Actions before they are clipped: ``f32[B, A]``, and as many noises."""
        return networks.apply(self.net, params["one_step"], states, noise)

    def act(self, params: Params, states: jax.Array, noise: jax.Array) -> jax.Array:
        """Actions ``f32[B, A]`` in [-1, 1]."""
        return jnp.clip(self.propose(params, states, noise), -1, 1)

    def losses(
        self,
        params: Params,
        frozen: Params,
        states: jax.Array,
        actions: jax.Array,
        critics: Critics,
        key: jax.Array,
    ) -> dict[str, jax.Array]:
        """Losses of both policies.

        The critic sees clipped actions, so a component beyond the bounds gets no
        gradient from it; the distance to the flow's action is taken before clipping.

        Args:
            params: Trains ``flow`` and ``one_step``.
            frozen: Read for the flow's actions.
            states: ``f32[B, S]``.
            actions: ``f32[B, A]``, as recorded.
            critics: Values of actions; their mean is raised, however targets are
                aggregated.
            key: PRNG key.

        Returns:
            ``flow_loss``, ``distill_loss`` (weighted) and ``improve_loss``.
        """
        match_key, noise_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, actions.shape, actions.dtype)
        taught = self.flow.sample(frozen, states, noise)
        proposed = self.propose(params, states, noise)
        values = critics(states, jnp.clip(proposed, -1, 1)).mean(axis=0)
        return {
            "flow_loss": self.flow.error(params, states, actions, match_key).mean(),
            "distill_loss": self.alpha
            * squared_distance(proposed, taught, how=self.distance),
            "improve_loss": improvement(values, normalize=self.normalize),
        }


def squared_distance(
    actions: jax.Array, others: jax.Array, *, how: Literal["mean", "sum"]
) -> jax.Array:
    """Squared distance of actions ``f32[B, A]``, averaged over the batch: ``f32[]``."""
    squares = jnp.square(actions - others)
    return squares.mean() if how == "mean" else squares.sum(axis=-1).mean()


def improvement(values: jax.Array, *, normalize: bool) -> jax.Array:
    """Loss that raises values ``f32[B]``: ``f32[]``."""
    loss = -values.mean()
    if normalize:
        loss = loss / jax.lax.stop_gradient(jnp.abs(values).mean())
    return loss
