import dataclasses
from pathlib import Path

import numpy as np
import pytest

from pipeline.assembly import relabel
from pipeline.assembly.commit import commit_store
from pipeline.assembly.relabel import commit_labels, plan_relabelling, write_labels
from pipeline.beam import pipelines, runners
from pipeline.cli import main
from pipeline.inspection.verify import verify_store
from pipeline.store import files
from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from pipeline.store.writer import ColumnsWriter
from tests.parts import write_alone
from trainer.data.table import load_table

LENGTHS = (5, 5, 7, 4, 1, 6)


def write(plan):
    return commit_store(plan, write_alone(*plan.parts))


@pytest.fixture
def plan(make_npz, make_plan, tasks):
    plan = make_plan(
        make_npz(LENGTHS),
        val=make_npz((3, 4), name="v.npz"),
        tasks=tasks[:1],
        discounts=(0.9,),
    )
    write(plan)
    return plan


def arrays_of(tree):
    return {n: v for n, v in tree.items() if "labels-" not in n and n[0] == "p"}


def labels_of(store, split):
    names = ("rewards", "masks", "returns/0.5", "returns/0.9")
    return [store.read(name, split=split) for name in names]


def test_what_is_added_is_what_sharding_would_have_written(
    plan, make_plan, make_npz, tasks, read_tree
):
    before = read_tree(plan.root)
    asked = plan_relabelling(plan.root, tasks=tasks, discounts=(0.5,))
    options = runners.make_options(1)
    runners.run(lambda root: pipelines.define_relabelling(root, asked), options)
    whole = make_plan(
        make_npz(LENGTHS),
        val=make_npz((3, 4), name="v.npz"),
        out="whole",
        discounts=(0.5, 0.9),
    )
    write(whole)
    store, expected = Store(plan.root), Store(whole.root)
    assert store.manifest.tasks == expected.manifest.tasks
    assert store.manifest.fields == expected.manifest.fields
    assert store.manifest.statistics == expected.manifest.statistics
    for split in ("train", "val"):
        pairs = zip(labels_of(store, split), labels_of(expected, split), strict=True)
        for ours, theirs in pairs:
            np.testing.assert_array_equal(ours, theirs)
    # No byte that was there is touched, but for the manifest.
    after = read_tree(plan.root)
    assert arrays_of(after) == arrays_of(before)
    assert verify_store(store, deep=True) == []
    assert plan_relabelling(plan.root, tasks=tasks, discounts=(0.5, 0.9)) is None


def test_readers_see_the_old_labels_until_the_commit(plan, tasks):
    old = Store(plan.root)
    fingerprint = old.manifest.fingerprint()
    asked = plan_relabelling(plan.root, tasks=tasks, discounts=(0.5,))
    parts = [write_labels(each) for each in asked.parts]
    assert Store(plan.root).manifest.fingerprint() == fingerprint
    assert verify_store(Store(plan.root), deep=True) == []
    commit_labels(asked, parts)
    assert Store(plan.root).manifest.fingerprint() != fingerprint
    # Whoever has opened it before reads on.
    assert old.read("rewards").shape == (28, 1)
    assert old.read("returns/0.9").shape == (28, 1)


def test_tasks_are_added_with_the_timing_of_the_others(make_plan, make_npz, tasks):
    first = dataclasses.replace(tasks[0], success_timing="post")
    plan = make_plan(make_npz(LENGTHS), tasks=(first,))
    write(plan)
    assert main(["relabel", plan.root, "--tasks", "2"]) == 0
    store = Store(plan.root)
    assert [task.success_timing for task in store.manifest.tasks] == ["post", "post"]
    assert verify_store(store, deep=True) == []


def test_what_a_run_reads_of_one_task_is_the_same_beside_others(plan, tasks):
    before = load_table(Store(plan.root), task=1, discount=0.9)
    asked = plan_relabelling(plan.root, tasks=tasks, discounts=(0.5,))
    commit_labels(asked, [write_labels(each) for each in asked.parts])
    after, other = (
        load_table(Store(plan.root), task=task, discount=0.9) for task in (1, 2)
    )
    assert after.fingerprint == before.fingerprint != other.fingerprint
    assert after.former_fingerprint != before.former_fingerprint


