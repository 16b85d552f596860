"""Runs, stores and sweeps of strangers: nothing in their files is imported."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import cli as pipeline_cli
from pipeline.store import files, manifest, manifest_json
from pipeline.store.errors import UsageError
from pipeline.store.reader import Store
from tests.runs import FakeTrainer, make_run
from tests.stores import write_store
from trainer import cli as trainer_cli
from trainer.runs.folder import RunFolder
from trainer.runs.run import write_run
from trainer.sweep.cells import make_cells, read_sweep

MODULE = "hostile_module"
ID = f"{MODULE}:Hostile-v0"
KWARGS = (
    {"xml_file": "/etc/passwd"},
    {"xml_file": "model.xml"},
    {"env_id": ID},
    {"nested": {"xml_file": "model"}},
    {"listed": ["model"]},
)


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module that leaves a mark when it is imported."""
    (tmp_path / f"{MODULE}.py").write_text(
        "from pathlib import Path\n"
        f"Path({str(tmp_path / 'imported')!r}).write_text('')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # Of processes that act.
    return tmp_path


def sprung(trap: Path) -> bool:
    return MODULE in sys.modules or (trap / "imported").exists()


def hostile_run(folder: Path, **task: Any) -> Path:
    run = make_run()
    task = {"environment_id": ID, **task}
    write_run(
        RunFolder.open(folder),
        dataclasses.replace(run, task=dataclasses.replace(run.task, **task)),
    )
    return folder


def hostile_store(root: Path, **task: Any) -> Path:
    """Writes a sealed store that names the module in every field of an environment."""
    write_store(root)
    value = Store(str(root)).manifest
    task = {"environment_id": ID, **task}
    value = dataclasses.replace(
        value,
        environment_id=task["environment_id"],
        tasks=tuple(dataclasses.replace(each, **task) for each in value.tasks),
    )
    files.write(
        str(root), manifest.DATASET_MANIFEST, manifest_json.to_json(value).encode()
    )
    return root


def refused(main: Any, arguments: Sequence[str], capsys: Any) -> str:
    assert main(list(map(str, arguments))) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1, said
    return said[0]


def test_the_trap_works(trap: Path) -> None:
    make = f"import gymnasium; gymnasium.make({ID!r})"
    subprocess.run([sys.executable, "-c", make], capture_output=True, cwd=trap)
    assert sprung(trap)


@pytest.mark.parametrize(
    "command",
    [
        ("evaluate", "RUN", "--episodes", "1"),
        ("evaluate", "RUN", "--tasks", "1", "2"),
        ("subgoals", "RUN", "--store", "STORE"),
        ("report", "RUN", "--out", "out"),
    ],
)
def test_a_hostile_run_is_refused_where_it_is_read(
    trap: Path, command: Sequence[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run, store = hostile_run(trap / "run"), write_store(trap / "store")
    named = {"RUN": str(run), "STORE": str(store)}
    arguments = [named.get(each, each) for each in command]
    said = refused(trainer_cli.main, arguments, capsys)
    assert "run.json: task.environment_id: " in said
    assert not sprung(trap)


@pytest.mark.parametrize("kwargs", KWARGS, ids=str)
def test_arguments_of_environments_are_numbers_and_words(
    trap: Path, kwargs: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    changed = {"environment_id": "Ant-v5", "environment_kwargs": kwargs}
    run = hostile_run(trap / "run", **changed)
    said = refused(trainer_cli.main, ("evaluate", run), capsys)
    assert "run.json: task.environment_kwargs" in said
    store = hostile_store(trap / "store", **changed)
    said = refused(pipeline_cli.main, ("inspect", store), capsys)
    assert "tasks.0.environment_kwargs" in said


def test_a_hostile_checkpoint_is_refused(
    trap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run()
    hostile = dataclasses.replace(
        run, task=dataclasses.replace(run.task, environment_id=ID)
    )
    trainer = FakeTrainer(trap / "run", run=hostile)
    trainer.commit(10)
    trainer.close()
    arguments = ("checkpoint", "inspect", trap / "run")
    assert "environment_id" in refused(trainer_cli.main, arguments, capsys)
    # Handlers that its metadata name are not looked for either.
    write_run(RunFolder.open(trap / "run"), run)
    metadata = trap / "run/checkpoints/10/_CHECKPOINT_METADATA"
    value = json.loads(metadata.read_text())
    assert "params" in value["item_handlers"]
    value["item_handlers"] = dict.fromkeys(value["item_handlers"], f"{MODULE}.Handler")
    metadata.write_text(json.dumps(value))
    refused(trainer_cli.main, arguments, capsys)
    assert not sprung(trap)


@pytest.mark.parametrize("command", ["inspect", "verify", "relabel"])
def test_a_hostile_store_is_refused_where_it_is_read(
    trap: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store = hostile_store(trap / "store")
    more = ("--discounts", "0.9") if command == "relabel" else ()
    said = refused(pipeline_cli.main, (command, store, *more), capsys)
    assert "environment_id" in said
    assert not sprung(trap)


def test_a_hostile_cell_is_reported_and_not_run(
    trap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep, root = trap / "sweep.toml", Path(__file__).parents[2]
    sweep.write_text(
        f'out = "out"\ndatasets = ["pointmaze-medium-navigate"]\n'
        f'config = "{root}/configs/{{dataset}}.toml"\ntasks = [1]\n[methods.vast]\n'
    )
    (cell,) = make_cells(read_sweep(sweep))
    hostile_run(Path(str(cell.folder)))
    # Other cells could go on; there are none here.
    assert trainer_cli.main(["sweep", str(sweep)]) == 1
    said = capsys.readouterr()
    assert "environment_id" in said.out + said.err
    report = ("report", trap / "out/*", "--out", trap / "report")
    assert "environment_id" in refused(trainer_cli.main, report, capsys)
    assert not sprung(trap)


def test_names_in_a_sweep_select_no_code(
    trap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep, root = trap / "sweep.toml", Path(__file__).parents[2]
    for method in (f"{MODULE}:Agent", MODULE, "../vast"):
        sweep.write_text(
            f'out = "out"\ndatasets = ["pointmaze-medium-navigate"]\n'
            f'config = "{root}/configs/{{dataset}}.toml"\n[methods."{method}"]\n'
        )
        said = refused(trainer_cli.main, ("sweep", sweep, "--dry-run"), capsys)
        assert "expected one of vast" in said
    assert not sprung(trap)


def test_environments_are_made_of_what_is_registered(trap: Path) -> None:
    from pipeline.domains.environments import make_wrapped_environment

    for environment_id, kwargs, message in (
        (ID, {}, "nothing is imported"),
        ("Unheard-v0", {}, "expected an environment that is registered"),
        ("nowhere/Unheard-v0", {}, "expected an environment that is registered"),
        ("pointmaze-medium-v0", {"unheard": 1}, "cannot be made with the arguments"),
    ):
        with pytest.raises(UsageError, match=message):
            make_wrapped_environment(environment_id, **kwargs)
    assert not sprung(trap)


def test_no_store_is_written_that_names_a_module(
    trap: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"observations": np.zeros((6, 2)), "actions": np.zeros((6, 2))}
    ends = np.array([0, 0, 1, 0, 0, 1])
    np.savez(trap / "own.npz", **rows, rewards=np.zeros(6), masks=1 - ends,
             terminals=ends)  # fmt: skip
    arguments = (
        *("shard", trap / "own.npz", "--dataset", "own", "--source", "npz"),
        *("--out", trap / "store", "--environment"),
    )
    assert "sharding imports no module" in refused(
        pipeline_cli.main, (*arguments, ID), capsys
    )
    assert not (trap / "store").exists()
    assert pipeline_cli.main([*map(str, arguments), "Hopper-v5"]) == 0
    assert Store(str(trap / "store")).manifest.environment_id == "Hopper-v5"
