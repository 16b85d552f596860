"""Hyperparameters of floq, see ``trainer.agents.floq``."""

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
    """Hyperparameters of floq, besides those of ``BaselineConfig``.

    Attributes:
        name: Name of the agent.
        alpha: Weight of the policy's distillation; differs by data set.
        aggregation: Reduction of the two target fields; the policy raises the mean of
            the critics in either case.
        flow_steps: Euler steps of a sample of actions.
        critic_depth: Hidden layers of the fields; differs by data set.
        critic_steps: Euler steps J of a value.
        noises: Noises R that a value is averaged over.
        noise_share: Factor κ between the range of values and the interval of noise.
        bins: Edges of the bins that z is encoded by, one more than there are bins.
        bin_deviation: Standard deviation of the encoding, in widths of a bin.
        reward_margin: Margin of the bins' range at both ends, in units of reward.
    """

    dropped_options = {  # noqa: RUF012
        "noise_interval": "scaled",
        "time_features": "cosine",
        "time_zero": False,
        "normalize_q": False,
    }

    name: Literal["floq"] = "floq"
    alpha: NotNegative = 10.0
    aggregation: Aggregation = "mean"
    flow_steps: Count = 10
    critic_depth: Count = 4
    critic_steps: Count = 8
    noises: Count = 8
    noise_share: NotNegative = 0.1
    bins: Annotated[int, Range(least=2)] = 51
    bin_deviation: Positive = 16.0
    reward_margin: Positive = 0.01
