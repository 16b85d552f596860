"""What the baselines share: general settings, first state, targets, figures.

Dimensions: B batch, E critics.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import optax

from trainer.agents.base import AgentState, DataFacts, Metrics
from trainer.agents.parts.baseline_config import BaselineConfig
from trainer.data.nstep_windows import NStepBatch
from trainer.nn import optimizers
from trainer.nn.networks import MLP, Params

CRITICS = 2
LARGEST_ACTION = 1 - 1e-5


@dataclass(frozen=True)
class BaselineAgent:
    """What all six agents do alike."""

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
        """A network of the configured size, or depth: GELU, then LayerNorm if any."""
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
        """One Adam, without clipping: networks share no loss, so it is one for each."""
        return optimizers.adam(self.config.learning_rate, clip_norm=None)

    def first_state(self, params: Params, *, target: str) -> AgentState:
        """The state before the first update; the target starts as an exact copy.

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

    def move_targets(self, targets: Params, *, before: Params, after: Params) -> Params:
        """Moves targets towards the critics from *before* the step: they lag it by one.

        So does the code of all six methods.
        """
        return optimizers.soft_update(
            targets,
            {name: before[name] for name in targets},
            rate=self.config.target_rate,
        )


def clip_actions(batch: NStepBatch) -> NStepBatch:
    """Keeps recorded actions off the bounds, as all the published code does."""
    return batch._replace(
        actions=jnp.clip(batch.actions, -LARGEST_ACTION, LARGEST_ACTION),
        chunks=jnp.clip(batch.chunks, -LARGEST_ACTION, LARGEST_ACTION),
    )


def figures(
    losses: dict[str, jax.Array],
    critics: jax.Array,
    *,
    return_max: float,
    **others: jax.Array,
) -> Metrics:
    """What every baseline logs.

    Args:
        losses: Each ``f32[]``, as they enter the total.
        critics: ``f32[E, B]`` or ``f32[B]``, values of the batch's actions.
        return_max: Best return in the data.
        **others: Further figures to average, ``f32[]`` each.

    Returns:
        The figures; ``over_estimation`` is the share of values above the best return.
    """
    mean: dict[str, Any] = {
        "loss": sum(losses.values()),
        **losses,
        "critic": critics.mean(),
        "over_estimation": (critics > return_max).mean(),
        **others,
    }
    return Metrics(mean=mean, max={"critic_max": critics.max()}, total={})
