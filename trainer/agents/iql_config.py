"""Hyperparameters of IQL; what they are for stands in ``iql.py``."""

from dataclasses import dataclass
from typing import Literal

from trainer.agents.parts.baseline_config import BaselineConfig
from trainer.agents.settings import NotNegative, Positive, Share


@dataclass(frozen=True)
class IQLConfig(BaselineConfig):
    """Hyperparameters, besides those of ``BaselineConfig``.

    Attributes:
        name: Of the agent.
        alpha: Of the policy's weights ``exp(alpha * advantage)``; by data set.
        expectile: τ of the value loss.
        max_weight: Largest weight of a sample in the policy's loss.
        advantage_critics: ``"online"`` as the published code, or ``"target"`` as the
            original implementation of IQL.
    """

    name: Literal["iql"] = "iql"
    alpha: NotNegative = 10.0
    expectile: Share = 0.9
    max_weight: Positive = 100.0
    advantage_critics: Literal["online", "target"] = "online"
