"""Hyperparameters of FQL; what they are for stands in ``fql.py``."""

from dataclasses import dataclass
from typing import Literal

from trainer.agents.parts.baseline_config import BaselineConfig
from trainer.agents.settings import Count, NotNegative
from trainer.data.nstep_windows import WindowRule
from trainer.nn.choices import Aggregation


@dataclass(frozen=True)
class FQLConfig(BaselineConfig):
    """Hyperparameters, besides those of ``BaselineConfig``.

    Attributes:
        name: ``"fql"``, or ``"fql-n"`` with returns of several steps.
        n_step: Rewards summed before the critics are backed up.
        window_rule: What happens at an episode's end and after success, see
            ``NStepSampler``.
        alpha: Weight of the distillation; by data set.
        aggregation: Of the target critics. The policy always raises their mean.
        flow_steps: Euler steps of a flow sample.
        distance: To the flow's action: ``"mean"`` or ``"sum"`` over components.
        target_actions: Whether the target critics judge one ``"shared"`` action or
            ``"separate"`` ones.
        normalize_q: Whether the policy's Q term is divided by its mean size.
    """

    name: Literal["fql", "fql-n"] = "fql"
    n_step: Count = 1
    window_rule: WindowRule = "published"
    alpha: NotNegative = 10.0
    aggregation: Aggregation = "mean"
    flow_steps: Count = 10
    distance: Literal["mean", "sum"] = "mean"
    target_actions: Literal["shared", "separate"] = "shared"
    normalize_q: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_name("fql-n", n_step=self.n_step, name=self.name)
