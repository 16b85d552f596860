"""The baselines' flow policies: a cloned flow, and a policy distilled from it.

Dimensions: B batch, S observation, D dimension of a sample (A, or h times A for a
chunk), N candidates.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from trainer.nn import flow, networks
from trainer.nn.networks import MLP, Params

# (states f32[B, S], actions f32[B, A]) -> f32[E, B]; critics that are not trained here.
Critics = Callable[[jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True)
class FlowPolicy:
    """A flow that clones the recorded actions; its parameters are called ``flow``.

    Attributes:
        net: Network of the velocity field, of ``(s, x, t)``.
        steps: Euler steps of a sample.
        clip_steps: Whether samples are clipped to [-1, 1] after every step and not only
            at the end; the code of Value Flows does so.
    """

    net: MLP
    steps: int
    clip_steps: bool = False

    def init(self, key: jax.Array, observation_dim: int) -> Params:
        """Draws the parameters of the field."""
        return networks.init(self.net, key, observation_dim, self.net.outputs, 1)

    def error(
        self, params: Params, states: jax.Array, actions: jax.Array, key: jax.Array
    ) -> jax.Array:
        """Computes the flow-matching error of recorded actions.

        Args:
            params: Parameters; the error trains ``flow``.
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
        """Draws several samples for each state.

        Args:
            params: Parameters of the flow, ``flow``.
            states: ``f32[B, S]``.
            key: PRNG key.
            count: Number N of samples for each state.

        Returns:
            States ``f32[B * N, S]``, each repeated N times in a row, and a sample for
            each of these rows ``f32[B * N, D]``.
        """
        # One call of the sampler for all: its steps run one after another, whatever
        # the number of rows.
        repeated = jnp.repeat(states, count, axis=0)
        noise = jax.random.normal(key, (len(repeated), self.net.outputs), states.dtype)
        return repeated, self.sample(params, repeated, noise)

    def _field(self, params: Params, states: jax.Array) -> flow.Field:
        return lambda x, time: networks.apply(self.net, params["flow"], states, x, time)


def pick_best(candidates: jax.Array, scores: jax.Array, *, count: int) -> jax.Array:
    """Picks the candidate with the highest score for each state.

    Args:
        candidates: ``f32[B * N, D]``, those of one state in a row.
        scores: ``f32[B * N]``.
        count: Number N of candidates for each state.

    Returns:
        ``f32[B, D]``.
    """
    best = scores.reshape(-1, count).argmax(axis=1)
    grouped = candidates.reshape(len(best), count, -1)
    return jnp.take_along_axis(grouped, best[:, None, None], axis=1)[:, 0]


@dataclass(frozen=True)
class DistilledPolicy:
    """A one-step policy that is distilled from a cloned flow and raises a critic.

    Parameters are called ``one_step``, beside ``flow`` of the cloned flow.

    Attributes:
        flow: Flow that the policy is distilled from.
        net: Network of the policy, of ``(s, z)``.
        alpha: Weight α of the distillation.

    References:
        Park, Li & Levine (2025), Flow Q-Learning, section 4.
    """

    flow: FlowPolicy
    net: MLP
    alpha: float

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
        """Maps noise ``f32[B, A]`` to actions ``f32[B, A]`` that are not clipped."""
        return networks.apply(self.net, params["one_step"], states, noise)

    def act(self, params: Params, states: jax.Array, noise: jax.Array) -> jax.Array:
        """Maps noise ``f32[B, A]`` to actions ``f32[B, A]`` in [-1, 1]."""
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
        """Computes the losses of both policies.

        Args:
            params: Parameters; the losses train ``flow`` and ``one_step``.
            frozen: Parameters of the flow that actions are sampled with.
            states: ``f32[B, S]``.
            actions: ``f32[B, A]``, as recorded.
            critics: Critics whose mean is raised.
            key: PRNG key.

        Returns:
            ``flow_loss``, ``distill_loss`` (weighted by α) and ``improve_loss``.
        """
        match_key, noise_key = jax.random.split(key)
        # Both policies get the same noise: distillation is a regression of the flow's
        # map, noise by noise, not of its distribution.
        noise = jax.random.normal(noise_key, actions.shape, actions.dtype)
        flow_actions = self.flow.sample(frozen, states, noise)
        proposed = self.propose(params, states, noise)
        # The critics see clipped actions, so a component beyond the bounds has no
        # gradient from them, while the distance is taken before clipping. Their mean is
        # raised even where targets take the minimum. All as in the published code.
        values = critics(states, jnp.clip(proposed, -1, 1)).mean(axis=0)
        # The paper writes the squared norm of the difference. The code takes the mean
        # over components, and published values of α belong to the mean.
        distance = jnp.square(proposed - flow_actions).mean()
        return {
            "flow_loss": self.flow.error(params, states, actions, match_key).mean(),
            "distill_loss": self.alpha * distance,
            "improve_loss": -values.mean(),
        }
