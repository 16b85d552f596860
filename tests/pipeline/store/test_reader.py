import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline.assembly.commit import commit_store
from pipeline.store import arrays
from pipeline.store.errors import (
    DataFormatError,
    FormatVersionError,
    UnfinishedStoreError,
)
from pipeline.store.reader import Store
from tests.fuzz import drill, mutate_json
from tests.parts import write_alone
from tests.stores import version_1, write_store

LENGTHS = (5, 5, 7, 4, 1, 6)
VAL = (3, 4)


@pytest.fixture
def root(make_npz, make_plan):
    plan = make_plan(
        make_npz(LENGTHS), val=make_npz(VAL, name="cube-single-play-val.npz", seed=1)
    )
    commit_store(plan, write_alone(*plan.parts))
    return plan.root


def test_parts_read_as_one_array(root, make_rows):
    store = Store(root)
    assert len(store.manifest.parts_of("train")) > 1
    for split, lengths, seed in (("train", LENGTHS, 0), ("val", VAL, 1)):
        rows = make_rows(lengths, seed)
        assert store.rows(split) == sum(lengths)
        for name in ("observations", "actions", "qpos", "qvel"):
            np.testing.assert_array_equal(store.read(name, split=split), rows[name])
        table = store.episodes(split)
        assert table.lengths.tolist() == list(lengths)
        np.testing.assert_array_equal(table.starts, np.cumsum(lengths) - lengths)


def test_one_task_is_one_column(root):
    store = Store(root)
    everything = store.read("returns/0.9")
    assert everything.dtype == np.float64
    for column in range(3):
        np.testing.assert_array_equal(
            store.read("returns/0.9", column=column), everything[:, column]
        )
    assert store.task(2)[0] == 1
    assert store.task(2)[1].name == "task2_hand_made"


def test_rows_of_a_part_and_progress(root):
    store = Store(root)
    part = store.manifest.parts[1]
    seen = []
    whole = store.read("actions", progress=seen.append)
    assert sum(seen) == whole.nbytes
    first = store.manifest.parts[0].rows
    np.testing.assert_array_equal(
        store.read_rows(part, "actions", 1, 3), whole[first + 1 : first + 3]
    )


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda store: store.task(6), r"task 6 .* holds tasks \[1, 2, 3\]"),
        (lambda store: store.returns_field(0.5), r"discount 0.5 .* \[0.9, 0.99\]"),
        (lambda store: store.read("rewardz"), "'rewardz'"),
        (lambda store: store.episodes("test"), r"'test' is empty.*\['train', 'val'\]"),
    ],
)
def test_what_a_store_does_not_hold_is_named(root, ask, message):
    with pytest.raises(DataFormatError, match=message):
        ask(Store(root))


def test_a_store_without_manifest_is_unfinished(tmp_path, make_npz, make_plan):
    with pytest.raises(UnfinishedStoreError, match="found none"):
        Store(str(tmp_path / "nothing"))
    plan = make_plan(make_npz(LENGTHS))
    write_alone(plan.parts[0])
    with pytest.raises(UnfinishedStoreError, match="repeat its command"):
        Store(plan.root)


def test_a_newer_store_is_refused(root, tmp_path):
    path = tmp_path / "store" / "dataset.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 3}))
    with pytest.raises(FormatVersionError, match="version 3"):
        Store(root)


def test_lost_and_damaged_objects_are_named(root, tmp_path):
    folder = Store(root).manifest.parts[1].folder
    part = tmp_path / "store" / folder
    shard = part / "actions" / "c" / "0" / "0"
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(DataFormatError, match=f"{folder}/actions: .*verify"):
        Store(root).read("actions")
    (part / "qpos" / "zarr.json").unlink()
    with pytest.raises(DataFormatError, match=f"{folder}/qpos: .*verify"):
        Store(root).read("qpos")


def test_arrays_of_another_size_than_the_manifest_says_are_refused(tmp_path):
    with version_1():  # Its manifest is not sealed.
        root = str(write_store(tmp_path / "store"))
    path = Path(root, "dataset.json")
    value = json.loads(path.read_bytes())
    value["parts"][0]["rows"] = 1 << 39
    path.write_text(json.dumps(value))
    with pytest.raises(DataFormatError, match=r"expected .*549755813888, 6\], as the"):
        Store(root).read("observations")


@pytest.mark.parametrize("name", ["episode_starts", "episode_lengths", "rewards"])
def test_bytes_that_are_lost_are_named_by_whatever_reads_them(tmp_path, name):
    store = Store(str(write_store(tmp_path / "store")))
    part = store.manifest.parts[0]
    shutil.rmtree(tmp_path / "store" / part.folder / name / "c")
    with pytest.raises(DataFormatError, match=f"{name}: could not be read .*verify"):
        store.read_rows(part, name, 0, 2)
    if name != "rewards":
        with pytest.raises(DataFormatError, match="could not be read"):
            store.episodes()
    if name == "episode_lengths":
        with pytest.raises(DataFormatError, match="could not be read"):
            store.episode_lengths(part)


@pytest.mark.parametrize("count", [1_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_no_manifest_that_is_spoilt_ends_in_a_traceback(tmp_path, count):
    with version_1():  # A seal would refuse nearly all of them.
        root = str(write_store(tmp_path / "store"))
    path = tmp_path / "store" / "dataset.json"
    data = path.read_bytes()

    def read(spoilt):
        path.write_bytes(spoilt)
        store = Store(root)
        store.episodes()
        for name in store.manifest.fields:
            store.read(name)

    found = drill(lambda draw: mutate_json(data, draw), read, count=count)
    assert found.read > 0 < found.refused


def test_arrays_of_all_parts_are_asked_for_before_any_is_waited_for(root, monkeypatch):
    """A bucket answers after tens of milliseconds, and stores have thousands."""
    order, begin = [], arrays.begin_opening

    class Request:
        def __init__(self, request):
            self._request = request

        def result(self):
            order.append("answer")
            return self._request.result()

    def ask(*place, **options):
        order.append("ask")
        return Request(begin(*place, **options))

    monkeypatch.setattr(arrays, "begin_opening", ask)
    store = Store(root)
    parts = len(store.manifest.parts_of("train"))
    assert parts > 1
    at_once = ["ask"] * parts + ["answer"] * parts
    store.episodes()
    assert order == 2 * at_once
    order.clear()
    store.read("observations")
    assert order == at_once
