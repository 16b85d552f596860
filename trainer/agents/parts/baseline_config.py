"""Hyperparameters that every baseline has."""

from dataclasses import dataclass

from trainer.agents.settings import (
    AgentSettings,
    Count,
    Positive,
    Share,
)
from trainer.errors import ConfigError
from trainer.nn.choices import Precision


@dataclass(frozen=True)
class BaselineConfig(AgentSettings):
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

    discount: Share = 0.99
    width: Count = 512
    depth: Count = 4
    learning_rate: Positive = 3e-4
    target_rate: Share = 0.005
    precision: Precision = "float32"
    rematerialise: bool = False

    def check_name(self, n_step_name: str, *, n_step: int, name: str) -> None:
        """Refuses a name that does not say whether returns are of several steps."""
        if (name == n_step_name) != (n_step > 1):
            raise ConfigError(
                f"agent.n_step: expected {'more than 1' if n_step == 1 else '1'} for "
                f"{name}, got {n_step}; of several steps it is {n_step_name}"
            )
