"""Hyperparameters that all baselines share."""

from dataclasses import dataclass

from trainer.agents.settings import (
    AgentSettings,
    Count,
    Decay,
    Positive,
    Share,
)
from trainer.errors import ConfigError
from trainer.nn.choices import Precision, StateScaling


@dataclass(frozen=True)
class BaselineConfig(AgentSettings):
    """Settings of every baseline; the defaults are those of their published code.

    Attributes:
        discount: Discount of rewards; the store must hold its return sums.
        width: Width of every hidden layer.
        depth: Number of hidden layers.
        learning_rate: Learning rate of Adam, for all networks; gradients are not
            clipped.
        target_rate: Rate of the soft update of the target critics.
        ema_decay: Decay of the moving average of parameters that acts, see
            ``step.update``; 0 acts with the trained parameters.
        state_scaling: Scaling of states for networks, see
            ``agents.base.observation_scale``; published code has none.
        precision: Precision of the hidden layers' products, see ``nn.networks.MLP``.
        rematerialise: Whether gradients evaluate networks again, one evaluation at a
            time, instead of keeping the outputs of layers; saves memory.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    discount: Share = 0.99
    width: Count = 512
    depth: Count = 4
    learning_rate: Positive = 3e-4
    target_rate: Share = 0.005
    ema_decay: Decay = 0.0
    state_scaling: StateScaling = "none"
    precision: Precision = "float32"
    rematerialise: bool = False

    def check_name(self, n_step_name: str, *, n_step: int, name: str) -> None:
        """Refuses a name that does not say whether returns are of several steps.

        Raises:
            ConfigError: If name and number of steps disagree.
        """
        # Methods are told apart by name in folders, tables and reports, so that a name
        # must not stand for two of them.
        if (name == n_step_name) != (n_step > 1):
            raise ConfigError(
                f"agent.n_step: expected {'more than 1' if n_step == 1 else '1'} for "
                f"{name}, got {n_step}; the agent of several steps is {n_step_name}"
            )
