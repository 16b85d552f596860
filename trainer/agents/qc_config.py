"""Hyperparameters of QC; what they are for stands in ``qc.py``."""

from dataclasses import dataclass
from typing import Literal

from trainer.agents.parts.baseline_config import BaselineConfig
from trainer.agents.settings import Count
from trainer.data.nstep_windows import WindowRule
from trainer.nn.choices import Aggregation


@dataclass(frozen=True)
class QCConfig(BaselineConfig):
    """Hyperparameters, besides those of ``BaselineConfig``.

    Attributes:
        name: Of the agent.
        n_step: h, actions of a chunk and rewards summed before the backup.
        window_rule: What happens at an episode's end and after success, see
            ``NStepSampler``.
        candidates: Chunks drawn, of which the best by Q is taken.
        aggregation: Of the critics, for choosing and for targets.
        flow_steps: Euler steps of a flow sample.
    """

    name: Literal["qc"] = "qc"
    n_step: Count = 5
    window_rule: WindowRule = "published"
    candidates: Count = 32
    aggregation: Aggregation = "mean"
    flow_steps: Count = 10
