import os

import numpy as np
import pytest

from pipeline.assembly.append import claim, commit_append, plan_append
from pipeline.assembly.commit import commit_store, find_committed
from pipeline.assembly.plan import PlanOptions, describe_inputs
from pipeline.cli import main
from pipeline.inspection.verify import verify_store
from pipeline.sources.ogbench_npz import OgbenchNpz
from pipeline.store import files
from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from tests.parts import write_alone

LENGTHS = (5, 5, 7, 4, 1, 6)


@pytest.fixture
def plan(make_npz, make_plan):
    plan = make_plan(make_npz(LENGTHS))
    commit_store(plan, write_alone(*plan.parts))
    return plan


def planned(root, *paths, split="train"):
    sources = describe_inputs([(split, OgbenchNpz(path)) for path in paths])
    return plan_append(root, sources, PlanOptions(part_rows=12))


def add(asked):
    with claim(asked) as claimed:
        parts = write_alone(*asked.added.parts)
        return commit_append(asked, parts, claimed)


def test_new_parts_follow_the_old_ones(plan, make_npz, make_rows, read_tree):
    before = read_tree(plan.root)
    more = make_npz((6, 9, 9), name="more.npz", seed=5)
    add(planned(plan.root, more))
    store = Store(plan.root)
    assert [part.index for part in store.manifest.parts] == [0, 1, 2, 3]
    expected = [make_rows(LENGTHS), make_rows((6, 9, 9), 5)]
    for name in ("observations", "qpos"):
        np.testing.assert_array_equal(
            store.read(name), np.concatenate([rows[name] for rows in expected])
        )
    assert store.manifest.statistics["observations"].count == 28 + 24
    assert store.episodes().lengths.tolist() == [*LENGTHS, 6, 9, 9]
    assert verify_store(store, deep=True) == []
    after = read_tree(plan.root)
    assert {n: after[n] for n in before if n != "dataset.json"} == {
        n: v for n, v in before.items() if n != "dataset.json"
    }
    assert "append.json" not in after
    # The command that made the store still finds it finished.
    assert find_committed(plan) is not None


def test_repeating_adds_nothing(plan, make_npz, read_tree):
    more = make_npz((6, 9), name="more.npz", seed=5)
    add(planned(plan.root, more))
    once = read_tree(plan.root)
    assert planned(plan.root, more) is None
    other = make_npz((4,), name="other.npz", seed=6)
    both = planned(plan.root, more, other)
    assert [part.origin.name for part in both.added.parts] == ["other.npz"]
    assert read_tree(plan.root) == once


def test_interrupted_and_repeated_it_gives_the_same_bytes(
    plan, make_npz, make_plan, read_tree
):
    more = make_npz((6, 9, 9), name="more.npz", seed=5)
    asked = planned(plan.root, more)
    with claim(asked):
        write_alone(asked.added.parts[1])
        assert len(Store(plan.root).manifest.parts) == 2  # readers see nothing of it
        other = planned(plan.root, make_npz((4,), name="other.npz", seed=6))
        begun = "another append has been begun here and not finished, by process"
        with pytest.raises(DataFormatError, match=begun), claim(other):
            pass
    add(planned(plan.root, more))
    clean = make_plan(make_npz(LENGTHS), out="clean")
    commit_store(clean, write_alone(*clean.parts))
    add(planned(clean.root, more))
    assert read_tree(plan.root) == read_tree(clean.root)


def test_a_claim_that_outlived_its_append_hinders_nobody(plan, make_npz, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(files, "delete", lambda *args, **options: None)
        add(planned(plan.root, make_npz((6,), name="more.npz", seed=5)))
    assert os.path.exists(f"{plan.root}/append.json")
    add(planned(plan.root, make_npz((4,), name="other.npz", seed=6)))
    assert not os.path.exists(f"{plan.root}/append.json")
    assert len(Store(plan.root).manifest.parts) == 4


def test_data_of_another_kind_are_refused(plan, make_npz):
    wide = np.zeros((6, 29), np.float32)
    with pytest.raises(DataFormatError, match=r"float32\[28\].*float32\[29\]"):
        planned(plan.root, make_npz((6,), name="more.npz", observations=wide))


def test_the_command_line_appends_both_splits(plan, make_npz, capsys):
    more = make_npz((6, 9), name="more.npz", seed=5)
    make_npz((3,), name="more-val.npz", seed=7)
    command = ["append", plan.root, more]
    assert main([*command, "--dry-run"]) == 0
    assert "val: 3 rows" in capsys.readouterr().out
    assert len(Store(plan.root).manifest.parts) == 2
    assert main(command) == 0
    assert "finished, 18 rows in 2 parts" in capsys.readouterr().out
    assert Store(plan.root).rows("val") == 3
    assert main(command) == 0
    assert "holds all of this input already" in capsys.readouterr().out
    assert main(["verify", plan.root, "--deep"]) == 0
