"""A run that is killed at any moment and started again is the same run bit by bit.

A process is killed while it starts, updates, saves or commits a save. Another process
resumes the run and is killed, too, until the run reaches its last step.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.optimised import QUICK
from tests.runs import final_params
from tests.stores import write_store
from trainer.runs.checkpoints import CheckpointReader
from trainer.runs.folder import CHECKPOINTS, METRICS_FILE, RunFolder

# There are many saves and few updates, so that most kills fall into a save.
TOML = """
dataset = "pointmaze-medium-navigate"
[agent]
name = "iql"
width = 8
depth = 1
[trainer]
steps = {steps}
batch_size = 8
updates_per_call = 2
log_every = 2
checkpoint_every = 4
keep_checkpoints = 2
keep_every = 20
"""
# One device, and programs that are compiled quickly rather than well, because a process
# spends most of its time on starting.
ENVIRONMENT = os.environ | {"XLA_FLAGS": QUICK}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("data") / "store")


def latest(out: Path) -> int:
    """The last committed step that a reader finds; 0 for none."""
    if not (out / CHECKPOINTS).is_dir():
        return 0
    checkpoints = CheckpointReader(RunFolder.open(out))
    try:
        for step in checkpoints.steps():
            # A step is whole if its run and the parameters for acting can be read.
            agent = checkpoints.read_run(step).agent()
            params = checkpoints.restore_params(step, agent, seeds=1)
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))
        return checkpoints.latest() or 0
    finally:
        checkpoints.close()


def steps_logged(out: Path) -> list[int]:
    return [line["step"] for line in RunFolder.open(out).read_lines(METRICS_FILE)]


def train_and_kill(command: list[str], out: Path, *, after_s: float) -> bool:
    """Kills a run some time after its first new record.

    Returns:
        Whether the run was still at work.
    """
    before = steps_logged(out)
    process = subprocess.Popen(
        command,
        env=environment(out),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 300
        # A resumed run first removes the records of updates that it repeats.
        while process.poll() is None and time.monotonic() < deadline:
            now = steps_logged(out)
            if now and now != before:
                break
            time.sleep(0.005)
        time.sleep(after_s)
        return process.poll() is None
    finally:
        process.kill()
        process.wait()


def environment(out: Path) -> dict[str, str]:
    """Gives a run its own cache, because a killed process leaves damaged entries."""
    return ENVIRONMENT | {"JAX_COMPILATION_CACHE_DIR": str(out.parent / "cache")}


def train(command: list[str]) -> None:
    done = subprocess.run(
        command,
        env=environment(Path(command[-1])),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def check(store: Path, folder: Path, *, steps: int, kills: int) -> None:
    """Kills a run several times, lets it end, and compares it with one never killed."""
    config = folder / "tiny.toml"
    config.write_text(TOML.format(steps=steps))
    straight, killed = folder / "straight", folder / "killed"
    start = [sys.executable, "-m", "trainer", "train", str(config)]
    start += ["--store", str(store), "--task", "1", "--out"]
    train([*start, str(straight)])

    rng = np.random.default_rng(kills)
    reached, at_work = 0, 0
    for _ in range(kills):
        at_work += train_and_kill(
            [*start, str(killed)], killed, after_s=rng.uniform(0, 0.2)
        )
        step = latest(killed)
        assert reached <= step <= steps  # No committed step is lost.
        reached = step
    assert at_work >= kills / 2
    train([*start, str(killed)])
    one, other = (final_params(out, steps) for out in (killed, straight))
    assert len(one) > 10
    for ours, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    losses = [
        [
            (line["step"], line["loss"])
            for line in RunFolder.open(out).read_lines(METRICS_FILE)
        ]
        for out in (killed, straight)
    ]
    assert losses[0] == losses[1]
    assert steps_logged(killed) == list(range(2, steps + 1, 2))


def test_killed_three_times(store: Path, tmp_path: Path) -> None:
    check(store, tmp_path, steps=60, kills=3)


@pytest.mark.slow
def test_killed_twenty_times(store: Path, tmp_path: Path) -> None:
    check(store, tmp_path, steps=400, kills=20)
