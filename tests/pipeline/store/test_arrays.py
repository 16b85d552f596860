import fcntl
import shutil

import numpy as np
import pytest

from pipeline.store import arrays
from pipeline.store.manifest import FieldSpec

PER_TASK = FieldSpec("float32", (), "row_and_task")
PAIR = FieldSpec("float32", (2,))


def write(root, field, rows, values):
    arrays.create(str(root), "a", field, rows=rows, tasks=0).write(values).result()
    arrays.finish(str(root), "a", field, rows=rows, tasks=0)


@pytest.mark.parametrize(
    ("field", "rows"),
    [
        (FieldSpec("float32", (28,)), 8192),  # 112 B a row: 9362 would fit
        (FieldSpec("float32", (46,)), 4096),  # 184 B a row: 5698 would fit
        (FieldSpec("uint8", (64, 64, 3)), 64),  # 12288 B a row: 85 would fit
        (FieldSpec("float64", (1 << 20,)), 1),  # one row is more than a chunk
        (PER_TASK, 8192),
    ],
)
def test_a_chunk_is_near_a_mebibyte(field, rows):
    assert arrays.chunk_rows(field) == rows
    assert arrays.shard_rows(field) == 16 * rows


def test_rows_are_cut_at_shards_and_read_back(tmp_path):
    field = FieldSpec("uint8", (64, 64, 3))
    rows = arrays.shard_rows(field) + 5
    values = np.random.default_rng(0).integers(0, 256, (rows, 64, 64, 3), np.uint8)
    write(tmp_path, field, rows, values)
    found = arrays.open_array(str(tmp_path), "a")
    assert found.dtype.numpy_dtype == np.uint8
    np.testing.assert_array_equal(found.read().result(), values)
    assert len(list((tmp_path / "a" / "c").iterdir())) == 2


def test_one_task_is_a_column_of_its_own_chunks(tmp_path):
    array = arrays.create(str(tmp_path), "r", PER_TASK, rows=10, tasks=5)
    assert array.shape == (10, 5)
    assert array.chunk_layout.read_chunk.shape == (8192, 1)
    assert array.chunk_layout.write_chunk.shape == (131072, 5)


def test_an_array_is_as_long_as_it_was_finished(tmp_path):
    array = arrays.create(str(tmp_path), "a", PAIR, rows=9, tasks=0)
    array[:3].write(2.0).result()
    with pytest.raises(ValueError, match="does not exist"):
        arrays.open_array(str(tmp_path), "a")
    arrays.finish(str(tmp_path), "a", PAIR, rows=3, tasks=0)
    found = arrays.open_array(str(tmp_path), "a").read().result()
    np.testing.assert_array_equal(found, np.full((3, 2), 2.0, np.float32))


def test_whoever_begins_again_takes_nothing_away(tmp_path, read_tree):
    write(tmp_path, PAIR, 4, 1.0)
    before = read_tree(tmp_path)
    assert len(before) == 2
    array = arrays.create(str(tmp_path), "a", PAIR, rows=9, tasks=0)
    assert read_tree(tmp_path) == before
    array[:4].write(1.0).result()
    arrays.finish(str(tmp_path), "a", PAIR, rows=4, tasks=0)
    assert read_tree(tmp_path) == before


def test_nobody_waits_for_a_writer_that_is_stopped(tmp_path):
    (tmp_path / "a" / "c" / "0").mkdir(parents=True)
    # Of the system: as one holds it who is stopped while TensorStore writes.
    with (tmp_path / "a" / "c" / "0" / "0.__lock").open("wb") as stopped:
        fcntl.lockf(stopped, fcntl.LOCK_EX)
        write(tmp_path, PAIR, 4, 1.0)
    assert arrays.open_array(str(tmp_path), "a").read().result().all()


def test_creating_deletes_no_file_of_others(tmp_path):
    (tmp_path / "a" / "c").mkdir(parents=True)
    for name in ("notes.txt", "c/photo.jpg"):
        (tmp_path / "a" / name).write_bytes(b"mine")
    for _ in range(2):
        write(tmp_path, PAIR, 4, 1.0)
    for name in ("notes.txt", "c/photo.jpg"):
        assert (tmp_path / "a" / name).read_bytes() == b"mine"


def test_zeros_are_written_and_a_lost_object_does_not_read_as_zeros(tmp_path):
    write(tmp_path, PAIR, 4, 0.0)
    assert not arrays.open_array(str(tmp_path), "a").read().result().any()
    shutil.rmtree(tmp_path / "a" / "c")
    with pytest.raises(ValueError, match="missing"):
        arrays.open_array(str(tmp_path), "a").read().result()