def test_interrupted_and_repeated_it_gives_the_same_bytes(
    plan, tasks, read_tree, monkeypatch, make_npz, make_plan
):
    asked = plan_relabelling(plan.root, tasks=tasks)
    write_labels(asked.parts[0])

    def die(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ColumnsWriter, "finish_columns", die)
        with pytest.raises(KeyboardInterrupt):
            write_labels(asked.parts[1])
    first = read_tree(plan.root)
    with monkeypatch.context() as patch:
        patch.setattr(relabel, "label_episodes", die)
        write_labels(asked.parts[0])  # is there: not done again
    assert read_tree(plan.root) == first
    again = plan_relabelling(plan.root, tasks=tasks)
    commit_labels(again, [write_labels(each) for each in again.parts])
    once = read_tree(plan.root)
    commit_labels(again, [write_labels(each) for each in again.parts])
    assert read_tree(plan.root) == once
    assert verify_store(Store(plan.root), deep=True) == []


def test_files_of_others_in_the_folder_of_new_labels_stay(plan, tasks, read_tree):
    asked = plan_relabelling(plan.root, tasks=tasks)
    folder = Path(plan.root, asked.parts[0].part.folder, asked.parts[0].labels)
    (folder / "rewards").mkdir(parents=True)
    for name in ("notes.txt", "rewards/notes.txt"):
        (folder / name).write_bytes(b"mine")
    before = read_tree(plan.root)
    commit_labels(asked, [write_labels(each) for each in asked.parts])
    after = read_tree(plan.root)
    mine = {name for name in before if before[name] == b"mine"}
    assert mine == {name for name in after if after[name] == b"mine"}
    assert len(mine) == 2
    assert before.keys() < after.keys()


def test_of_two_at_once_one_wins_and_the_other_says_so(plan, tasks):
    one = plan_relabelling(plan.root, tasks=tasks[:2])
    two = plan_relabelling(plan.root, tasks=tasks)
    lost = [write_labels(each) for each in one.parts]
    commit_labels(two, [write_labels(each) for each in two.parts])
    with pytest.raises(DataFormatError, match="another run has committed"):
        commit_labels(one, lost)
    assert len(Store(plan.root).manifest.tasks) == 3


def test_a_missing_part_is_not_committed(plan, tasks):
    asked = plan_relabelling(plan.root, tasks=tasks)
    with pytest.raises(DataFormatError, match="expected labels of 3 parts"):
        commit_labels(asked, [write_labels(asked.parts[0])])


def test_the_command_line_adds_discounts_and_tasks(plan, tmp_path, capsys):
    assert main(["relabel", plan.root]) == 2
    assert main(["relabel", plan.root, "--discounts", "1.5"]) == 2
    assert main(["relabel", plan.root, "--tasks", "9"]) == 2
    assert capsys.readouterr().err.count("\n") == 3
    assert main(["relabel", plan.root, "--tasks", "2", "--discounts", "0.5"]) == 0
    assert "now 2 tasks, discounts 0.5, 0.9" in capsys.readouterr().out
    assert main(["verify", plan.root, "--deep"]) == 0
    assert main(["relabel", plan.root, "--tasks", "2"]) == 0
    assert "holds these labels already" in capsys.readouterr().out
    npz = tmp_path / "out.npz"
    assert main(["export", plan.root, "--npz", str(npz)]) == 0
    assert np.load(tmp_path / "out-val.npz")["terminals"].sum() == 2


def test_what_was_sharded_counts_as_there_still(plan, make_npz, make_plan, tasks):
    asked = plan_relabelling(plan.root, tasks=tasks)
    commit_labels(asked, [write_labels(each) for each in asked.parts])
    value = Store(plan.root).manifest
    assert [part.plan for part in value.parts] == [p.digest() for p in plan.parts]
    assert dataclasses.replace(value.parts[0], labels="") != value.parts[0]


def test_workers_do_not_read_the_manifest_of_the_whole_store(plan, tasks, monkeypatch):
    """At 1,000 parts it has 12 MB, which every part would read and parse again."""
    asked = plan_relabelling(plan.root, tasks=tasks)
    reads, read = [], files.read

    def count(root, name):
        reads.append(name)
        return read(root, name)

    monkeypatch.setattr(files, "read", count)
    renewed = [write_labels(part) for part in asked.parts]
    assert len(renewed) > 2
    assert "dataset.json" not in reads
    monkeypatch.undo()
    assert commit_labels(asked, renewed) == commit_labels(asked, renewed)
