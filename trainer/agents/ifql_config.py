"""Hyperparameters of IFQL, see ``trainer.agents.ifql``."""

from dataclasses import dataclass
from typing import Literal

from trainer.agents.parts.baseline_config import BaselineConfig
from trainer.agents.settings import Count, Share
from trainer.data.nstep_windows import WindowRule


@dataclass(frozen=True)
class IFQLConfig(BaselineConfig):
    """Hyperparameters of IFQL, besides those of ``BaselineConfig``.

    Attributes:
        name: ``"ifql"``, or ``"ifql-n"`` with returns of several steps.
        n_step: Rewards that are summed before the critics are backed up from V.
        window_rule: Rule for an episode's end and for rows after success, see
            ``NStepSampler``.
        expectile: Expectile τ of the value loss.
        candidates: Actions that are drawn at a step; the best by Q is executed.
        flow_steps: Euler steps of a flow sample.
    """

    name: Literal["ifql", "ifql-n"] = "ifql"
    n_step: Count = 1
    window_rule: WindowRule = "published"
    expectile: Share = 0.9
    candidates: Count = 32
    flow_steps: Count = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_name("ifql-n", n_step=self.n_step, name=self.name)
