"""What a run goes on with, and what it refuses before anything is written."""

import copy
import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.assembly.relabel import commit_labels, plan_relabelling, write_labels
from pipeline.store.action_scale import ActionScale
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.reader import Store
from tests.evaluated import evaluation
from tests.small_runs import CONFIG, QUIET, everything, make_run
from tests.stores import write_store
from trainer.data.table import RowTable, load_table
from trainer.errors import StorageError
from trainer.parallel.mesh_shape import MeshConfig
from trainer.runs.checkpoints import CheckpointReader
from trainer.runs.evaluations import append_evaluation
from trainer.runs.folder import EVALUATIONS_FILE, RunFolder
from trainer.runs.run import Run, describe_run, find_action_outside, read_run
from trainer.training import loop
from trainer.training.session import check_folder


def test_a_step_within_a_call_of_another_size_is_refused(
    whole: Path, store: Store, table: RowTable, tmp_path: Path
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "checkpoints" / "40")
    run = make_run(store, table, updates_per_call=8, log_every=8, checkpoint_every=40)
    with pytest.raises(DataFormatError, match=r"divisor of the step 20, got"):
        loop.train(run, table, RunFolder.open(tmp_path), console=QUIET)


def test_a_run_goes_on_after_its_store_was_given_more_discounts(
    tmp_path: Path,
) -> None:
    root = str(write_store(tmp_path / "store", tasks=1))
    table = load_table(Store(root), task=1, discount=0.99)
    whole = RunFolder.open(tmp_path / "whole")
    run = make_run(Store(root), table)
    loop.train(run, table, whole, console=QUIET)
    out = RunFolder.open(tmp_path / "run")
    loop.train(make_run(Store(root), table, steps=20), table, out, console=QUIET)
    asked = plan_relabelling(root, discounts=(0.9,))
    assert asked is not None
    commit_labels(asked, [write_labels(each) for each in asked.parts])
    later = load_table(Store(root), task=1, discount=0.99)
    assert later.former_fingerprint != table.former_fingerprint
    loop.train(make_run(Store(root), later), later, out, console=QUIET)
    assert CheckpointReader(out).steps() == [20, 40]
    ours, theirs = (
        everything(Path(str(each)), run, table, 40) for each in (out, whole)
    )
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)
    # Other rows are other data still.
    moved = str(write_store(tmp_path / "moved", tasks=1, seed=9))
    other_rows = load_table(Store(moved), task=1, discount=0.99)
    with pytest.raises(DataFormatError, match="was trained on data"):
        loop.train(make_run(Store(moved), other_rows), other_rows, out, console=QUIET)


def test_a_run_of_before_goes_on_by_what_its_data_were_called(
    store: Store, table: RowTable, tmp_path: Path
) -> None:
    former = table.former_fingerprint
    assert former is not None
    assert former != table.fingerprint
    named = table.with_fingerprint(former)
    before, whole = tmp_path / "before", tmp_path / "whole"
    loop.train(make_run(store, named), named, RunFolder.open(whole), console=QUIET)
    half = make_run(store, named, steps=20)
    loop.train(half, named, RunFolder.open(before), console=QUIET)
    run = make_run(store, table)
    loop.train(run, table, RunFolder.open(before), console=QUIET)
    ours, theirs = (everything(each, run, table, 40) for each in (before, whole))
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)
    assert json.loads((before / "run.json").read_text())["fingerprint"] == former
    # So does one whose checkpoints were deleted, but not its evaluations.
    shutil.rmtree(before / "checkpoints")
    append_evaluation(RunFolder.open(before), evaluation(40, 0, 3))
    loop.train(run, table, RunFolder.open(before), console=QUIET)
    for one, other in zip(everything(before, run, table, 40), theirs, strict=True):
        np.testing.assert_array_equal(one, other)
    # A store that has changed since is not the one it was trained on.
    changed = dataclasses.replace(table, former_fingerprint="other")
    with pytest.raises(DataFormatError, match=f"was trained on data {former}"):
        loop.train(run, changed, RunFolder.open(before), console=QUIET)


def test_another_run_is_refused_and_nothing_is_lost(
    whole: Path, store: Store, table: RowTable
) -> None:
    other = make_run(store, table, batch_size=16)
    with pytest.raises(DataFormatError, match=r"trainer\.batch_size: 8 before, 16 now"):
        loop.train(other, table, RunFolder.open(whole), console=QUIET)
    run = make_run(store, table)
    deeper = dataclasses.replace(
        run,
        config=dataclasses.replace(
            run.config, agent=dataclasses.replace(run.config.agent, depth=3)
        ),
    )
    with pytest.raises(DataFormatError, match=r"agent\.depth: 1 before, 3 now"):
        loop.train(deeper, table, RunFolder.open(whole), console=QUIET)
    moved = dataclasses.replace(run, fingerprint="other")
    with pytest.raises(DataFormatError, match="was trained on data"):
        loop.train(moved, table, RunFolder.open(whole), console=QUIET)
    assert json.loads((whole / "run.json").read_text())["fingerprint"] != "other"
    assert CheckpointReader(RunFolder.open(whole)).steps() == [20, 40]


