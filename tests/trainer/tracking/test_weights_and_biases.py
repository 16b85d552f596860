"""Weights & Biases offline: what is kept on disk, for its own command to send."""

import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.runs import make_run
from trainer.config import TrackingConfig
from trainer.errors import StorageError
from trainer.runs.folder import RunFolder
from trainer.runs.run import Run
from trainer.tracking.trackers import Trackers
from trainer.tracking.weights_and_biases import WANDB_FILE

wandb = pytest.importorskip("wandb", reason="the extra wandb is not installed")


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


def sent(folder: Path, seed: int) -> list[tuple[int, dict[str, object]]]:
    """Steps and figures kept of a seed, of all starts."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = []
    for file in sorted((folder / "wandb").glob(f"offline-run-*/*-seed-{seed}.wandb")):
        for data in records(file):
            record = Record.FromString(data)
            if record.HasField("history"):
                figures = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json)
                    for item in record.history.item
                }
                found.append((figures.pop("_step"), figures))
    return found


# What the package leaves open is its own.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_restart_sends_no_step_twice(tmp_path: Path) -> None:
    track(tmp_path, range(2, 7, 2), resume_step=0)
    track(tmp_path, range(6, 9, 2), resume_step=4)
    for seed in (3, 4):
        kept = sent(tmp_path, seed)
        assert [step for step, _ in kept] == [2, 4, 6, 8]
        assert all(figures["losses/loss"] == 0.5 for _, figures in kept)
        assert kept[0][1]["horizons/drawn/values"] == [0, 2]
        assert kept[0][1]["horizons/drawn/bins"] == [-0.5, 0.5, 1.5]


def test_a_damaged_id_is_refused(tmp_path: Path) -> None:
    (tmp_path / WANDB_FILE).write_text("{}")
    with pytest.raises(StorageError, match="expected the id of a run"):
        track(tmp_path, range(0), resume_step=0)
