"""Hyperparameters of floq; what they are for stands in ``floq.py``."""

from dataclasses import dataclass
from typing import Annotated, Literal

from trainer.agents.parts.baseline_config import BaselineConfig
from trainer.agents.settings import (
    Count,
    NotNegative,
    Positive,
    Range,
)
from trainer.nn.choices import Aggregation


@dataclass(frozen=True)
class FloqConfig(BaselineConfig):
    """Hyperparameters, besides those of ``BaselineConfig``.

    Attributes:
        name: Of the agent.
        alpha: Weight of the policy's distillation; by data set.
        aggregation: Of the target fields. The policy always raises the critics' mean.
        flow_steps: Euler steps of a sample of actions.
        normalize_q: Whether the policy's Q term is divided by its mean size.
        critic_depth: Hidden layers of the field, as wide as all others; by data set.
        critic_steps: J, Euler steps of a value.
        noises: R, noises that a value is averaged over.
        noise_share: κ, of the interval noise is drawn from.
        noise_interval: ``"scaled"`` as the code, or ``"top"`` as the paper.
        bins: Edges of the bins that z is encoded by; one more than there are bins.
        bin_deviation: Of the encoding, in widths of a bin.
        reward_margin: Widens the bins' range at both ends, in units of reward.
        time_features: ``"cosine"``, cos(t); or ``"fourier"``, cos(π j t) for j up to
            64.
        time_zero: Whether the field is trained at t = 0 only.
    """

    name: Literal["floq"] = "floq"
    alpha: NotNegative = 10.0
    aggregation: Aggregation = "mean"
    flow_steps: Count = 10
    normalize_q: bool = False
    critic_depth: Count = 4
    critic_steps: Count = 8
    noises: Count = 8
    noise_share: NotNegative = 0.1
    noise_interval: Literal["scaled", "top"] = "scaled"
    bins: Annotated[int, Range(least=2)] = 51
    bin_deviation: Positive = 16.0
    reward_margin: Positive = 0.01
    time_features: Literal["cosine", "fourier"] = "cosine"
    time_zero: bool = False
