"""Values without asking for unseen actions: what IQL and IFQL learn alike.

Dimensions: B batch, S observation, A action, E = 2 critics.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from trainer.agents.parts.baseline import CRITICS, clip_actions
from trainer.data.nstep_windows import NStepBatch
from trainer.nn import losses, networks
from trainer.nn.networks import MLP, Params


@dataclass(frozen=True)
class ImplicitValues:
    """V as an expectile of the target critics, and twin critics backed up from V.

    Their parameters are called ``value`` and ``critic``; only the critics have
    targets.

    Attributes:
        net: Of a scalar.
        expectile: τ of the value loss.

    References:
        Kostrikov et al. (2021), Offline Reinforcement Learning with Implicit
        Q-Learning, eq. 5 and 6.
    """

    net: MLP
    expectile: float

    def init(self, key: jax.Array, observation_dim: int, action_dim: int) -> Params:
        """Draws the parameters."""
        value_key, critic_key = jax.random.split(key)
        return {
            "value": networks.init(self.net, value_key, observation_dim),
            "critic": networks.init_ensemble(
                self.net, critic_key, CRITICS, observation_dim, action_dim
            ),
        }

    def value(self, params: Params, states: jax.Array) -> jax.Array:
        """State values: ``f32[B]``."""
        return networks.apply_scalar(self.net, params["value"], states)

    def critics(
        self, params: Params, states: jax.Array, actions: jax.Array
    ) -> jax.Array:
        """Action values of each critic: ``f32[E, B]``."""
        return networks.apply_ensemble(self.net, params["critic"], states, actions)

    def recorded(self, params: Params, batch: NStepBatch) -> jax.Array:
        """Values of the recorded actions, the mean of both critics: ``f32[B]``."""
        batch = clip_actions(batch)
        return self.critics(params, batch.observations, batch.actions).mean(axis=0)

    def value_loss(
        self, params: Params, targets: Params, batch: NStepBatch
    ) -> tuple[jax.Array, jax.Array]:
        """Expectile regression of V on the smaller target critic.

        All rows train it: it needs no window.

        Args:
            params: Trains ``value``.
            targets: Target critics.
            batch: ``B`` windows.

        Returns:
            ``f32[]``, and V of the first states ``f32[B]``.
        """
        best = self.critics(targets, batch.observations, batch.actions).min(axis=0)
        values = self.value(params, batch.observations)
        loss = losses.expectile_loss(best - values, expectile=self.expectile)
        return loss.mean(), values

    def critic_loss(
        self, params: Params, frozen: Params, batch: NStepBatch
    ) -> tuple[jax.Array, jax.Array]:
        """Backup of both critics from V at the window's end.

        Args:
            params: Trains ``critic``.
            frozen: Read for V, the online one: it has no target.
            batch: ``B`` windows; those not ``valid`` weigh nothing but are counted.

        Returns:
            ``f32[]``, summed over critics, and their values ``f32[E, B]``.
        """
        following = self.value(frozen, batch.states_n)
        target = batch.returns_n + batch.bootstraps * following
        critics = self.critics(params, batch.observations, batch.actions)
        errors = jnp.square(critics - target[None]) * batch.valid[None]
        return errors.sum(axis=0).mean(), critics
