"""Hyperparameters of Value Flows; what they are for stands in ``value_flows.py``."""

from dataclasses import dataclass
from typing import Literal

from trainer.agents.parts.baseline_config import BaselineConfig
from trainer.agents.settings import Count, NotNegative, Positive
from trainer.nn.choices import Aggregation


@dataclass(frozen=True)
class ValueFlowsConfig(BaselineConfig):
    """Hyperparameters, besides those of ``BaselineConfig``.

    Attributes:
        name: Of the agent.
        end_weight: λ_B, of the loss towards end points; by data set.
        path_weight: λ_D, of the loss towards points on the way.
        confidence: c, of the weights ``sigmoid(-c / spread) + 1/2``; by data set. Not
            0, at which a spread of 0 would give 0 / 0.
        return_aggregation: Of the fields' returns and velocities in targets.
        aggregation: Of the fields' values and spreads.
        candidates: Actions drawn at a step, of which the best by value acts.
        flow_steps: Euler steps of a sample, of actions as of returns.
        value_noises: Noises that a value is averaged over.
        transported_velocity: Whether the on-the-way target is discounted and masked.
        distill: Whether the one-step policy is made and trained.
        alpha: Weight of its distillation.
    """

    name: Literal["value-flows"] = "value-flows"
    end_weight: NotNegative = 1.0
    path_weight: NotNegative = 1.0
    confidence: Positive = 0.3
    return_aggregation: Aggregation = "mean"
    aggregation: Aggregation = "mean"
    candidates: Count = 16
    flow_steps: Count = 10
    value_noises: Count = 1
    transported_velocity: bool = False
    distill: bool = True
    alpha: NotNegative = 10.0
