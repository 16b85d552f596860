"""``python -m trainer``: commands in turn, and one line for each mistake."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.stores import write_store
from trainer.cli import ignore_abandoned, main
from trainer.runs.folder import METRICS_FILE, RunFolder

TOML = """
dataset = "pointmaze-medium-navigate"
[agent]
name = "vast"
max_horizon = 6
width = 8
depth = 1
flow_steps = 2
[trainer]
steps = 20
batch_size = 8
updates_per_call = 5
log_every = 10
checkpoint_every = 20
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TOML)
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_store(tmp_path_factory.mktemp("data") / "store")


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Returns the exit code, and the output: results, then progress and errors."""
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    return code, "".join(capsys.readouterr())


def test_train_with_overrides_then_again(
    capsys: pytest.CaptureFixture[str], config: Path, store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    train = ("train", config, "--store", store, "--task", 2, "--out", out)
    wide = ("--agent.width", 12, "--trainer.seeds", 2)
    arguments = [str(argument) for argument in (*train, *wide)]
    assert main(arguments) == 0
    shown, said = capsys.readouterr()
    assert shown == f"trained to step 20; the run is in {out}\n"
    assert "compiled in" in said
    described = json.loads((out / "run.json").read_text())
    assert described["config"]["agent"]["width"] == 12
    assert described["task"]["task"] == 2
    assert len(RunFolder.open(out).read_lines(METRICS_FILE)) == 4
    code, said = run(capsys, *train, *wide)
    assert code == 0
    assert "already finished: 20 updates were asked for, and the latest check" in said
    # Other hyperparameters are refused in the same folder.
    code, said = run(capsys, *train)
    assert code == 2
    assert "agent.width: 12 before, 8 now" in said


def test_what_abandoned_reads_and_writes_report_is_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(sys, "__unraisablehook__", reported.append)
    abandoned = "Encountered error while reading array index: (slice(0, 2, 1))"
    for message in ("Event loop is closed", abandoned, "another"):
        ignore_abandoned(SimpleNamespace(exc_value=RuntimeError(message)))
    assert [str(each.exc_value) for each in reported] == ["another"]


def one_line(said: str) -> str:
    """Returns the last line, which is the error, and makes sure of no traceback."""
    assert "Traceback" not in said
    return said.strip().splitlines()[-1]


def test_mistakes(
    capsys: pytest.CaptureFixture[str], config: Path, store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"

    def train(**changes: object) -> str:
        given = {"store": store, "task": 1, "out": out} | changes
        given_config = given.pop("config", config)
        flags = [part for name, value in given.items() for part in (f"--{name}", value)]
        code, said = run(capsys, "train", given_config, *flags)
        assert code == 2, said
        assert not out.exists()
        return one_line(said)

    missing = train(store=tmp_path / "nowhere")
    assert "dataset.json: expected the manifest of a finished store" in missing
    assert "repeat its command" in missing
    assert "expected the folder of a store, got a file" in train(store=config)
    assert "task 7 is not in this store, which holds tasks [1, 2" in train(task=7)
    assert "expected a task number from 1, got 0" in train(task=0)
    # Without a configuration the store names the tasks, and 0 is none of them.
    own = ("train", "--store", store, "--agent", "iql", "--task", 0, "--out", out)
    code, said = run(capsys, *own)
    assert code == 2
    assert "expected a task number from 1, got 0" in one_line(said)

    typo = tmp_path / "typo.toml"
    typo.write_text(TOML.replace("width", "widht"))
    assert "did you mean 'agent.width'" in train(config=typo)

    other = tmp_path / "other.toml"
    other.write_text(TOML.replace("pointmaze-medium-navigate", "cube-single-play"))
    assert "expected a store of cube-single-play" in train(config=other)

    discount = tmp_path / "discount.toml"
    discount.write_text(TOML.replace("width = 8", "width = 8\ndiscount = 0.5"))
    assert "discount 0.5 are not in this store, which holds [0.99]" in train(
        config=discount
    )
    horizon = tmp_path / "horizon.toml"
    horizon.write_text(TOML.replace("max_horizon = 6", "max_horizon = 60"))
    code, said = run(
        capsys, "train", horizon, "--store", store, "--task", 1, "--out", out
    )
    assert code == 2
    assert "longest episode has 50 rows" in one_line(said)


def test_unknown_arguments(
    capsys: pytest.CaptureFixture[str], config: Path, tmp_path: Path
) -> None:
    code, said = run(capsys, "describe", config, "--colour", "red")
    assert code == 2
    assert "Unrecognized options: --colour" in said
    code, said = run(capsys, "evaluate", tmp_path)
    assert code == 2
    assert "expected the folder of a run" in one_line(said)


def test_describe_prints_what_a_task_resolves_to(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["describe", "configs/demo.toml", "--task", "3", "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["config"]["agent"]["width"] == 64
