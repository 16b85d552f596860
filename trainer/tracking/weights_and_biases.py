"""The tracker for Weights & Biases (W&B), which gets a run for each training seed.

It was tested offline, with files that ``wandb sync`` sends; nothing was sent to the
service. The seeds of one of our runs share a group. A restart resumes the same W&B
runs. W&B keeps all points that it has received, so a restart sends later steps only:
the steps that it does again have the same metrics as before.
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
    Json,
    list_evaluation_points,
    list_histogram_points,
    list_hyperparameters,
    list_scalar_points,
)

# File in the run's folder with the run's id at W&B, which a restart resumes.
WANDB_FILE = "wandb.json"
# Metric that evaluations are drawn over.
UPDATES = "updates"


class WeightsAndBiases:
    """Sends records to Weights & Biases, or keeps them here for ``wandb sync``.

    Args:
        folder: Folder of the run. W&B's own files go into its sub-folder ``wandb``, or
            for a run in a bucket into ``wandb`` in the working directory.
        run: The run.
        sent: Last step whose records an earlier start has sent.

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
        """Sends the finite numbers of records, and their counts as histograms."""
        for record in records:
            if record["step"] > self._sent:
                points, step = self._make_points(record), record["step"]
                # Without `commit`, W&B keeps the step open until a later one comes, and
                # loses the last step of a process that is killed.
                self._runs[record["seed"]].log(points, step, commit=True)

    def close(self) -> None:
        """Waits until W&B has all records."""
        for run in self._runs.values():
            run.finish()

    def _make_points(self, record: Json) -> Json:
        points: Json = {**list_scalar_points(record)}
        for tag, counts in list_histogram_points(record).items():
            # A bucket for each horizon, with the horizon in its middle.
            edges = np.arange(len(counts) + 1) - 0.5
            points[tag] = self._histogram(np_histogram=(counts, edges))
        return points


def send_evaluation(folder: RunFolder, run: Run, evaluation: Evaluation) -> None:
    """Sends an evaluation that was just recorded, or keeps it for ``wandb sync``.

    Args:
        folder: Folder of the run.
        run: The run.
        evaluation: Evaluation of one checkpoint of one training seed.

    Raises:
        MissingPackageError: If the package is not installed.
        StorageError: If W&B refuses the run or cannot be reached.
    """
    # W&B accepts the steps of a run in ascending order only, and training may be far
    # ahead of the checkpoint. So evaluations of a seed are a W&B run of their own. Its
    # steps count evaluations, and its charts are over the updates of the checkpoints.
    points = list_evaluation_points(evaluation, run)
    wandb_run = _start(folder, run, evaluation.seed, part=EVALUATION)
    for tag in points:
        wandb_run.define_metric(tag, step_metric=UPDATES)
    recorded = len(folder.read_lines(EVALUATIONS_FILE))
    wandb_run.log({UPDATES: evaluation.step, **points}, recorded, commit=True)
    wandb_run.finish()


def _import(tracking: TrackingConfig) -> Any:
    # Late, because training needs the package only if the configuration asks for it.
    try:
        import wandb
    except ImportError as error:
        raise MissingPackageError(
            f"tracking.wandb is {tracking.wandb!r}, which needs the package wandb "
            f"({error}); pip install 'vast-rl[wandb]', or train with "
            "--tracking.wandb off"
        ) from error
    return wandb


def _start(folder: RunFolder, run: Run, seed: int, *, part: str = "") -> Any:
    """Starts or resumes the W&B run of a training seed, or of a part of it."""
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
            config=list_hyperparameters(run, seed),
            # Several W&B runs are open in this process, one for each seed.
            reinit="create_new",
            # By default, W&B also uploads console output, source code and details of
            # the machine, which no configuration here asks for.
            settings=wandb.Settings(
                console="off",
                silent=True,
                disable_git=True,
                save_code=False,
                x_disable_stats=True,
            ),
        )
    except wandb.errors.Error as error:
        raise StorageError(_describe_refusal(error, tracking)) from error


def _run_id(folder: RunFolder) -> str:
    """Reads the run's id at W&B, which the first start draws and writes."""
    # Not derived from the folder's name, which may be used again for another run.
    stored = folder.read(WANDB_FILE)
    if stored.data is None:
        data = json.dumps({"id": uuid.uuid4().hex[:12]}) + "\n"
        # If another process has committed an id meanwhile, that one is read.
        folder.commit(WANDB_FILE, data.encode(), replacing=stored)
        return _run_id(folder)
    try:
        token = json.loads(stored.data)["id"]
    except (ValueError, KeyError, TypeError):
        token = None
    if not isinstance(token, str) or not token.isalnum():
        raise StorageError(
            f"{folder}/{WANDB_FILE}: expected the id of a run at Weights & Biases, got "
            f"{stored.data[:40]!r}; delete the file to start a new run there"
        )
    return token


def _describe_refusal(error: Exception, tracking: TrackingConfig) -> str:
    # The client's messages have several lines, and an error here has one.
    reason = " ".join(str(error).split())
    return (
        "tracking.wandb: Weights & Biases does not take runs of project "
        f"{tracking.wandb_project!r} ({reason}); log in with `wandb login`, or train "
        "with --tracking.wandb offline and send them later with `wandb sync`"
    )
