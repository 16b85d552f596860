"""Stores that version 1 of the format left: read, added to, and never called sound."""

import dataclasses
import json

import numpy as np
import pytest

from pipeline.assembly.append import commit_append, plan_append
from pipeline.assembly.commit import commit_store, find_committed
from pipeline.assembly.plan import PlanOptions, describe_inputs
from pipeline.assembly.relabel import commit_labels, plan_relabelling, write_labels
from pipeline.cli import main
from pipeline.inspection.verify import verify_store
from pipeline.sources.ogbench_npz import OgbenchNpz
from pipeline.store import arrays
from pipeline.store.reader import Store
from tests.parts import write_alone
from tests.stores import version_1


@pytest.fixture
def plan(make_npz, make_plan, tasks):
    plan = make_plan(make_npz((5, 7, 4)), tasks=tasks[:1], discounts=(0.9,))
    with version_1():
        commit_store(plan, write_alone(*plan.parts))
    value = Store(plan.root).manifest
    assert (value.format_version, value.checked) == (1, False)
    assert not checksums_of(plan.root, value.parts[0], "rewards")
    return plan


def checksums_of(root, part, field):
    path = Store(root).manifest.array_folder(part, field)
    return arrays.has_checksums(arrays.open_array(root, path))


def test_what_is_relabelled_stays_of_version_1(plan, make_plan, make_npz, tasks):
    whole = make_plan(make_npz((5, 7, 4)), out="whole", discounts=(0.5, 0.9))
    commit_store(whole, write_alone(*whole.parts))
    asked = plan_relabelling(plan.root, tasks=tasks, discounts=(0.5,))
    commit_labels(asked, [write_labels(each) for each in asked.parts])
    store, expected = Store(plan.root), Store(whole.root)
    assert store.manifest.format_version == 1
    for name in store.manifest.fields:
        np.testing.assert_array_equal(store.read(name), expected.read(name))
    part = store.manifest.parts[0]
    assert checksums_of(plan.root, part, "rewards")
    assert not checksums_of(plan.root, part, "qpos")
    assert verify_store(store, deep=True) == []


def test_what_is_appended_to_stays_of_version_1(plan, make_npz):
    before = Store(plan.root)
    more = describe_inputs(
        [("train", OgbenchNpz(make_npz((6,), name="more.npz", seed=1)))]
    )
    asked = plan_append(plan.root, more, PlanOptions(part_rows=12))
    commit_append(asked, write_alone(*asked.added.parts))
    store = Store(plan.root)
    assert store.manifest.format_version == 1
    assert store.rows() == before.rows() + 6
    np.testing.assert_array_equal(store.read("qpos")[:-6], before.read("qpos"))
    assert checksums_of(plan.root, store.manifest.parts[-1], "qpos")
    assert "key" not in json.loads(files_of(plan.root))["parts"][-1]
    assert verify_store(store, deep=True) == []


def test_the_same_command_finds_it_finished(plan):
    assert find_committed(plan) == Store(plan.root).manifest


def test_verify_says_what_nobody_would_notice(plan, make_npz, make_plan, capsys):
    assert main(["verify", plan.root]) == 0
    said = capsys.readouterr().out
    assert "sound" in said
    assert "has format version 1: only this command notices a bit that flips" in said
    other = make_plan(make_npz((5,)), out="other")
    commit_store(other, write_alone(*other.parts))
    assert main(["verify", other.root]) == 0
    assert "version 1" not in capsys.readouterr().out


def test_it_stays_readable_by_who_wrote_it(plan, tasks):
    """No key of a later version is in its manifest, whatever is added to it."""
    known = json.loads(files_of(plan.root))
    asked = plan_relabelling(plan.root, tasks=tasks)
    commit_labels(asked, [write_labels(each) for each in asked.parts])
    later = json.loads(files_of(plan.root))
    assert len(later["tasks"]) > len(known["tasks"])
    assert later.keys() == known.keys()
    assert later["parts"][0].keys() == known["parts"][0].keys()
    fields = {field.name for field in dataclasses.fields(Store(plan.root).manifest)}
    assert later.keys() <= fields


def files_of(root):
    with open(f"{root}/dataset.json") as file:
        return file.read()
