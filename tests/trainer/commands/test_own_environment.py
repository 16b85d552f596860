"""A user's own environment and data are trained on, evaluated and reported."""

import json
import sys
from pathlib import Path

import pytest

from pipeline.store.reader import Store
from tests.stores import write_store
from trainer.cli import main
from trainer.runs.evaluations import read_evaluations
from trainer.runs.folder import EVALUATIONS_FILE, RunFolder
from trainer.runs.run import read_run

LINE = "tests.own_environment:Line-v0"
TOML = """
dataset = "own"
[agent]
name = "iql"
width = 8
depth = 1
[trainer]
steps = 20
batch_size = 8
updates_per_call = 5
log_every = 10
checkpoint_every = 20
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of a user's own data, and a configuration for it."""
    folder = tmp_path_factory.mktemp("own")
    write_store(folder / "store", dataset="own", S=2, A=1, tasks=1)
    (folder / "own.toml").write_text(TOML)
    return folder


def train(data: Path, out: Path, *options: str) -> int:
    store = ("--store", str(data / "store"), "--task", "1", "--out", str(out))
    return main(["train", str(data / "own.toml"), *store, *options])


@pytest.fixture(scope="module")
def trained(data: Path) -> Path:
    """A run without a configuration: of the agent's defaults, but small."""
    out = data / "run"
    small = ("--agent.width", "8", "--agent.depth", "1", "--trainer.batch-size", "8")
    few = [f"--trainer.{name}=20" for name in ("steps", "log-every")]
    few += ["--trainer.checkpoint-every=20", "--trainer.updates-per-call=5"]
    train = ["train", "--store", str(data / "store"), "--out", str(out)]
    assert main([*train, "--agent", "iql", "--environment", LINE, *small, *few]) == 0
    return out


def test_from_training_to_a_report(
    trained: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    run = read_run(RunFolder.open(trained))
    assert (run.config.agent.name, run.config.agent.width) == ("iql", 8)
    task = run.task
    assert (task.environment_id, task.recipe) == ("Line-v0", "stored")
    assert "own_environment" not in (trained / "run.json").read_text()
    few = ("--episodes", "3", "--workers", "1", "--environments", "3")
    scores = ("--reference-scores", "-40", "0")
    evaluate = ["evaluate", str(trained), *few, *scores, "--environment", LINE]
    assert main(evaluate) == 0
    shown = capsys.readouterr().out
    assert "normalised" in shown
    line = json.loads((trained / EVALUATIONS_FILE).read_text())
    assert (line["environment_id"], line["successes"]) == ("Line-v0", None)
    assert line["environment_arguments"] == {}
    assert line["lengths"] == [20] * 3
    low, high = line["return_interval"]
    assert low < line["return_mean"] < high < 0
    assert line["normalised_score"] == pytest.approx(100 + 2.5 * line["return_mean"])
    # A repetition plays nothing; other arguments make another environment.
    assert main(evaluate) == 0
    assert main([*evaluate, "--environment-arguments", "size=20"]) == 0
    played = read_evaluations(RunFolder.open(trained))
    assert [each.environment for each in played] == ["Line-v0", 'Line-v0 {"size": 20}']
    assert main(["report", str(trained), "--out", str(tmp_path / "report")]) == 0
    assert "success not reported: own task 1, return -" in capsys.readouterr().out
    markdown = (tmp_path / "report" / "report.md").read_text()
    # The paper has no number for any run, so that its columns are left out.
    assert "| run | n/a: success not reported | — | own 1 | -" in markdown
    assert 'in {"size": 20}' in markdown


def test_nothing_is_imported_for_what_stands_in_a_run(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # In a process of its own, because this one has imported the module for other tests.
    assert main(["evaluate", str(trained), "--episodes", "1", "--again"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert "name the module that does: --environment MODULE:Line-v0" in said[-1]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (("tests.nowhere:Line-v0",), "tests.nowhere: cannot be imported"),
        (("tests.own_environment:Bare-v0",), "expected an environment with an obs"),
        (("tests.own_environment:Endless-v0",), "max_episode_steps=1000"),
        (("Pendulum-v1",), "Pendulum-v1: expected observations of 2 numbers, as in"),
        (("a:b:c",), "--environment: expected ID or MODULE:ID"),
    ],
)
def test_environments_that_do_not_fit_are_refused_before_training(
    data: Path,
    tmp_path: Path,
    environment: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train(data, tmp_path / "run", "--environment", *environment) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert message in said[0]
    assert not (tmp_path / "run").exists()


def test_options_that_exclude_each_other(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, message in (
        (("--environment-arguments", "size=3"), "expected --environment beside them"),
        (("--environment", LINE, "--tasks", "1", "2"), "--tasks: expected none with"),
    ):
        assert main(["evaluate", str(trained), *options]) == 2
        assert message in capsys.readouterr().err


def test_a_store_whose_environment_cannot_be_made_is_trained_on(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The store names an environment with S = A = 2, which is compared by default.
    assert Store(str(data / "store")).manifest.environment_id == "pointmaze-medium-v0"
    assert train(data, tmp_path / "run") == 2
    assert "expected actions of 1 number, as in the data" in capsys.readouterr().err
    unheard = tmp_path / "store"
    write_store(unheard, dataset="own", S=2, A=1, tasks=1)
    text = (unheard / "dataset.json").read_text()
    assert "own_environment" not in sys.argv  # Nothing else can register it.
    from pipeline.assembly.environment import set_environment
    from pipeline.domains.datasets import TaskEnvironment

    assert "Unheard" not in text
    set_environment(Store(str(unheard)), TaskEnvironment("Unheard-v0"))
    store = ("--store", str(unheard), "--task", "1", "--out", str(tmp_path / "run"))
    assert main(["train", str(data / "own.toml"), *store]) == 0
    assert "spaces of Unheard-v0 not compared" in capsys.readouterr().err
