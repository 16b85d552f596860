"""``set-environment``: changes of the manifest, and environments that are refused."""

import dataclasses

import pytest

from pipeline.assembly.environment import set_environment
from pipeline.cli import main
from pipeline.domains.datasets import TaskEnvironment
from pipeline.store import files, manifest, manifest_json
from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from tests.stores import version_1, write_store
from trainer.data.fingerprint import fingerprint_rows, read_labels

LINE = "tests.own_environment:Line-v0"


@pytest.fixture
def store(tmp_path):
    return str(write_store(tmp_path / "store", dataset="own", S=2, A=1, tasks=1))


def set_to(capsys, *arguments):
    code = main(["set-environment", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def read_by(store):
    labels = read_labels(store, "returns/0.99", 0, split="train")
    return fingerprint_rows(store, labels, split="train", task=1)


def test_the_manifest_alone_changes(store, capsys):
    before = Store(store)
    files_before = sorted(files.list_names(store, "parts"))
    code, shown, said = set_to(
        capsys,
        *(store, LINE, "--environment-arguments", "size=12"),
        *("--reference-scores", "-100", "0", "--success-timing", "pre"),
    )
    assert (code, said) == (0, "")
    assert shown == f"{store}: evaluated in Line-v0, reference scores -100 and 0\n"
    after = Store(store)
    (task,) = after.manifest.tasks
    # The module that registers the environment is not stored.
    assert (after.manifest.environment_id, task.environment_id) == ("Line-v0",) * 2
    assert task.environment_kwargs == {"size": 12}
    assert after.manifest.reference_scores == (-100.0, 0.0)
    assert b"own_environment" not in after.content.data
    step = after.manifest.history[-1]
    assert step.command == (
        "set-environment Line-v0 --environment-arguments size=12 "
        "--reference-scores -100.0 0.0 --success-timing pre"
    )
    assert read_by(after) == read_by(before)
    assert sorted(files.list_names(store, "parts")) == files_before
    assert set_to(capsys, store, LINE, "--environment-arguments", "size=12")[:2] == (
        0,
        f"{store}: nothing to change\n",
    )
    assert main(["inspect", store]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "evaluated in Line-v0 size=12; reference scores -100 and 0" in shown


def test_actions_out_of_the_reach_of_policies_are_said(store, capsys):
    wide = (store, LINE, "--environment-arguments", "reach=5")
    code, _, said = set_to(capsys, *wide)
    assert code == 0
    assert said.startswith("warning: Line-v0 takes actions[0] from -5 to 5, and polic")
    assert "act from -1 to 1: they reach no others" in said
    assert "--action-bounds -5 5" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected an environment, --reference-scores or --success-timing"),
        (("--environment-arguments", "a=1"), "got none"),
        (
            ("--reference-scores", "0", "1", "--environment-arguments", "a=1"),
            "expected an environment, too",
        ),
        (("--reference-scores", "2", "1"), "a larger one that counts as 100, got 2"),
        (("tests.nowhere:Line-v0",), "cannot be imported"),
        (("tests.own_environment:Bare-v0",), "expected an environment with an observ"),
        (("tests.own_environment:Endless-v0",), "with a time limit, got one without"),
        (
            ("Pendulum-v1",),
            "Pendulum-v1: expected observations of 2 numbers, as in the",
        ),
        ((LINE, "--environment-arguments", "size=0.001"), "expected data within them"),
        (
            (LINE, "--environment-arguments", "colour=1"),
            "cannot be made with the argum",
        ),
    ],
)
def test_what_is_refused_is_one_line(store, capsys, arguments, message):
    before = Store(store).content.data
    code, shown, said = set_to(capsys, store, *arguments)
    assert (code, shown) == (2, "")
    assert message in said
    assert said.count("\n") == 1
    assert Store(store).content.data == before


def test_whoever_was_quicker_is_not_overwritten(store):
    looked_at = Store(store)
    assert set_environment(Store(store), TaskEnvironment("One-v0")) is not None
    with pytest.raises(DataFormatError, match="meanwhile; nothing was overwritten"):
        set_environment(looked_at, TaskEnvironment("Other-v0"))
    assert Store(store).manifest.environment_id == "One-v0"


def test_tasks_of_ogbench_keep_their_environments(store):
    value = Store(store).manifest
    tasks = (dataclasses.replace(value.tasks[0], recipe="cube"),)
    text = manifest_json.to_json(dataclasses.replace(value, tasks=tasks))
    files.write(store, manifest.DATASET_MANIFEST, text.encode())
    with pytest.raises(DataFormatError, match="expected a store whose rewards came"):
        set_environment(Store(store), TaskEnvironment("Line-v0"))


def test_a_store_of_version_1_keeps_no_scores(tmp_path):
    with version_1():
        root = str(write_store(tmp_path / "old", dataset="own"))
    with pytest.raises(DataFormatError, match="`upgrade` it first"):
        set_environment(Store(root), None, reference_scores=(0.0, 1.0))
    changed = set_environment(Store(root), TaskEnvironment("Line-v0"))
    assert changed is not None
    assert (changed.format_version, changed.history) == (1, ())
