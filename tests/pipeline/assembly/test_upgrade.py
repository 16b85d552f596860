"""A store of version 1 in version 2: the same rows, and from now on checked."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

from pipeline.assembly import upgrade
from pipeline.assembly.commit import commit_store
from pipeline.assembly.known_episodes import read_digests
from pipeline.assembly.relabel import commit_labels, plan_relabelling, write_labels
from pipeline.cli import main
from pipeline.inspection.verify import verify_store
from pipeline.store import arrays, files
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.reader import Store
from tests.parts import write_alone
from tests.stores import version_1, write_store
from trainer.data.table import load_table


@pytest.fixture
def old(tmp_path):
    """Of several parts; what they were written as is pinned."""
    with version_1():
        root = write_store(tmp_path / "old")
    assert Store(str(root)).manifest.format_version == 1
    return str(root)


def assert_equal_stores(one, other):
    ours, theirs = one.manifest, other.manifest
    for name, part in itertools.product(ours.fields, range(len(ours.parts))):
        values = [
            store.read_rows(m.parts[part], name, 0, m.parts[part].rows)
            for store, m in ((one, ours), (other, theirs))
        ]
        np.testing.assert_array_equal(*values)
        assert values[0].dtype == values[1].dtype


def test_rows_and_what_is_said_of_them_are_the_same(old, tmp_path, read_tree):
    before = read_tree(old)
    value = upgrade.upgrade(upgrade.plan_upgrade(old, str(tmp_path / "new")))
    store, source = Store(str(tmp_path / "new")), Store(old)
    assert store.manifest == value
    assert value.format_version == 2
    assert_equal_stores(store, source)
    for ours, theirs in zip(value.parts, source.manifest.parts, strict=True):
        kept = dataclasses.replace(ours, key="", checksums=theirs.checksums)
        assert kept == theirs
        assert ours.checksums.items() > theirs.checksums.items()
    assert value.fingerprint() == source.manifest.fingerprint()
    assert [step.command for step in value.history] == ["upgrade from format version 1"]
    same = dataclasses.replace(
        value, parts=source.manifest.parts, format_version=1, history=()
    )
    assert same == source.manifest
    assert verify_store(store) == []
    for part, name in itertools.product(value.parts, value.fields):
        array = arrays.open_array(store.root, value.array_folder(part, name))
        assert arrays.has_checksums(array)
    assert read_tree(old) == before


def test_blocks_of_wide_rows_are_short(old, tmp_path, counts):
    new = upgrade.upgrade(upgrade.plan_upgrade(old, str(tmp_path / "new")))
    expected = set(Store(old).episodes().lengths)
    assert max(expected) < max(part.rows for part in new.parts)
    assert set(counts) == expected
    # Episodes of the old store have no digests yet, so an append reads them, too.
    counts.clear()
    for part in Store(old).manifest.parts:
        read_digests(Store(old), part)
    assert set(counts) == expected


def test_runs_go_on_on_it(old, tmp_path):
    upgrade.upgrade(upgrade.plan_upgrade(old, str(tmp_path / "new")))
    tables = [
        load_table(Store(root), task=2, discount=0.99)
        for root in (old, str(tmp_path / "new"))
    ]
    assert tables[0].fingerprint == tables[1].fingerprint
    assert tables[0].former_fingerprint == tables[1].former_fingerprint


def test_labels_lie_beside_the_other_arrays_again(make_npz, make_plan, tasks, tmp_path):
    plan = make_plan(
        make_npz((5, 7, 4)),
        val=make_npz((3, 4), name="v.npz"),
        tasks=tasks[:1],
        discounts=(0.9,),
    )
    with version_1():
        commit_store(plan, write_alone(*plan.parts))
    asked = plan_relabelling(plan.root, tasks=tasks, discounts=(0.5,))
    commit_labels(asked, [write_labels(each) for each in asked.parts])
    assert all(part.labels for part in Store(plan.root).manifest.parts)
    upgrade.upgrade(upgrade.plan_upgrade(plan.root, str(tmp_path / "new")))
    store = Store(str(tmp_path / "new"))
    assert {part.split for part in store.manifest.parts} == {"train", "val"}
    assert not any(part.labels for part in store.manifest.parts)
    assert_equal_stores(store, Store(plan.root))
    assert verify_store(store, deep=True) == []


def test_interrupted_and_repeated_it_gives_the_same_bytes(
    old, tmp_path, read_tree, monkeypatch
):
    plan = upgrade.plan_upgrade(old, str(tmp_path / "new"))
    upgrade.upgrade(plan)
    whole = read_tree(plan.root)
    again = upgrade.plan_upgrade(old, str(tmp_path / "again"))

    def die(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            upgrade.upgrade(again)
    assert not upgrade.find_upgraded(again)
    with monkeypatch.context() as patch:
        patch.setattr(upgrade, "PartWriter", die)  # All parts are there.
        upgrade.upgrade(again)
    assert upgrade.find_upgraded(again)
    assert read_tree(again.root) == whole


@pytest.mark.parametrize("name", ["observations", "episode_lengths"])
def test_what_is_damaged_is_not_called_sound(old, tmp_path, name):
    part = Store(old).manifest.parts[1]
    with version_1():
        array = arrays.create(
            old,
            f"{part.folder}/{name}",
            {**Store(old).manifest.fields, **part.table}[name],
            rows=part.episodes if name in part.table else part.rows,
            tasks=0,
        )
        values = Store(old).read_rows(part, name, 0, array.shape[0])
        array.write(values + 1).result()
    plan = upgrade.plan_upgrade(old, str(tmp_path / "new"))
    message = f"{part.folder}/{name}: (checksum|expected lengths)"
    with pytest.raises(DataFormatError, match=message):
        upgrade.upgrade(plan)
    assert not upgrade.find_upgraded(plan)


def test_the_command_line(old, tmp_path, capsys):
    new = str(tmp_path / "new")
    assert main(["upgrade", old, "--out", old]) == 2
    assert main(["upgrade", old, "--out", new]) == 0
    assert "120 rows in 2 parts, format version 2" in capsys.readouterr().out
    assert main(["upgrade", old, "--out", new]) == 0
    assert "already finished" in capsys.readouterr().out
    assert main(["upgrade", new, "--out", str(tmp_path / "newer")]) == 0
    assert "has the current format version" in capsys.readouterr().out
    assert main(["verify", new]) == 0
    assert "version 1" not in capsys.readouterr().out
    assert not (tmp_path / "newer").exists()
    assert not Path(new, upgrade.CLAIM).exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").touch()
    assert main(["upgrade", old, "--out", str(tmp_path / "mine")]) == 2
    assert main(["upgrade", str(tmp_path / "mine"), "--out", new]) == 2
    with pytest.raises(UsageError, match="expected another folder"):
        upgrade.plan_upgrade(old, f"{old}/")
