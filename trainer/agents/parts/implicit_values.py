"""Implicit values, which IQL and IFQL share: V and Q of recorded actions alone.

Dimensions: B batch, S observation, A action, E = 2 critics.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from trainer.agents.parts.baseline import CRITICS
from trainer.data.nstep_windows import NStepBatch
from trainer.nn import losses, networks
from trainer.nn.networks import MLP, Params


@dataclass(frozen=True)
class ImplicitValues:
    """V as an expectile of the target critics, and twin critics backed up from V.

    Parameters are called ``value`` and ``critic``; only the critics have targets.

    Attributes:
        net: Scalar network, of both V and the critics.
        expectile: Expectile τ of the value loss.

    References:
        Kostrikov et al. (2021), Offline Reinforcement Learning with Implicit
        Q-Learning, eq. 5 and 6.
    """

    net: MLP
    expectile: float

    def init(self, key: jax.Array, observation_dim: int, action_dim: int) -> Params:
        """Draws the parameters of V and the critics."""
        value_key, critic_key = jax.random.split(key)
        return {
            "value": networks.init(self.net, value_key, observation_dim),
            "critic": networks.init_ensemble(
                self.net, critic_key, CRITICS, observation_dim, action_dim
            ),
        }

    def value(self, params: Params, states: jax.Array) -> jax.Array:
        """Computes V of states: ``f32[B]``."""
        return networks.apply_scalar(self.net, params["value"], states)

    def critics(
        self, params: Params, states: jax.Array, actions: jax.Array
    ) -> jax.Array:
        """Computes the value of actions by each critic: ``f32[E, B]``."""
        return networks.apply_ensemble(self.net, params["critic"], states, actions)

    def recorded_values(self, params: Params, batch: NStepBatch) -> jax.Array:
        """Computes the mean of both critics at the recorded actions: ``f32[B]``."""
        return self.critics(params, batch.observations, batch.actions).mean(axis=0)

    def value_loss(
        self, params: Params, targets: Params, batch: NStepBatch
    ) -> tuple[jax.Array, jax.Array]:
        """Computes the expectile loss of V on the smaller target critic.

        Args:
            params: Parameters; the loss trains ``value``.
            targets: Target critics.
            batch: ``B`` windows.

        Returns:
            The loss ``f32[]``, and V of the first states ``f32[B]``.
        """
        # Windows that are not `valid` train V, too: only their first rows are read.
        action_values = self.critics(targets, batch.observations, batch.actions)
        values = self.value(params, batch.observations)
        difference = action_values.min(axis=0) - values
        loss = losses.expectile_loss(difference, expectile=self.expectile)
        return loss.mean(), values

    def critic_loss(
        self, params: Params, frozen: Params, batch: NStepBatch
    ) -> tuple[jax.Array, jax.Array]:
        """Computes the loss of both critics, backed up from V at the window's end.

        Args:
            params: Parameters; the loss trains ``critic``.
            frozen: Parameters of V, not trained here.
            batch: ``B`` windows.

        Returns:
            The loss ``f32[]``, summed over critics, and their values ``f32[E, B]``.
        """
        # V is the online one: only the critics have targets.
        next_values = self.value(frozen, batch.states_n)
        target = batch.returns_n + batch.bootstraps * next_values
        critics = self.critics(params, batch.observations, batch.actions)
        # As in the published code, windows that are not valid weigh nothing, but the
        # mean still counts them.
        errors = jnp.square(critics - target[None]) * batch.valid[None]
        return errors.sum(axis=0).mean(), critics
