"""The base of all baselines: networks, optimiser, first state, targets and metrics.

Dimensions: B batch, E critics.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import optax

from trainer.agents.base import AgentState, DataFacts, Metrics, scale_states
from trainer.agents.parts.baseline_config import BaselineConfig
from trainer.data.nstep_windows import NStepBatch
from trainer.nn import optimizers
from trainer.nn.networks import MLP, Params

CRITICS = 2
# All published code clips recorded actions to these bounds. It goes back to densities
# of squashed Gaussians, which are infinite at 1; flows do not need it.
LARGEST_ACTION = 1 - 1e-5


@dataclass(frozen=True)
class BaselineAgent:
    """The parts that are the same in all six agents."""

    config: BaselineConfig
    facts: DataFacts

    def network(
        self,
        outputs: int,
        *,
        layer_norm: bool,
        output_scale: float = 1.0,
        depth: int | None = None,
    ) -> MLP:
        """Builds a network of the configured width.

        Args:
            outputs: Width of the output.
            layer_norm: Whether LayerNorm follows each activation.
            output_scale: Scale of the variance of the output's kernel.
            depth: Hidden layers; the configured number by default.

        Returns:
            The network.
        """
        # GELU as in the published code; VAST has tanh.
        return MLP(
            outputs,
            self.config.width,
            self.config.depth if depth is None else depth,
            activation="gelu",
            layer_norm=layer_norm,
            output_scale=output_scale,
            precision=self.config.precision,
            rematerialise=self.config.rematerialise,
        )

    @cached_property
    def optimizer(self) -> optax.GradientTransformation:
        """Adam for all networks, without clipping."""
        # Every loss trains one network only, and Adam works on each element alone, so
        # one optimiser for all networks equals one for each.
        return optimizers.adam(self.config.learning_rate, clip_norm=None)

    def first_state(self, params: Params, *, target: str) -> AgentState:
        """Builds the state before the first update; the target is an exact copy.

        Args:
            params: Fresh parameters.
            target: Name of the network that has a target.

        Returns:
            The state.
        """
        return AgentState(
            params=params,
            targets={target: params[target]},
            opt_state=self.optimizer.init(params),
            step=jnp.zeros((), jnp.int32),
        )

    def prepare(self, batch: NStepBatch) -> NStepBatch:
        """Scales states, and clips recorded actions to slightly less than [-1, 1]."""
        return batch._replace(
            observations=self.scale_states(batch.observations),
            states_n=self.scale_states(batch.states_n),
            # As in the published code.
            actions=jnp.clip(batch.actions, -LARGEST_ACTION, LARGEST_ACTION),
            chunks=jnp.clip(batch.chunks, -LARGEST_ACTION, LARGEST_ACTION),
        )

    def scale_states(self, states: jax.Array) -> jax.Array:
        """Scales states ``f32[..., S]`` in the data's units for the networks."""
        return scale_states(states, self.facts, self.config.state_scaling)

    def move_targets(self, targets: Params, *, before: Params, after: Params) -> Params:
        """Moves the targets towards the critics from *before* the step."""
        # The published code of all six methods does so: targets lag by one step more
        # than in the usual Polyak update.
        return optimizers.soft_update(
            targets,
            {name: before[name] for name in targets},
            rate=self.config.target_rate,
        )


def collect_metrics(
    losses: dict[str, jax.Array],
    critics: jax.Array,
    *,
    return_max: float,
    **others: jax.Array,
) -> Metrics:
    """Collects the metrics that every baseline logs.

    Args:
        losses: Losses ``f32[]`` by name, as they enter the total.
        critics: ``f32[E, B]`` or ``f32[B]``, values of the batch's actions.
        return_max: Largest return in the data.
        **others: Further metrics ``f32[]`` to average.

    Returns:
        The metrics, among them ``loss``, the sum of the losses, and
        ``over_estimation``, the share of values above the largest return.
    """
    mean: dict[str, Any] = {
        "loss": sum(losses.values()),
        **losses,
        "critic": critics.mean(),
        "over_estimation": (critics > return_max).mean(),
        **others,
    }
    return Metrics(mean=mean, max={"critic_max": critics.max()}, total={})
