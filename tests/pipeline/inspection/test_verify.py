import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorstore as ts

from pipeline.assembly.commit import commit_store
from pipeline.cli import main
from pipeline.inspection import verify
from pipeline.store import arrays, files, manifest, manifest_json
from pipeline.store.moments import Moments
from pipeline.store.reader import Store
from tests.parts import write_alone

LENGTHS = (5, 5, 7, 4, 1, 6)


@pytest.fixture
def store(make_npz, make_plan):
    plan = make_plan(make_npz(LENGTHS), val=make_npz((3, 4), name="v.npz", seed=1))
    commit_store(plan, write_alone(*plan.parts))
    return Store(plan.root)


def open_for_writing(root, path):
    spec = {
        "driver": "zarr3",
        "kvstore": files.kvstore_spec(root, path),
        "store_data_equal_to_fill_value": True,
    }
    return ts.open(spec).result()


def rewrite(store, field, change):
    """Changes a field of the first part, and its checksum along with it."""
    part = store.manifest.parts[0]
    array = open_for_writing(store.root, f"{part.folder}/{field}")
    values = np.array(array.read().result())
    change(values)
    array.write(values).result()
    checksum = verify._checksum(array, 1 << 20)
    restate(store, checksums={**part.checksums, field: checksum})


def restate(store, **changes):
    """Changes what both manifests say of the first part."""
    parts = list(store.manifest.parts)
    parts[0] = dataclasses.replace(parts[0], **changes)
    value = dataclasses.replace(store.manifest, parts=tuple(parts))
    for name, each in (
        (manifest.DATASET_MANIFEST, value),
        (f"{parts[0].folder}/{manifest.PART_MANIFEST}", parts[0]),
    ):
        files.write(store.root, name, manifest_json.to_json(each).encode())


def findings(store, **options):
    return verify.verify_store(Store(store.root), **options)


@pytest.mark.parametrize("deep", [False, True])
def test_a_sound_store_has_no_findings(store, deep):
    rows = []
    assert findings(store, deep=deep, progress=rows.append) == []
    assert rows == [part.rows for part in store.manifest.parts]
    assert len(rows) == 3


def test_blocks_of_wide_rows_are_short(store, counts):
    assert findings(store, deep=True) == []
    assert set(counts) == {*LENGTHS, 3, 4}


def test_every_array_has_a_checksum(store):
    part = store.manifest.parts[0]
    assert part.checksums.keys() == {
        *store.manifest.fields,
        "episode_starts",
        "episode_lengths",
        "episode_digests",
    }


def test_a_changed_value_is_found(store):
    part = store.manifest.parts[1]
    array = open_for_writing(store.root, f"{part.folder}/observations")
    array[2, 3].write(0.5).result()
    (finding,) = findings(store)
    assert finding.startswith(f"{part.folder}/observations: checksum sha256:")
    assert "bytes have changed" in finding


@pytest.mark.parametrize(
    "name", ["qvel/zarr.json", "qvel/c/0/0", "episode_lengths/zarr.json"]
)
def test_s3_a_removed_object_is_found(store, tmp_path, name):
    folder = store.manifest.parts[0].folder
    (tmp_path / "store" / folder / name).unlink()
    (finding,) = findings(store)
    field = name.split("/")[0]
    assert finding.startswith(f"{folder}/{field}: cannot be read")


def test_removed_zeros_are_found_too(store):
    rewrite(store, "masks", lambda values: values.fill(0))
    assert findings(store) == []
    shutil.rmtree(f"{store.root}/{store.manifest.parts[0].folder}/masks/c")
    assert "masks: cannot be read" in findings(store)[0]


def test_a_manifest_that_contradicts_is_found(store, tmp_path):
    folder = store.manifest.parts[0].folder
    path = tmp_path / "store" / folder / "part.json"
    text = path.read_text()
    path.write_text(json.dumps({**json.loads(text), "rows": 9}))
    assert "bytes have changed" in findings(store)[0]
    other = dataclasses.replace(store.manifest.parts[0], rows=9)
    path.write_text(manifest_json.to_json(other))
    assert findings(store) == [
        f"{folder}/part.json: differs from what dataset.json says of this part"
    ]
    path.write_text(text[:50])
    assert "expected JSON" in findings(store)[0]
    path.unlink()
    assert findings(store) == [f"{folder}/part.json: is missing"]


def test_shapes_and_dtypes_are_compared(store):
    field = dataclasses.replace(store.manifest.fields["qpos"], dtype="float64")
    path = f"{store.manifest.parts[0].folder}/qpos"
    arrays.finish(store.root, path, field, rows=4, tasks=0)
    (finding,) = findings(store)
    rows = store.manifest.parts[0].rows
    assert f"expected float32[{rows}, 21], got float64[4, 21]" in finding


