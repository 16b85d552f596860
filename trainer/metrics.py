"""Where figures go: JSON lines and TensorBoard, always; and how they are combined.

Waiting for the devices happens here only, at log points.
"""

import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tensorboardX import SummaryWriter

from trainer.agents.base import Metrics
from trainer.run import METRICS_FILE, TENSORBOARD

Json = dict[str, Any]


def combine(calls: list[Metrics]) -> Metrics:
    """Brings the metrics of several calls to the host and reduces them.

    Args:
        calls: Metrics ``[Q]`` of each call, on the devices.

    Returns:
        NumPy metrics, ``[Q]`` or ``[Q, K + 1]`` each.
    """
    fetched = jax.device_get(calls)
    stacked: Metrics = jax.tree.map(lambda *leaves: np.stack(leaves), *fetched)
    return stacked.reduce()


def nonfinite(metrics: Metrics) -> list[str]:
    """Names of averaged figures that are NaN or infinite for some seed."""
    return sorted(
        name for name, values in metrics.mean.items() if not np.isfinite(values).all()
    )


def records(metrics: Metrics, *, seeds: tuple[int, ...], facts: Json) -> list[Json]:
    """One JSON-ready record per seed.

    Args:
        metrics: NumPy metrics, ``[Q]`` or ``[Q, K + 1]`` each.
        seeds: Number of each of the Q seeds.
        facts: What all seeds share: step, times, rates.

    Returns:
        Records of plain numbers and lists.
    """
    merged = {**metrics.mean, **metrics.max, **metrics.total}
    return [
        {**facts, "seed": seed}
        | {name: np.asarray(values[q]).tolist() for name, values in merged.items()}
        for q, seed in enumerate(seeds)
    ]


class MetricsWriter:
    """Appends records to a run's folder.

    Args:
        folder: RUN.
        resume_step: Step training goes on from: later records, of updates that are
            done again, are dropped.
    """

    def __init__(self, folder: Path, *, resume_step: int) -> None:
        path = folder / METRICS_FILE
        _truncate(path, resume_step)
        self._lines = path.open("a")
        self._board = SummaryWriter(
            str(folder / TENSORBOARD), purge_step=resume_step, flush_secs=10
        )

    def write(self, records: list[Json]) -> None:
        """Writes records; vectors go to the JSON lines only."""
        for record in records:
            self._lines.write(json.dumps(record) + "\n")
            for name, value in record.items():
                if isinstance(value, int | float) and math.isfinite(value):
                    tag = f"seed{record['seed']}/{name}"
                    self._board.add_scalar(tag, value, record["step"])
        self._lines.flush()

    def close(self) -> None:
        """Flushes and closes both."""
        self._lines.close()
        self._board.close()


def _truncate(path: Path, step: int) -> None:
    """Drops records after a step, and a half-written last line."""
    if not path.exists():
        return
    complete, _, _ = path.read_text().rpartition("\n")
    kept = [
        line
        for line in complete.splitlines()
        if line and json.loads(line)["step"] <= step
    ]
    path.write_text("".join(f"{line}\n" for line in kept))