def test_evaluations_of_another_run_are_not_taken_for_this_one_s(
    whole: Path, store: Store, table: RowTable, tmp_path: Path
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "checkpoints")
    folder = RunFolder.open(tmp_path)
    append_evaluation(folder, evaluation(40, 0, 3))
    run = make_run(store, table)
    agent = dataclasses.replace(run.config.agent, learning_rate=0.5)
    other = dataclasses.replace(
        run, config=dataclasses.replace(run.config, agent=agent)
    )
    with pytest.raises(
        DataFormatError, match=rf"{EVALUATIONS_FILE}: .* \(agent\.learning_rate: "
    ):
        loop.train(other, table, folder, console=QUIET)
    assert read_run(folder) == read_run(RunFolder.open(whole))
    # Without evaluations nothing is lost, and a first start may have had a mistake.
    (tmp_path / EVALUATIONS_FILE).unlink()
    assert loop.train(other, table, folder, console=QUIET) == 40
    assert read_run(folder).config == other.config


def test_store_of_another_data_set_is_refused(store: Store, table: RowTable) -> None:
    config = dataclasses.replace(CONFIG, dataset="cube-single-play")
    with pytest.raises(DataFormatError, match="expected a store of cube-single-play"):
        describe_run(config, store, 1, fingerprint=table.fingerprint)


def test_a_run_knows_the_scale_of_its_actions(store: Store, table: RowTable) -> None:
    scale = ActionScale((-2.0,) * 3, (2.0,) * 3)
    other = copy.copy(store)
    other.manifest = dataclasses.replace(store.manifest, action_scale=scale)
    run = make_run(other, table)
    assert run.action_scale == scale
    plain = json.loads(json.dumps(run.to_json()))
    assert Run.from_json(plain, where="run.json") == run
    assert other.manifest.fingerprint() != store.manifest.fingerprint()
    # Runs from before there were scales have none.
    del plain["action_scale"]
    assert Run.from_json(plain, where="run.json").action_scale is None


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("observations", {"shape": (64, 64, 3), "dtype": "uint8"}),
        ("actions", {"shape": ()}),
        ("actions", {"dtype": "int32"}),
    ],
)
def test_what_no_agent_learns_from_is_refused(
    store: Store, table: RowTable, name: str, changes: dict[str, Any]
) -> None:
    fields = store.manifest.fields
    odd = {**fields, name: dataclasses.replace(fields[name], **changes)}
    other = copy.copy(store)
    other.manifest = dataclasses.replace(store.manifest, fields=odd)
    with pytest.raises(DataFormatError, match=r"continuous actions \[rows, A\]"):
        make_run(other, table)


def test_actions_outside_are_told_of_older_stores(store: Store) -> None:
    assert find_action_outside(store) is None
    known = store.manifest.statistics
    reaching = dataclasses.replace(known["actions"], minimum=(-1.0, -3.0, -1.0))
    other = copy.copy(store)
    other.manifest = dataclasses.replace(
        store.manifest, statistics={**known, "actions": reaching}
    )
    assert find_action_outside(other) == -3


def test_a_mesh_that_is_refused_makes_no_folder(
    store: Store, table: RowTable, tmp_path: Path
) -> None:
    run = make_run(store, table)
    wrong = dataclasses.replace(
        run, config=dataclasses.replace(run.config, mesh=MeshConfig(data=3))
    )
    out = tmp_path / "run"
    with pytest.raises(ValueError, match="8 devices there are, got seed=1, data=3"):
        loop.train(wrong, table, RunFolder.open(out), console=QUIET)
    assert not out.exists()


def test_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DataFormatError, match="not empty and holds no run"):
        check_folder(RunFolder.open(tmp_path))


@pytest.mark.parametrize("name", ["thesis.tex", "thesis.tex/run"])
def test_a_file_is_no_folder_of_a_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match=r"thesis\.tex is a file; give another --out"):
        check_folder(RunFolder.open(tmp_path / name))


def test_folder_of_a_start_that_was_cut_short_is_taken(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "run.json.__lock").touch()
    check_folder(RunFolder.open(tmp_path))
    (tmp_path / "checkpoints" / "mine").touch()
    with pytest.raises(DataFormatError, match="not empty and holds no run"):
        check_folder(RunFolder.open(tmp_path))


def test_a_checkpoint_that_cannot_be_read_is_named(
    whole: Path, store: Store, table: RowTable, tmp_path: Path
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    run = make_run(store, table, steps=60)
    said = r"checkpoints/40: cannot be read .*delete that folder to go on from step 20"
    for item in ("data", "run"):  # The one is read last, the other first.
        file = tmp_path / "checkpoints" / "40" / item / "metadata"
        file.write_text("")
        with pytest.raises(StorageError, match=said):
            loop.train(run, table, RunFolder.open(tmp_path), console=QUIET)
    shutil.rmtree(tmp_path / "checkpoints" / "40")
    assert loop.train(run, table, RunFolder.open(tmp_path), console=QUIET) == 60
