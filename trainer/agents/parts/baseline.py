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
from trainer.data.nstep_windows import NStepBatch
from trainer.errors import ConfigError
from trainer.nn import optimizers
from trainer.nn.networks import MLP, Params, Precision

CRITICS = 2
LARGEST_ACTION = 1 - 1e-5


@dataclass(frozen=True)
class BaselineConfig:
    """Settings of every baseline; the defaults are those of all their code.

    Attributes:
        discount: Of rewards; the store must hold its return sums.
        width: Of every hidden layer.
        depth: Hidden layers.
        learning_rate: Of Adam, for all networks; gradients are not clipped.
        target_rate: Of the soft update of the target critics.
        precision: Of the hidden layers' products, see ``nn.networks.MLP``.
        rematerialise: Whether gradients compute what networks and flow samplers did
            anew, evaluation by evaluation, where keeping it takes too much memory.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    discount: float = 0.99
    width: int = 512
    depth: int = 4
    learning_rate: float = 3e-4
    target_rate: float = 0.005
    precision: Precision = "float32"
    rematerialise: bool = False

    def __post_init__(self) -> None:
        self.check_counts("width", "depth")
        self.check_shares("discount", "target_rate")
        if self.learning_rate <= 0:
            raise ConfigError(
                f"agent.learning_rate: expected above 0, got {self.learning_rate}"
            )

    def check_counts(self, *names: str) -> None:
        """Refuses settings below 1, by name."""
        for name in names:
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"agent.{name}: expected at least 1, got {getattr(self, name)}"
                )

    def check_shares(self, *names: str) -> None:
        """Refuses settings outside of (0, 1), by name."""
        for name in names:
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(
                    f"agent.{name}: expected a value in (0, 1), got "
                    f"{getattr(self, name)}"
                )

    def check_not_negative(self, *names: str) -> None:
        """Refuses settings below 0, by name."""
        for name in names:
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"agent.{name}: expected at least 0, got {getattr(self, name)}"
                )

    def check_name(self, n_step_name: str, *, n_step: int, name: str) -> None:
        """Refuses a name that does not say whether returns are of several steps."""
        if (name == n_step_name) != (n_step > 1):
            raise ConfigError(
                f"agent.n_step: expected {'more than 1' if n_step == 1 else '1'} for "
                f"{name}, got {n_step}; of several steps it is {n_step_name}"
            )

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
            self.width,
            self.depth if depth is None else depth,
            activation="gelu",
            layer_norm=layer_norm,
            output_scale=output_scale,
            precision=self.precision,
            rematerialise=self.rematerialise,
        )


@dataclass(frozen=True)
class BaselineAgent:
    """What all six agents do alike."""

    config: BaselineConfig
    facts: DataFacts

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
