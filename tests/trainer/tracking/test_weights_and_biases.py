"""Weights & Biases offline: what is kept on disk, for its own command to send."""

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.runs import make_run
from tests.trainer.sweep.made_up_cells import made_up_evaluation
from trainer.config import TrackingConfig
from trainer.errors import StorageError
from trainer.runs.evaluations import append_evaluation
from trainer.runs.folder import RunFolder
from trainer.runs.run import Run
from trainer.tracking.trackers import Trackers
from trainer.tracking.weights_and_biases import WANDB_FILE, send_evaluation

wandb = pytest.importorskip("wandb", reason="the extra wandb is not installed")


# What the package leaves open is its own.
left_open = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


def offline() -> Run:
    run = make_run()
    tracking = TrackingConfig(tensorboard=False, wandb="offline")
    return replace(run, config=replace(run.config, tracking=tracking))


def track(folder: Path, steps: range, *, resume_step: int) -> None:
    trackers = Trackers(
        RunFolder.open(folder),
        offline(),
        resume_step=resume_step,
        console=Console(quiet=True),
    )
    for step in steps:
        trackers.write(
            [
                {"step": step, "seed": seed, "loss": 0.5, "drawn_by_horizon": [0, 2]}
                for seed in (3, 4)
            ]
        )
    trackers.close()


def records(file: Path) -> Iterator[bytes]:
    """Of a log of LevelDB's form, whose records are all small."""
    data, at = file.read_bytes(), 7
    while at < len(data):
        _, size, kind = struct.unpack_from("<IHB", data, at)
        assert kind == 1  # A whole record.
        yield data[at + 7 : at + 7 + size]
        at += 7 + size


def sent(folder: Path, part: str, *, count: int) -> list[tuple[int, dict[str, object]]]:
    """Steps and figures kept of a seed, of all starts."""
    # A process of W&B's own writes them, and may do so after a run has been finished.
    end = time.monotonic() + 60
    while True:
        kept = [r for r in read_kept(folder, part) if r.HasField("history")]
        if len(kept) >= count or time.monotonic() > end:
            break
        time.sleep(0.05)
    found = []
    for record in kept:
        figures = {
            item.key or "/".join(item.nested_key): json.loads(item.value_json)
            for item in record.history.item
        }
        found.append((figures.pop("_step"), figures))
    return found


def read_kept(folder: Path, part: str) -> list[Any]:
    """What is kept of a seed, or of its evaluations, in order of the starts."""
    from wandb.proto.wandb_internal_pb2 import Record

    files = sorted((folder / "wandb").glob(f"offline-run-*/*-{part}.wandb"))
    return [Record.FromString(data) for file in files for data in records(file)]


@left_open
def test_a_restart_sends_no_step_twice(tmp_path: Path) -> None:
    track(tmp_path, range(2, 7, 2), resume_step=0)
    track(tmp_path, range(6, 9, 2), resume_step=4)
    for seed in (3, 4):
        kept = sent(tmp_path, f"seed-{seed}", count=4)
        assert [step for step, _ in kept] == [2, 4, 6, 8]
        assert all(figures["losses/loss"] == 0.5 for _, figures in kept)
        assert kept[0][1]["horizons/drawn/values"] == [0, 2]
        assert kept[0][1]["horizons/drawn/bins"] == [-0.5, 0.5, 1.5]


@left_open
def test_evaluations_are_a_run_of_their_own_beside_their_seed_s(tmp_path: Path) -> None:
    folder, run = RunFolder.open(tmp_path), offline()
    track(tmp_path, range(30, 31), resume_step=0)
    # Later than what was trained, and in no order of updates.
    for step, successes, task in ((20, (1, 0), 1), (10, (0, 0), 1), (20, (1,), 2)):
        evaluation = made_up_evaluation(step, 3, successes, task=task)
        append_evaluation(folder, evaluation)
        send_evaluation(folder, run, evaluation)
    assert [step for step, _ in sent(tmp_path, "seed-3", count=1)] == [30]
    kept = sent(tmp_path, "seed-3-evaluation", count=3)
    assert [step for step, _ in kept] == [1, 2, 3]  # Ascending, as W&B has them.
    own = [
        (
            figures["updates"],
            figures["evaluation/success"],
            figures["evaluation/return"],
        )
        for _, figures in kept[:2]
    ]
    assert own == [(20, 0.5, -9), (10, 0, -9)]
    assert kept[2][1]["evaluation_task_2/success"] == 1
    assert "evaluation/success" not in kept[2][1]
    records = read_kept(tmp_path, "seed-3-evaluation")
    drawn_over = {
        record.metric.name: record.metric.step_metric
        for record in records
        if record.HasField("metric") and record.metric.step_metric
    }
    assert drawn_over["evaluation/return"] == "updates"
    (group,) = {record.run.run_group for record in records if record.HasField("run")}
    assert group == tmp_path.name


def test_a_damaged_id_is_refused(tmp_path: Path) -> None:
    (tmp_path / WANDB_FILE).write_text("{}")
    with pytest.raises(StorageError, match="expected the id of a run"):
        track(tmp_path, range(0), resume_step=0)
