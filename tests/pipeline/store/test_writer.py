import hashlib

import numpy as np
import pytest

from pipeline.store import arrays, reader, writer
from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import FieldSpec, Origin, PartManifest

IMAGE = FieldSpec("uint8", (64, 64, 3))  # shards of 1024 rows: three below
SCALAR = FieldSpec("float32", (), "row_and_task")
FIELDS = {"images": IMAGE, "rewards": SCALAR}
ROWS = 2 * arrays.shard_rows(IMAGE) + 17
LENGTHS = np.array([ROWS - 10, 10])


def columns(seed=0):
    random = np.random.default_rng(seed)
    return {
        "images": random.integers(0, 256, (ROWS, 64, 64, 3), np.uint8),
        "rewards": random.normal(size=(ROWS, 2)).astype(np.float32),
    }


def write(root, cuts, seed=0, values=None):
    values = columns(seed) if values is None else values
    part = writer.PartWriter(root, "parts/00000", FIELDS, rows=ROWS, tasks=2)
    for first, last in zip([0, *cuts], [*cuts, ROWS], strict=True):
        part.append({name: v[first:last] for name, v in values.items()})
    return part.finish(LENGTHS)


def read(root, name):
    return arrays.open_array(root, f"parts/00000/{name}").read().result()


def test_bytes_do_not_depend_on_the_blocks_they_came_in(tmp_path, read_tree):
    values = columns()
    shard = arrays.shard_rows(IMAGE)
    sums = [
        write(str(tmp_path / str(i)), cuts, values=values)
        for i, cuts in enumerate([[], [1, 7, shard], [shard - 1, 2 * shard + 1]])
    ]
    assert sums[0] == sums[1] == sums[2]
    trees = [read_tree(tmp_path / str(i)) for i in range(3)]
    assert trees[0] == trees[1] == trees[2]
    assert sum("images/c/" in name for name in trees[0]) == 3
    for name, expected in values.items():
        np.testing.assert_array_equal(read(str(tmp_path / "1"), name), expected)
        digest = hashlib.sha256(expected.tobytes()).hexdigest()
        assert sums[0][name] == f"sha256:{digest}"
    np.testing.assert_array_equal(read(str(tmp_path / "1"), "episode_lengths"), LENGTHS)
    assert read(str(tmp_path / "1"), "episode_starts").tolist() == [0, ROWS - 10]


def test_of_two_at_once_neither_harms_the_other(tmp_path, read_tree):
    values, shard = columns(), arrays.shard_rows(IMAGE)
    write(str(tmp_path / "alone"), [], values=values)
    both = str(tmp_path / "both")
    late = writer.PartWriter(both, "parts/00000", FIELDS, rows=ROWS, tasks=2)
    late.append({name: v[: shard + 3] for name, v in values.items()})
    write(both, [5], values=values)
    # What the late one has in hand is written meanwhile, beside its place.
    once = read_tree(both, whole=True)
    assert once == read_tree(tmp_path / "alone")
    # One that was stopped goes on, and is killed before its end.
    late.append({name: v[shard + 3 :] for name, v in values.items()})
    assert read_tree(both, whole=True) == once
    late.finish(LENGTHS)
    assert read_tree(both) == once


def test_a_part_is_there_only_after_its_commit(tmp_path):
    part = writer.PartWriter(
        str(tmp_path), "parts/00000", {"r": SCALAR}, rows=1, tasks=2
    )
    part.append({"r": np.zeros((1, 2), np.float32)})
    sums = part.finish(np.array([1]))
    assert reader.read_part(str(tmp_path), "parts/00000") is None
    value = PartManifest(0, "train", 1, 1, {}, sums, Origin("x", "y", "z", 0))
    part.commit(value)
    assert reader.read_part(str(tmp_path), "parts/00000") == value


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"r": np.zeros((1, 2), np.float32)}, r"expected fields \['a', 'r'\]"),
        (
            {"r": np.zeros((1, 2), np.float32), "a": np.zeros((2, 3), np.float32)},
            "expected fields of one length",
        ),
        (
            {"r": np.zeros((1, 2), np.float64), "a": np.zeros((1, 3), np.float32)},
            r"expected float32\[2\] a row, got float64\[2\]",
        ),
        (
            {"r": np.zeros((1, 2), np.float32), "a": np.zeros((1, 4), np.float32)},
            r"expected float32\[3\] a row, got float32\[4\]",
        ),
    ],
)
def test_a_block_that_does_not_fit_is_refused(tmp_path, block, message):
    fields = {"r": SCALAR, "a": FieldSpec("float32", (3,))}
    part = writer.PartWriter(str(tmp_path), "parts/00000", fields, rows=5, tasks=2)
    with pytest.raises(DataFormatError, match=message):
        part.append(block)


@pytest.mark.parametrize("rows", [3, 5])
def test_fewer_or_more_rows_than_announced_are_an_error(tmp_path, rows):
    part = writer.PartWriter(
        str(tmp_path), "parts/00000", {"r": SCALAR}, rows=4, tasks=1
    )

    def write_all():
        part.append({"r": np.ones((rows, 1), np.float32)})
        part.finish(np.array([4]))

    with pytest.raises(
        DataFormatError, match=f"expected 4 rows as planned, got {rows}"
    ):
        write_all()
