"""Hyperparameters of Value Flows, see ``trainer.agents.value_flows``."""

from dataclasses import dataclass
from typing import Literal

from trainer.agents.parts.baseline_config import BaselineConfig
from trainer.agents.settings import Count, NotNegative, Positive
from trainer.nn.choices import Aggregation


@dataclass(frozen=True)
class ValueFlowsConfig(BaselineConfig):
    """Hyperparameters of Value Flows, besides those of ``BaselineConfig``.

    Attributes:
        name: Name of the agent.
        end_weight: Weight λ_B of the loss towards end points; differs by data set.
        path_weight: Weight λ_D of the loss towards points on the way.
        confidence: Temperature c of the weights ``sigmoid(-c / spread) + 1/2``;
            differs by data set.
        return_aggregation: Reduction of the two fields' returns and velocities in
            targets.
        aggregation: Reduction of the two fields' values and spreads.
        candidates: Actions that are drawn at a step; the best by value is executed.
        flow_steps: Euler steps of a sample, of actions as well as of returns.
        distill: Whether the one-step policy is built and trained; it never acts.
        alpha: Weight of the one-step policy's distillation.
    """

    dropped_options = {  # noqa: RUF012
        "value_noises": 1,
        "transported_velocity": False,
    }

    name: Literal["value-flows"] = "value-flows"
    end_weight: NotNegative = 1.0
    path_weight: NotNegative = 1.0
    # Not 0: a spread of 0 would then give 0 / 0.
    confidence: Positive = 0.3
    return_aggregation: Aggregation = "mean"
    aggregation: Aggregation = "mean"
    candidates: Count = 16
    flow_steps: Count = 10
    distill: bool = True
    alpha: NotNegative = 10.0
