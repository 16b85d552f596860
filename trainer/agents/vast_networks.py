"""The five networks of VAST: their shapes, their first parameters and their calls.

States are scaled, see ``VASTConfig.state_scaling``. A call reads the parameters of its
own network only.

Dimensions: B batch, S observation, A action, E = 2 critics, K maximum horizon.
"""

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp

from trainer.agents.base import DataFacts
from trainer.agents.vast_config import VASTConfig
from trainer.nn import flow, losses, networks
from trainer.nn.networks import MLP, Params

# Twin critics with targets and a single V without one are deduced: they give the
# paper's count of about 6.9 million parameters.
CRITICS = 2


@dataclass(frozen=True)
class VASTNetworks:
    """The networks, as functions of a configuration and the facts of the data."""

    config: VASTConfig
    facts: DataFacts

    def init(self, key: jax.Array) -> Params:
        """Draws the parameters of all networks, by name."""
        S, A = self.facts.observation_dim, self.facts.action_dim
        keys = jax.random.split(key, 5)
        return {
            "value": networks.init(self._scalar, keys[0], S),
            "critic": networks.init_ensemble(self._scalar, keys[1], CRITICS, S, A),
            "segment": networks.init(self._scalar, keys[2], S, S, 1),
            "stitch": networks.init(self._stitch, keys[3], S, 1 + S, 1),
            "exec": networks.init(self._exec, keys[4], S, S, A, 1),
        }

    def value(self, params: Params, states: jax.Array) -> jax.Array:
        """Computes V: ``f32[..., S]`` to ``f32[...]``."""
        return networks.apply_scalar(self._scalar, params["value"], states)

    def critics(
        self, params: Params, states: jax.Array, actions: jax.Array
    ) -> jax.Array:
        """Computes Q of ``f32[..., S]`` and ``f32[..., A]``: ``f32[E, ...]``."""
        return networks.apply_ensemble(self._scalar, params["critic"], states, actions)

    def critic(
        self, params: Params, states: jax.Array, actions: jax.Array
    ) -> jax.Array:
        """Computes Q, aggregated over the twins: ``f32[...]``."""
        twins = self.critics(params, states, actions)
        return losses.aggregate(twins, self.config.aggregation)

    def segment(
        self, params: Params, states: jax.Array, ends: jax.Array, horizons: jax.Array
    ) -> jax.Array:
        """Computes G of ways of so many steps from states to ends: ``f32[...]``."""
        share = horizons[..., None] / self.config.max_horizon
        returns = networks.apply_scalar(
            self._scalar, params["segment"], states, ends, share
        )
        # The second part of a window of one step has no steps, and G of no steps is 0
        # by definition.
        return jnp.where(horizons > 0, returns, 0.0)

    def stitch_field(self, params: Params, states: jax.Array) -> flow.Field:
        """Returns the velocities of the stitching policy at states ``f32[..., S]``."""
        return lambda x, time: networks.apply(
            self._stitch, params["stitch"], states, x, time
        )

    def exec_field(
        self, params: Params, states: jax.Array, goals: jax.Array
    ) -> flow.Field:
        """Returns the velocities of the execution policy from states to goals."""
        return lambda x, time: networks.apply(
            self._exec, params["exec"], states, goals, x, time
        )

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
        # tanh and LayerNorm, the defaults of MLP, as the paper says; the baselines'
        # code has GELU.
        c = self.config
        return MLP(
            outputs,
            c.width,
            c.depth,
            precision=c.precision,
            rematerialise=c.rematerialise,
        )
