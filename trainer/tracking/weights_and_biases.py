"""Weights & Biases, for runs whose configuration asks for it: a run for each seed.

Tested offline, with files that ``wandb sync`` sends; nothing was sent to the service.
The package is imported only where it is asked for. The seeds of a run share a group. A
restart goes on with the same runs and sends them later steps alone: W&B keeps what it
has been sent, so steps that are done again after a restart, to the same figures, are
not sent twice.
"""

import json
import uuid
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.store.errors import MissingPackageError
from trainer.config import TrackingConfig
from trainer.errors import StorageError
from trainer.runs.evaluations import Evaluation
from trainer.runs.folder import EVALUATIONS_FILE, RunFolder
from trainer.runs.run import Run
from trainer.tracking.tracker import (
    EVALUATION,
    HISTOGRAMS,
    Json,
    evaluation_figures,
    group_tag,
    hyperparameters,
)

# Keeps the id by which W&B knows the run, in the run's folder.
WANDB_FILE = "wandb.json"
# What evaluations are drawn over.
UPDATES = "updates"


class WeightsAndBiases:
    """Sends records to Weights & Biases, or keeps them here for ``wandb sync``.

    Args:
        folder: RUN; W&B's own files go into its folder ``wandb``, or into the working
            directory's for a run in a bucket.
        run: The run.
        sent: Step up to which an earlier start has sent records.

    Raises:
        MissingPackageError: If the package is not installed.
        StorageError: If W&B refuses the run or cannot be reached.
    """

    def __init__(self, folder: RunFolder, run: Run, *, sent: int) -> None:
        self._histogram = _import(run.config.tracking).Histogram
        self._sent = sent
        self._runs: dict[int, Any] = {}
        for seed in run.config.trainer.seed_range:
            self._runs[seed] = _start(folder, run, seed)

    def write(self, records: Sequence[Json]) -> None:
        """Sends records, counts by horizon as histograms."""
        for record in records:
            if record["step"] > self._sent:
                figures, step = self._figures(record), record["step"]
                # A step is else kept open for more, and the last one may be lost.
                self._runs[record["seed"]].log(figures, step, commit=True)

    def close(self) -> None:
        """Waits until all is sent."""
        for run in self._runs.values():
            run.finish()

    def _figures(self, record: Json) -> Json:
        figures = {
            group_tag(name): value
            for name, value in record.items()
            if name not in ("step", "seed")
            and isinstance(value, int | float)
            and np.isfinite(value)
        }
        for name, tag in HISTOGRAMS.items():
            if sum(record.get(name) or ()) > 0:
                edges = np.arange(len(record[name]) + 1) - 0.5
                figures[tag] = self._histogram(np_histogram=(record[name], edges))
        return figures


def send_evaluation(folder: RunFolder, run: Run, evaluation: Evaluation) -> None:
    """Sends an evaluation that was recorded just now, or keeps it for ``wandb sync``.

    Evaluations of a seed are a run of their own in the run's group: what is trained may
    be far ahead, and W&B takes the steps of a run in ascending order alone. They are
    drawn over the updates of their checkpoints.

    Args:
        folder: RUN.
        run: The run.
        evaluation: One checkpoint of one training seed.

    Raises:
        MissingPackageError: If the package is not installed.
        StorageError: If W&B refuses the run or cannot be reached.
    """
    figures = evaluation_figures(evaluation, own_task=run.task.task)
    started = _start(folder, run, evaluation.seed, part=EVALUATION)
    for tag in figures:
        started.define_metric(tag, step_metric=UPDATES)
    recorded = len(folder.read_lines(EVALUATIONS_FILE))
    started.log({UPDATES: evaluation.step, **figures}, recorded, commit=True)
    started.finish()


def _import(tracking: TrackingConfig) -> Any:
    try:
        import wandb
    except ImportError as error:
        raise MissingPackageError(
            f"tracking.wandb is {tracking.wandb!r} and that needs the package wandb "
            f"({error}); pip install 'vast-rl[wandb]', or train with "
            "--tracking.wandb off"
        ) from error
    return wandb


def _start(folder: RunFolder, run: Run, seed: int, *, part: str = "") -> Any:
    """Starts, or goes on with, what is one run to W&B: a seed's, or a part of it."""
    tracking, token = run.config.tracking, _run_id(folder)
    wandb = _import(tracking)
    suffix = f"-{part}" if part else ""
    try:
        return wandb.init(
            project=tracking.wandb_project,
            group=folder.name,
            job_type=part or "training",
            name=f"{folder.name}/seed-{seed}{suffix}",
            id=f"{token}-seed-{seed}{suffix}",
            resume="allow",
            mode=tracking.wandb,
            dir=None if folder.remote else str(folder),
            config=hyperparameters(run, seed),
            reinit="create_new",
            # Output, source and machine are not what was asked for.
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                save_code=False,
                x_disable_stats=True,
            ),
        )
    except wandb.errors.Error as error:
        raise StorageError(_refused(error, tracking)) from error


def _run_id(folder: RunFolder) -> str:
    """The id of the run at W&B, drawn by its first start."""
    there = folder.read(WANDB_FILE)
    if there.data is None:
        data = json.dumps({"id": uuid.uuid4().hex[:12]}) + "\n"
        folder.commit(WANDB_FILE, data.encode(), replacing=there)
        return _run_id(folder)
    try:
        token = json.loads(there.data)["id"]
    except (ValueError, KeyError, TypeError):
        token = None
    if not isinstance(token, str) or not token.isalnum():
        raise StorageError(
            f"{folder}/{WANDB_FILE}: expected the id of a run at Weights & Biases, got "
            f"{there.data[:40]!r}; delete the file, and the run begins anew there"
        )
    return token


def _refused(error: Exception, tracking: TrackingConfig) -> str:
    said = " ".join(str(error).split())
    return (
        f"Weights & Biases does not take runs of project {tracking.wandb_project!r} "
        f"({said}); log in with `wandb login`, or train with --tracking.wandb offline "
        "and send them later with `wandb sync`"
    )
