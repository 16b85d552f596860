import zipfile

import numpy as np
import ogbench.utils
import pytest

from pipeline.assembly.commit import commit_store
from pipeline.inspection import export
from pipeline.store import arrays
from pipeline.store.reader import Store
from tests.parts import write_alone

LENGTHS, VAL = (5, 5, 7, 4, 1, 6), (3, 4)


@pytest.fixture
def store(make_npz, make_plan):
    plan = make_plan(make_npz(LENGTHS), val=make_npz(VAL, name="v.npz", seed=1))
    commit_store(plan, write_alone(*plan.parts))
    return Store(plan.root)


@pytest.mark.parametrize("compact", [True, False])
def test_ogbench_reads_back_what_it_read_before(store, tmp_path, compact, make_npz):
    target = str(tmp_path / "out" / "again.npz")
    written = export.export_npz(store, target)
    assert written == [target, str(tmp_path / "out" / "again-val.npz")]
    for path, original in zip(written, ("cube-single-play.npz", "v.npz"), strict=True):
        options = {"compact_dataset": compact, "add_info": True}
        found = ogbench.utils.load_dataset(path, **options)
        expected = ogbench.utils.load_dataset(str(tmp_path / original), **options)
        assert found.keys() == expected.keys()
        assert "qvel" in found
        for name, values in expected.items():
            assert found[name].dtype == values.dtype
            np.testing.assert_array_equal(found[name], values)


def test_members_and_dtypes_are_ogbench_s(store, tmp_path):
    path = str(tmp_path / "a.npz")
    export.export_npz(store, path)
    with np.load(path, allow_pickle=False) as archive:
        assert archive.files == [
            "observations",
            "actions",
            "terminals",
            "qpos",
            "qvel",
        ]
        assert archive["terminals"].dtype == np.bool_
        ends = np.cumsum(LENGTHS) - 1
        assert np.flatnonzero(archive["terminals"]).tolist() == ends.tolist()


def test_equal_stores_export_equal_bytes(store, tmp_path, monkeypatch):
    one, other = tmp_path / "a.npz", tmp_path / "b.npz"
    export.export_npz(store, str(one))
    # The bytes do not depend on how rows are cut into blocks.
    monkeypatch.setattr(arrays, "CHUNKS_PER_SHARD", 1)
    monkeypatch.setattr(arrays, "MAX_CHUNK_ROWS", 4)
    export.export_npz(store, str(other))
    assert one.read_bytes() == other.read_bytes()


def test_a_failed_export_leaves_nothing(store, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise OSError("no space left")

    monkeypatch.setattr(zipfile.ZipFile, "open", fail)
    with pytest.raises(OSError, match=r"could not be written .no space left"):
        export.export_npz(store, str(tmp_path / "out" / "a.npz"))
    assert list((tmp_path / "out").iterdir()) == []


def test_a_folder_that_is_a_file_is_named(store, tmp_path):
    (tmp_path / "mine").write_text("mine")
    path = str(tmp_path / "mine" / "a.npz")
    with pytest.raises(OSError, match=rf"{path}: could not be written .*; check the"):
        export.export_npz(store, path)


def test_the_name_ends_in_npz(store):
    with pytest.raises(ValueError, match=r"ending in \.npz"):
        export.export_npz(store, "a.h5")