def test_arrays_without_checksums_are_found(store, monkeypatch):
    part = store.manifest.parts[0]
    values = store.read_rows(part, "actions", 0, part.rows)
    field = store.manifest.fields["actions"]
    monkeypatch.setattr(arrays, "CHUNK_CODECS", arrays.CHUNK_CODECS[:-1])
    path = f"{part.folder}/actions"
    shutil.rmtree(f"{store.root}/{path}")
    array = arrays.create(store.root, path, field, rows=part.rows, tasks=0)
    array.write(values).result()
    arrays.finish(store.root, path, field, rows=part.rows, tasks=0)
    (finding,) = findings(store)
    assert finding.startswith(f"{part.folder}/actions: its chunks have no checksums")


def test_deep_finds_a_digest_that_is_not_of_its_rows(store):
    rewrite(store, "episode_digests", lambda values: np.add.at(values, 1, 1))
    assert findings(store) == []
    found = findings(store, deep=True)
    folder = store.manifest.parts[0].folder
    assert found == [f"{folder}/episode_digests: that of episode 1 is not of its rows"]


def test_an_episode_table_that_does_not_add_up_is_found(store):
    rewrite(store, "episode_lengths", lambda values: np.add.at(values, 0, 1))
    found = findings(store)
    rows = store.manifest.parts[0].rows
    assert (
        f"{store.manifest.parts[0].folder}/episode_lengths: sum to {rows + 1}, expected"
        in found[0]
    )
    assert "episode_starts: do not follow" in found[1]


@pytest.mark.parametrize(
    ("field", "value"), [("rewards", 1.0), ("masks", 7), ("returns/0.9", 0.25)]
)
def test_deep_finds_labels_that_do_not_follow(store, field, value):
    def change(values):
        values[3:5, 1] = value

    rewrite(store, field, change)
    assert findings(store) == []
    found = findings(store, deep=True)
    rows, folder = store.manifest.parts[0].rows, store.manifest.parts[0].folder
    assert (
        f"{folder}/{field}: 2 of {rows} rows are not what physics state and tasks "
        "give, the first of them row 3" in found
    )
    assert any(
        f"of {field} is " in each and "not that of its rows" in each for each in found
    )


def test_deep_finds_values_that_are_not_finite(store):
    def change(values):
        values[4, 2] = np.nan

    rewrite(store, "qvel", change)
    assert findings(store) == []
    assert any("row 4: qvel[2] is nan" in e for e in findings(store, deep=True))


def test_deep_finds_statistics_that_are_not_of_the_rows(store):
    part = store.manifest.parts[0]
    wrong = dataclasses.replace(part.statistics["actions"], mean=(0.1,) * 5)
    restate(store, statistics={**part.statistics, "actions": wrong})
    found = findings(store, deep=True)
    (finding,) = (each for each in found if each.startswith(part.folder))
    assert ": mean of actions is 0.1, 0.1, 0.1, ..., not that of its rows, " in finding
    assert any("dataset.json: mean of actions" in each for each in found)


@pytest.mark.parametrize("key", ["count", "mean", "std", "minimum", "maximum"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300, "nearby"])
@pytest.mark.parametrize("size", [1.0, 1e-12, 1e12])
def test_statistics_are_compared_with_what_was_found(key, value, size):
    rows = np.random.default_rng(0).normal(scale=size, size=(100, 2))
    found = {"qvel": Moments.of(rows).to_statistics()}
    stated = getattr(found["qvel"], key)
    compared = verify._compare_statistics("part.json", found, found, "of its rows")
    assert compared == []
    if key == "count":
        wrong = 101 if value == "nearby" else value
    else:  # The first component is as it should be.
        off = stated[1] + 1e-4 * size if value == "nearby" else value
        wrong = (stated[0], off)
    lying = {"qvel": dataclasses.replace(found["qvel"], **{key: wrong})}
    (finding,) = verify._compare_statistics("part.json", found, lying, "of its rows")
    assert f"part.json: {key} of qvel is " in finding


@pytest.mark.parametrize("name", ["dataset.json", "part.json"])
@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e999"])
def test_statistics_that_are_not_finite_are_refused(store, capsys, name, text):
    folder = store.root
    if name == "part.json":
        folder = f"{store.root}/{store.manifest.parts[0].folder}"
    path = Path(folder) / name
    value = json.loads(path.read_text())
    value["statistics"]["actions"]["mean"][0] = "THIS"
    path.write_text(json.dumps(value).replace('"THIS"', text))
    assert main(["verify", store.root, "--deep"]) in (1, 2)
    said = capsys.readouterr()
    assert name in said.out + said.err
    assert "sound" not in said.out


def test_episode_fields_are_those_of_the_writer():
    assert manifest.EPISODE_FIELD.dtype == "int64"
