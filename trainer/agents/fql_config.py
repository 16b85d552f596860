"""Hyperparameters of FQL, see ``trainer.agents.fql``."""

from dataclasses import dataclass
from typing import Literal

from trainer.agents.parts.baseline_config import BaselineConfig
from trainer.agents.settings import Count, NotNegative
from trainer.data.nstep_windows import WindowRule
from trainer.nn.choices import Aggregation


@dataclass(frozen=True)
class FQLConfig(BaselineConfig):
    """Hyperparameters of FQL, besides those of ``BaselineConfig``.

    Attributes:
        name: ``"fql"``, or ``"fql-n"`` with returns of several steps.
        n_step: Rewards that are summed before the critics are backed up.
        window_rule: Rule for an episode's end and for rows after success, see
            ``NStepSampler``.
        alpha: Weight of the distillation; differs by data set.
        aggregation: Reduction of the two target critics; the policy raises the mean of
            the critics in either case.
        flow_steps: Euler steps of a flow sample.
    """

    dropped_options = {  # noqa: RUF012
        "distance": "mean",
        "target_actions": "shared",
        "normalize_q": False,
    }

    name: Literal["fql", "fql-n"] = "fql"
    n_step: Count = 1
    window_rule: WindowRule = "published"
    alpha: NotNegative = 10.0
    aggregation: Aggregation = "mean"
    flow_steps: Count = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_name("fql-n", n_step=self.n_step, name=self.name)
