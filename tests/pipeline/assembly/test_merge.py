import os
import shutil

import numpy as np
import pytest

from pipeline.assembly.commit import commit_store
from pipeline.assembly.merge import claim, merge, plan_merge
from pipeline.assembly.relabel import commit_labels, plan_relabelling, write_labels
from pipeline.cli import main
from pipeline.inspection.verify import verify_store
from pipeline.store import files, manifest
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.reader import Store
from tests.fake_gcs import serve
from tests.parts import write_alone
from tests.stores import version_1


@pytest.fixture
def make_store(make_npz, make_plan):
    def make(name, lengths, seed, *, val=None, **options):
        path = make_npz(lengths, name=f"{name}.npz", seed=seed)
        if val is not None:
            val = make_npz(val, name=f"{name}-val.npz", seed=seed + 100)
        plan = make_plan(path, out=name, val=val, **options)
        commit_store(plan, write_alone(*plan.parts))
        return plan.root

    return make


@pytest.fixture
def roots(make_store):
    return [
        make_store("one", (5, 5, 7, 4), 0, val=(3, 4)),
        make_store("two", (6, 9), 1),
        make_store("three", (8,), 2, val=(2,)),
    ]


def test_a_joined_store_holds_the_rows_of_all(roots, tmp_path):
    out = str(tmp_path / "joined")
    merge(plan_merge(roots, out))
    store, stores = Store(out), [Store(root) for root in roots]
    for split, count in (("train", 3), ("val", 2)):
        of_split = [s for s in stores if s.manifest.parts_of(split)]
        assert len(of_split) == count
        for name in store.manifest.fields:
            expected = np.concatenate([s.read(name, split=split) for s in of_split])
            np.testing.assert_array_equal(store.read(name, split=split), expected)
    assert store.episodes().lengths.tolist() == [5, 5, 7, 4, 6, 9, 8]
    assert verify_store(store, deep=True) == []
    found = store.manifest.statistics["observations"]
    rows = store.read("observations").astype(np.float64)
    assert found.count == len(rows) == 44
    np.testing.assert_allclose(found.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.std, rows.std(0), rtol=1e-12)
    step = store.manifest.history[-1].command
    assert step == "merge of " + " ".join(s.manifest.fingerprint()[:16] for s in stores)


def test_it_is_whole_without_the_stores_it_was_joined_from(roots, tmp_path):
    out = tmp_path / "joined"
    merge(plan_merge(roots, str(out)))
    part, joined = Store(roots[0]).manifest.parts[0], Store(str(out)).manifest.parts[0]
    name = "observations/c/0/0"
    source = os.path.join(roots[0], part.folder, name)
    assert os.path.samefile(source, out / joined.folder / name)  # No bytes are copied.
    for root in roots:
        shutil.rmtree(root)
    assert verify_store(Store(str(out)), deep=True) == []


def test_where_a_disk_gives_no_second_names_bytes_are_copied(
    roots, tmp_path, monkeypatch, read_tree
):
    merge(plan_merge(roots, str(tmp_path / "linked")))

    def refuse(*_):
        raise OSError("another disk")

    monkeypatch.setattr(os, "link", refuse)
    merge(plan_merge(roots, str(tmp_path / "copied")))
    assert read_tree(tmp_path / "copied") == read_tree(tmp_path / "linked")


def test_labels_that_were_added_later_are_those_that_are_taken(make_store, tmp_path):
    later = make_store("later", (5, 7), 0, discounts=(0.9,))
    asked = plan_relabelling(later, discounts=(0.99,))
    commit_labels(asked, [write_labels(each) for each in asked.parts])
    assert Store(later).manifest.parts[0].labels
    root = make_store("two", (6, 9), 1)
    out = str(tmp_path / "joined")
    merge(plan_merge([later, root], out))
    assert verify_store(Store(out), deep=True) == []
    assert not [name for name in files.list_names(out) if "labels-" in name]


