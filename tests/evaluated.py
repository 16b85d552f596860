"""The folder of a run that was trained and evaluated, with made-up figures."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.store.manifest import Task
from trainer.agents.base import DataFacts
from trainer.agents.vast_config import VASTConfig
from trainer.config import Config, TrainerConfig
from trainer.runs.evaluations import Evaluation, append_evaluation
from trainer.runs.folder import METRICS_FILE, RunFolder
from trainer.runs.run import Run, write_run

K = 5


RUN = Run(
    config=Config(
        "cube-single-play",
        VASTConfig(width=8, max_horizon=K),
        TrainerConfig(steps=4000, seeds=2),
    ),
    dataset="cube-single-play",
    task=Task(1, "task1_<left>", "cube-single-singletask-task1-v0", "cube"),
    facts=DataFacts(2, 2, (0.0, 0.0), (1.0, 1.0), -1.0, 0.0, -3.2),
    fingerprint="made-up",
    store="made-up",
    versions={"jax": "0.0"},
)


def record(step: int, seed: int) -> dict[str, Any]:
    """A made-up record of training's metrics."""
    horizons = np.arange(K + 1)
    share = step / 4000
    windows = np.where(horizons < 2, 0, 100)
    return {
        "step": step,
        "seed": seed,
        "time_s": share * 60,
        "updates_per_s": 50.0,
        "input_blocked_share": 0.04,
        **{
            f"{name}_loss": 10.0 * (1.1 - share) + seed
            for name in ("segment", "value", "critic", "stitch", "exec")
        },
        "loss": 50.0,
        "value": -20.0 * share,
        "value_max": -10.0 * share,
        "over_estimation": 0.1,
        "segment_error": 1.1 - share,
        "weight": 1.0,
        "weight_max": 30.0,
        "windows_by_horizon": windows.tolist(),
        "segment_error_by_horizon": (windows * horizons * (1.1 - share)).tolist(),
        "drawn_by_horizon": np.where(horizons < 1, 0, 10 * horizons).tolist(),
    }


def evaluation(step: int, seed: int, solved: int, **changes: Any) -> Evaluation:
    """An evaluation of ten episodes, of which the first ``solved`` ones succeed."""
    episodes = changes.pop("episodes", 10)
    return dataclasses.replace(
        Evaluation(
            step, seed, 0, 1, RUN.task.environment_id, episodes,
            tuple(int(index < solved) for index in range(episodes)),
            (-200.0,) * episodes, (200,) * episodes, "pre", "pre", 8, "1", "4", 1.0,
        ),
        **changes,
    )  # fmt: skip


def write_evaluated_run(parent: Path) -> Path:
    """Writes a run of two seeds that was logged and evaluated at four steps."""
    folder = parent / "some run"
    write_run(RunFolder.open(folder), RUN)
    lines = [record(step, seed) for step in range(1000, 5000, 1000) for seed in (0, 1)]
    (folder / METRICS_FILE).write_text("".join(json.dumps(x) + "\n" for x in lines))
    for step, solved in ((1000, 1), (2000, 6), (3000, 2), (4000, 3)):
        append_evaluation(RunFolder.open(folder), evaluation(step, 0, solved))
        append_evaluation(RunFolder.open(folder), evaluation(step, 1, solved + 1))
    return folder
