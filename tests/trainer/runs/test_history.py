"""What a run logged, read back by seed and step."""

import json
from pathlib import Path

import numpy as np
import pytest

from pipeline.store.errors import DataFormatError
from tests.evaluated import write_evaluated_run
from tests.fuzz import MUTATIONS, drill, mutate_json_lines
from trainer.runs.folder import METRICS_FILE, RunFolder
from trainer.runs.history import read_history


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_evaluated_run(tmp_path)


def test_history_by_seed_and_step(run: Path) -> None:
    history = read_history(RunFolder.open(run))
    assert history.steps.tolist() == [1000, 2000, 3000, 4000]
    assert history.scalar("value_loss").shape == (2, 4)
    assert np.isnan(history.scalar("no such")).all()
    windows = history.vector("windows_by_horizon", 0)
    assert windows is not None
    assert windows.tolist() == [0, 0, 200, 200, 200, 200]
    assert history.vector("no such", 0) is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"[" * 100_000, "line 2: expected JSON"),
        (b"\xff", "line 2: expected JSON"),
        (b"3", "line 2: expected a JSON object, got int"),
        (
            b'{"seed": 0}',
            "record 2: step: expected a whole number of at least 0, got None",
        ),
        (
            b'{"step": true, "seed": 0}',
            "step: expected a whole number of at least 0, got True",
        ),
        (b'{"step": 1, "seed": 0, "a": "x"}', "a: expected a number, or numbers"),
        (b'{"step": 1, "seed": 0, "b": [1]}', "b: expected as many numbers as"),
    ],
)
def test_lines_that_are_no_records_are_refused(
    tmp_path: Path, line: bytes, message: str
) -> None:
    folder = RunFolder.open(tmp_path)
    folder.write(METRICS_FILE, b'{"step": 1, "seed": 0, "b": [1, 2]}\n' + line + b"\n")
    with pytest.raises(DataFormatError, match=message):
        read_history(folder)


@pytest.mark.parametrize("count", MUTATIONS)
def test_no_damage_ends_in_a_traceback(tmp_path: Path, count: int) -> None:
    folder = RunFolder.open(tmp_path)
    records = [
        {"step": step, "seed": seed, "loss": 0.1, "by_horizon": [0, 3, 4]}
        for step in (5, 10)
        for seed in (0, 1)
    ]
    data = "".join(json.dumps(record) + "\n" for record in records).encode()

    def read(spoilt: bytes) -> None:
        (tmp_path / METRICS_FILE).write_bytes(spoilt)
        history = read_history(folder)
        for name in history.names():
            history.scalar(name)
        history.vector("by_horizon", -1)

    found = drill(lambda draw: mutate_json_lines(data, draw), read, count=count)
    assert found.read > 0 < found.refused
