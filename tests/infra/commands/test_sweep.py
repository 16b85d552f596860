"""Launching a sweep submits a job for what each cell lacks, and prints totals."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.cli import main
from infra.commands import sweep as module
from tests.infra.command_lines import REGISTRY, VERSION

SWEEP = """
out = "gs://vast-data/runs/grid"
datasets = ["cube-single-play"]
config = "tests/infra/run.toml"
store = "gs://vast-data/stores/{dataset}"
tasks = [1, 2]
seeds = 2
overrides.agent.width = 1024
[evaluation]
episodes = 20
checkpoints = 2
[methods.vast]
[methods.cloning]
agent = "vast"
overrides.agent = { temperature = 0.0 }
"""
NAME = "cube-single-play-{}-{}-seeds-0-1"
IMAGE = f"{REGISTRY}/vast-rl-trainer-cuda:{VERSION}"


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(SWEEP)
    return path


def launch(
    sweep: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, list[dict[str, Any]], str]:
    """Runs a dry run; returns its exit code, documents and standard error."""
    capsys.readouterr()
    code = main(
        [
            *("launch", "sweep", str(sweep), "--target", "gke", "--dry-run"),
            *("--accelerator", "h100", "--chips", "8", "--region", "europe-west4"),
            *("--image", IMAGE, *more),
        ]
    )
    output, said = capsys.readouterr()
    return code, list(yaml.safe_load_all(output)), said


def test_each_cell_is_a_job_of_what_it_lacks(
    sweep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    states = {
        NAME.format(1, "vast"): {"stage": "finished"},
        NAME.format(1, "cloning"): {"stage": "trained", "missing": [900_000, 10**6]},
        NAME.format(2, "vast"): {"stage": "begun", "step": 100},
        NAME.format(2, "cloning"): {"stage": "new"},
    }
    sweep.write_text(
        'environment = "walk:Walk-v0"\nenvironment_arguments.size = 3\n'
        + SWEEP.replace("checkpoints", "reference_scores = [-5, 5]\ncheckpoints")
    )
    monkeypatch.setattr(module, "ask_states", lambda path, only: states)
    code, documents, said = launch(sweep, capsys, "--updates-per-s", "100")
    assert code == 0
    (evaluation,) = (each for each in documents if each["kind"] == "Job")
    (container,) = evaluation["spec"]["template"]["spec"]["containers"]
    given = " ".join(container["args"])
    assert NAME.format(1, "cloning") in given
    assert "--episodes 20 " in given
    own = "--environment walk:Walk-v0 --environment-arguments size=3 "
    assert given.endswith(f"--reference-scores -5.0 5.0 {own}--steps 900000 1000000")
    trained = [each for each in documents if each["kind"] == "JobSet"]
    names = [each["metadata"]["name"] for each in trained]
    assert names == [NAME.format(2, "vast"), NAME.format(2, "cloning")]
    job = trained[1]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    given = " ".join(job["spec"]["containers"][0]["args"])
    assert f"{own}--agent.width 1024 --agent.temperature 0.0" in given
    assert f"--out gs://vast-data/runs/grid/{NAME.format(2, 'cloning')}" in given
    # Two cells train, each with a million updates at 100 a second on 8 chips.
    assert (
        "# 4 cells with 8 training seeds: 1 finished, 2 to train, 1 to evaluate\n"
        "# 16 h100 chips at once; 5.6 h of training one after another, 44.4 chip hours"
    ) in said


def test_hours_that_were_not_measured_are_not_made_up(
    sweep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ask_states", lambda path, only: {})
    code, documents, said = launch(sweep, capsys, "--only", "*-1-*")
    assert code == 0
    assert sum(each["kind"] == "JobSet" for each in documents) == 2
    assert "# 16 h100 chips at once\n" in said
    assert (
        "no rate was measured (1 of vast, 1 of cloning); give --updates-per-s" in said
    )


def test_without_states_only_a_dry_run_goes_on(
    sweep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(command: Any, **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "error: no credentials\n")

    monkeypatch.setattr(module.subprocess, "run", end)
    code, documents, said = launch(sweep, capsys)
    assert code == 0
    assert sum(each["kind"] == "JobSet" for each in documents) == 4
    assert "exit code 1: error: no credentials; all cells are taken for new" in said
    command = ["launch", "sweep", str(sweep), "--target", "gke", "--chips", "8"]
    assert main([*command, "--accelerator", "h100"]) == 2
    said = capsys.readouterr().err
    assert "ended with exit code 1: error: no credentials" in said
    assert len(said.splitlines()) == 1


def test_states_are_what_a_dry_run_of_the_trainer_s_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "local.toml"
    path.write_text(SWEEP.replace("gs://vast-data/runs", str(tmp_path)))
    states = module.ask_states(path, "*-1-*")
    assert set(states) == {NAME.format(1, "vast"), NAME.format(1, "cloning")}
    assert {state["stage"] for state in states.values()} == {"new"}


def test_mistakes(
    sweep: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ask_states", lambda path, only: {})
    code, _, said = launch(sweep, capsys, "--", "--agent.width", "8")
    assert code == 2
    assert "expected nothing after --" in said
    sweep.write_text(SWEEP.replace("gs://vast-data/runs", "runs"))
    code, documents, said = launch(sweep, capsys)
    assert (code, documents) == (2, [])
    assert "runs/grid" in said.splitlines()[-1]
    other = {"stage": "differs", "difference": "agent.width: 4 there, 5 asked for"}
    states = {NAME.format(2, "vast"): other}
    monkeypatch.setattr(module, "ask_states", lambda path, only: states)
    sweep.write_text(SWEEP)
    code, documents, said = launch(sweep, capsys)
    assert (code, documents) == (2, [])
    assert "agent.width: 4 there, 5 asked for); give another `out`" in said
    sweep.write_text(
        SWEEP.replace("cube-single-play", "own").replace('config = "tests', '# "tests')
    )
    monkeypatch.setattr(module, "ask_states", lambda path, only: {})
    code, documents, said = launch(sweep, capsys)
    assert (code, documents) == (2, [])
    assert "got none for own; write one and name it" in said
