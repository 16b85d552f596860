"""Checkpoints are listed and exported: compared with what was saved."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from pipeline import front_door
from pipeline.output import Output
from pipeline.store.errors import DataFormatError
from tests.runs import FakeTrainer, make_run
from trainer import api
from trainer.cli import PROGRAM
from trainer.commands.checkpoint import Checkpoint, ExportCheckpoint, InspectCheckpoint
from trainer.nn.networks import Params
from trainer.runs import export
from trainer.runs.checkpoints import CheckpointReader
from trainer.runs.folder import RunFolder
from trainer.runs.run import Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of seeds 3 and 4 with two checkpoints."""
    out = tmp_path_factory.mktemp("runs") / "run"
    trainer = FakeTrainer(out)
    trainer.commit(10)
    trainer.commit(20)
    trainer.close()
    return out


@pytest.fixture(scope="module")
def saved(folder: Path) -> Params:
    return CheckpointReader(RunFolder.open(folder)).restore_params(
        20, make_run().agent(), seeds=2
    )


def by_name(params: Params) -> dict[str, np.ndarray]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }


def test_inspect_lists_everything_saved(
    folder: Path, saved: Params, capsys: pytest.CaptureFixture[str]
) -> None:
    assert InspectCheckpoint(str(folder), json=True).execute(Output.standard()) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["steps"], printed["step"]) == ([10, 20], 20)
    assert Run.from_json(printed["run"], where="printed") == make_run()
    arrays = {array["path"]: array for array in printed["arrays"]}
    params = {
        "params/" + name.replace(".", "/"): value
        for name, value in by_name(saved).items()
    }
    assert len(params) > 20
    for path, value in params.items():
        assert arrays[path]["shape"] == list(value.shape), path
        assert arrays[path]["dtype"] == "float32"
        assert arrays[path]["size_bytes"] == value.nbytes
    # The rest is Adam's two moments of each array, targets, steps and keys.
    train = [path for path in arrays if path.startswith("train/")]
    assert len(train) == len(arrays) - len(params) > 2 * len(params)
    assert arrays["train/keys"]["dtype"] == "uint32"
    assert printed["size_bytes"] == sum(
        array["size_bytes"] for array in arrays.values()
    )


def test_inspect_prints_tables(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    assert InspectCheckpoint(str(folder), step=10).execute(Output.standard()) == 0
    printed = capsys.readouterr().out
    assert "steps 10, 20; this is step 10" in printed
    assert "vast on pointmaze-medium-navigate task 1" in printed
    assert "params/critic/hidden_0/kernel" in printed
    assert "2 × 2 × 4 × 8" in printed  # Seeds, twins, s and a, units.


def test_inspect_reads_no_array(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("an array was asked for")

    monkeypatch.setattr(CheckpointReader, "restore_params", refuse)
    monkeypatch.setattr(CheckpointReader, "restore", refuse)
    assert export.inspect(RunFolder.open(folder)).step == 20


def test_exported_parameters_are_those_saved(
    folder: Path, saved: Params, tmp_path: Path
) -> None:
    file = tmp_path / "all.safetensors"
    assert ExportCheckpoint(str(folder), file, step=20).execute(Output.silent()) == 0
    expected = by_name(saved)
    loaded = load_file(file)
    assert loaded.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(loaded[name], value)
    with safe_open(file, "np") as opened:
        metadata = opened.metadata()
    assert metadata["step"] == "20"
    assert json.loads(metadata["seeds"]) == [3, 4]
    assert Run.from_json(json.loads(metadata["run"]), where="file") == make_run()


def test_one_seed_is_exported(folder: Path, saved: Params, tmp_path: Path) -> None:
    file = tmp_path / "one.safetensors"
    exported, count = export.export(RunFolder.open(folder), file, seed=4)
    expected = by_name(jax.tree.map(lambda leaf: leaf[1], saved))
    assert (exported.step, exported.seeds, count) == (20, (4,), len(expected))
    other = by_name(jax.tree.map(lambda leaf: leaf[0], saved))
    for name, value in load_file(file).items():
        np.testing.assert_array_equal(value, expected[name])
        assert (value != other[name]).any()


def test_an_exported_file_needs_no_jax(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "policy.safetensors"
    export.export(RunFolder.open(folder), file, seed=3)
    script = (
        "import sys; from safetensors.numpy import load_file; "
        f"print(len(load_file({str(file)!r})), 'jax' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    count, jax_loaded = done.stdout.split()
    assert int(count) > 20
    assert jax_loaded == "False"


def test_both_commands_are_parsed() -> None:
    parsed, _ = front_door.parse(PROGRAM, ["checkpoint", "inspect", "RUN", "--json"])
    assert parsed == Checkpoint(InspectCheckpoint("RUN", json=True))
    line = "checkpoint export gs://b/run --step 20 --out x.safetensors --seed 4"
    parsed, _ = front_door.parse(PROGRAM, line.split())
    export_ = ExportCheckpoint("gs://b/run", Path("x.safetensors"), step=20, seed=4)
    assert parsed == Checkpoint(export_)
    # `export` needs a file to write, and `inspect` has no seed: it lists all of them.
    for wrong in ("checkpoint export RUN", "checkpoint inspect RUN --seed 3"):
        with pytest.raises(SystemExit) as ended:
            front_door.parse(PROGRAM, wrong.split())
        assert ended.value.code == 2


@pytest.mark.parametrize("form", ["safetensors", "stablehlo"])
def test_half_an_export_is_never_left(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Any
) -> None:
    policy = SimpleNamespace(export=lambda: bytes(5000))
    monkeypatch.setattr(api, "load_policy", lambda *_, **__: policy)
    file = tmp_path / f"x.{form}"
    command = ExportCheckpoint(str(folder), file, format=form)
    # A limit on the size of files stands for a full disk.
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match=rf"{file.name}: could not be written \("):
            command.execute(Output.silent())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_refused(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    with pytest.raises(DataFormatError, match="step to be one of 10, 20, got 15"):
        export.export(RunFolder.open(folder), file, step=15)
    with pytest.raises(DataFormatError, match="seed to be one of 3, 4, got 0"):
        export.export(RunFolder.open(folder), file, seed=0)
    with pytest.raises(DataFormatError, match="nowhere: expected a folder, found none"):
        export.export(RunFolder.open(folder), tmp_path / "nowhere" / "x.safetensors")
    with pytest.raises(DataFormatError, match="expected checkpoints of a run"):
        export.inspect(RunFolder.open(tmp_path))
    assert not file.exists()
    file.write_text("precious")
    with pytest.raises(DataFormatError, match="exists; give another --out"):
        export.export(RunFolder.open(folder), file)
    assert file.read_text() == "precious"
