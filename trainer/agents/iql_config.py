"""Hyperparameters of IQL, see ``trainer.agents.iql``."""

from dataclasses import dataclass
from typing import Literal

from trainer.agents.parts.baseline_config import BaselineConfig
from trainer.agents.settings import NotNegative, Positive, Share


@dataclass(frozen=True)
class IQLConfig(BaselineConfig):
    """Hyperparameters of IQL, besides those of ``BaselineConfig``.

    Attributes:
        name: Name of the agent.
        alpha: Inverse temperature of the policy's weights ``exp(alpha * advantage)``;
            differs by data set.
        expectile: Expectile τ of the value loss.
        max_weight: Largest weight of a sample in the policy's loss.
    """

    dropped_options = {"advantage_critics": "online"}  # noqa: RUF012

    name: Literal["iql"] = "iql"
    alpha: NotNegative = 10.0
    expectile: Share = 0.9
    max_weight: Positive = 100.0
