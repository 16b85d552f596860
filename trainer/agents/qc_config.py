"""Hyperparameters of QC, see ``trainer.agents.qc``."""

from dataclasses import dataclass
from typing import Literal

from trainer.agents.parts.baseline_config import BaselineConfig
from trainer.agents.settings import Count
from trainer.data.nstep_windows import WindowRule
from trainer.nn.choices import Aggregation


@dataclass(frozen=True)
class QCConfig(BaselineConfig):
    """Hyperparameters of QC, besides those of ``BaselineConfig``.

    Attributes:
        name: Name of the agent.
        n_step: Actions h of a chunk, and rewards that are summed before the backup.
        window_rule: Rule for an episode's end and for rows after success, see
            ``NStepSampler``.
        candidates: Chunks that are drawn; the best by Q is executed.
        aggregation: Reduction of the two critics, for choosing chunks and for targets.
        flow_steps: Euler steps of a flow sample.
    """

    name: Literal["qc"] = "qc"
    n_step: Count = 5
    window_rule: WindowRule = "published"
    candidates: Count = 32
    aggregation: Aggregation = "mean"
    flow_steps: Count = 10
