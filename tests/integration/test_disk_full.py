"""On a full disk, a run ends with one error, and continues from its last checkpoint.

A limit on the size of files stands for a full disk: larger files fail in the same way,
but with another reason.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.optimised import QUICK
from tests.runs import final_params
from tests.stores import write_store
from trainer.runs.folder import METRICS_FILE, RUN_FILE, RunFolder

TOML = """
dataset = "pointmaze-medium-navigate"
[agent]
name = "iql"
width = 64
depth = 2
[trainer]
batch_size = 8
updates_per_call = 2
log_every = 2
checkpoint_every = 4
"""
# Python ignores the signal SIGXFSZ, which would end the process instead.
CHILD = """
import resource, runpy, sys
room = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
runpy.run_module("trainer", run_name="__main__")
"""
# Largest size of a file in bytes: parameters are larger, run.json and some records are
# smaller.
ROOM = 20_000
ENVIRONMENT = os.environ | {"XLA_FLAGS": QUICK}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_store(folder / "store")
    (folder / "tiny.toml").write_text(TOML)
    return folder


@pytest.fixture(scope="module")
def eight_updates(data: Path) -> Path:
    code, said = train(data, data / "run", steps=8)
    assert code == 0, said
    return data / "run"


def train(data: Path, out: Path, *, steps: int, room: int = -1) -> tuple[int, str]:
    """Trains with a largest size of files; returns the exit code and standard error."""
    done = subprocess.run(
        [
            *(sys.executable, "-c", CHILD, str(room)),
            *("train", str(data / "tiny.toml"), "--task", "1"),
            *("--store", str(data / "store"), "--out", str(out)),
            *("--trainer.steps", str(steps)),
        ],
        # A cached program may be cut short, so no other test may read this cache.
        env=ENVIRONMENT | {"JAX_COMPILATION_CACHE_DIR": str(data / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def steps_logged(out: Path) -> list[int]:
    return [line["step"] for line in RunFolder.open(out).read_lines(METRICS_FILE)]


def test_the_last_good_checkpoint_outlives_a_full_disk(
    data: Path, eight_updates: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(eight_updates, out)
    before = final_params(out, 8)
    code, said = train(data, out, steps=16, room=ROOM)
    assert code == 1
    assert re.fullmatch(
        r"error: .*run/checkpoints: a checkpoint could not be written \(File too "
        r"large\); the last one written is step 8\. Make room there, then run the same "
        "command to go on",
        said.splitlines()[-1],
    )
    assert "Traceback" not in said
    for ours, theirs in zip(final_params(out, 8), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    code, said = train(data, out, steps=16)
    assert code == 0, said
    assert "going on from the checkpoint of step 8" in said
    after = final_params(out, 16)
    assert any((a != b).any() for a, b in zip(after, before, strict=True))
    assert steps_logged(out) == [*range(2, 17, 2)]


def test_records_that_cannot_be_written_stop_the_run(
    data: Path, eight_updates: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(eight_updates, out)
    # run.json is written again and must fit, so spaces make the records larger.
    padding = " " * (out / RUN_FILE).stat().st_size
    metrics = out / METRICS_FILE
    metrics.write_text(
        metrics.read_text().replace('{"step": ', f'{{"step": {padding}', 1)
    )
    size = metrics.stat().st_size
    assert size > len(padding)
    code, said = train(data, out, steps=16, room=size + 1)
    assert code == 1
    last = said.splitlines()[-1]
    assert last.startswith(f"error: {out}: the run's metrics could not be written")
    assert "File too large" in last
    # A record that was cut short does not count, and nothing is saved without records.
    assert steps_logged(out) == [2, 4, 6, 8]
    assert final_params(out, 8)


@pytest.mark.parametrize(
    ("room", "message"),
    [
        (200, "cannot be locked against other trainers"),
        (1500, "the run's metrics could not be written"),
    ],
)
def test_a_start_without_room_can_be_repeated(
    data: Path, tmp_path: Path, room: int, message: str
) -> None:
    out = tmp_path / "run"
    code, said = train(data, out, steps=8, room=room)
    assert code == 1  # Not 2, because with room the same command is right.
    assert f"error: {out}: {message}" in said
    assert "Traceback" not in said
    code, said = train(data, out, steps=8)
    assert code == 0, said