def test_interrupted_and_repeated_it_gives_the_same_bytes(
    roots, tmp_path, read_tree, monkeypatch
):
    clean, out = str(tmp_path / "clean"), str(tmp_path / "joined")
    merge(plan_merge(roots, clean))
    plan = plan_merge(roots, out)

    def die(*_, **__):
        raise KeyboardInterrupt

    def half():
        with claim(plan) as claimed:
            merge(plan, claimed, progress=die)

    with pytest.raises(KeyboardInterrupt):
        half()
    assert any("/observations/" in name for name in read_tree(out))
    with claim(plan) as claimed:
        merge(plan, claimed)
    assert read_tree(out) == read_tree(clean)
    merge(plan)
    assert read_tree(out) == read_tree(clean)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"discounts": (0.9,)}, r"differ in discounts: \[0.9, 0.99\] and \[0.9\]; rel"),
        ({"tasks": 1}, r"differ in tasks: \[1, 2, 3\] and \[1\]"),
        ({"dataset": "cube-single-noisy"}, r"differ in data set: .*-noisy; give the"),
        ({"environment_id": "cube-double-v0"}, "differ in environment.*; give both"),
    ],
)
def test_stores_that_differ_are_refused(make_store, tasks, tmp_path, options, message):
    if "tasks" in options:
        options = {"tasks": tasks[: options["tasks"]]}
    roots = [make_store("one", (5, 7), 0), make_store("two", (6,), 1, **options)]
    with pytest.raises(DataFormatError, match=message) as caught:
        plan_merge(roots, str(tmp_path / "joined"))
    assert all(root in str(caught.value) for root in roots)


def test_what_cannot_be_joined_is_refused(make_store, tmp_path, make_npz, make_plan):
    one, two = make_store("one", (5, 7), 0), make_store("two", (6,), 1)
    out = str(tmp_path / "joined")
    with pytest.raises(UsageError, match="at least two stores"):
        plan_merge([one], out)
    with pytest.raises(UsageError, match="another folder"):
        plan_merge([one, two], f"{two}/")
    again = make_store("again", (5, 7), 0)
    with pytest.raises(DataFormatError, match="hold the same rows"):
        plan_merge([two, one, again], out)
    assert plan_merge([one, two], out, dataset="both").manifest.dataset == "both"
    with version_1():
        old = make_store("old", (4,), 3)
    with pytest.raises(DataFormatError, match="expected format version 2, got 1"):
        plan_merge([one, old], out)
    (tmp_path / "joined").mkdir()
    (tmp_path / "joined" / "notes.txt").write_bytes(b"mine")
    with pytest.raises(DataFormatError, match=r"holds notes\.txt"):
        claim(plan_merge([one, two], out))


def test_the_command_line_joins_and_says_when_it_has(roots, tmp_path, capsys):
    out = str(tmp_path / "joined")
    command = ["merge", *roots, "--out", out]
    assert main(command) == 0
    assert "finished, 53 rows in 6 parts of 3 stores" in capsys.readouterr().out
    assert main(command) == 0
    assert "already finished" in capsys.readouterr().out
    for other in (["merge", *roots[1:], "--out", out], [*command, "--dataset", "all"]):
        assert main(other) == 2
        assert "already holds a finished store" in capsys.readouterr().err
    lost = Store(out).manifest.parts[2].folder
    os.remove(f"{out}/{lost}/actions/zarr.json")
    assert main(command) == 2
    assert f"{lost}/actions/zarr.json is missing" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_into_a_bucket_the_same_bytes_are_copied(roots, tmp_path, read_tree):
    merge(plan_merge(roots, str(tmp_path / "joined")))
    with serve() as client:
        client.create_bucket("vast-merged")
        out = "gs://vast-merged/joined"
        plan = plan_merge(roots, out)
        with claim(plan) as claimed:
            merge(plan, claimed)
        names = files.list_names(out)
        found = {name: files.read(out, name).data for name in names}
        assert found == read_tree(tmp_path / "joined")
        assert manifest.DATASET_MANIFEST in names
