import dataclasses
import json
import math

import pytest

from pipeline.store import manifest, manifest_json, schema
from pipeline.store.errors import DataFormatError, FormatVersionError
from pipeline.store.manifest import (
    DatasetManifest,
    FieldSpec,
    Origin,
    PartManifest,
    Statistics,
    Task,
)
from tests.fuzz import MUTATIONS, drill, mutate_json
from tests.stores import version_1

STATISTICS = Statistics(2, (0.5,), (0.5,), (0.0,), (1.0,))
PART = PartManifest(
    index=3,
    split="train",
    rows=2,
    episodes=1,
    statistics={"actions": STATISTICS},
    checksums={"actions": "sha256:00"},
    origin=Origin("ogbench_npz", "a.npz", "sha256:11", 4),
    plan="sha256:22",
    dropped={"nonfinite": (7,)},
)
DATASET = DatasetManifest(
    dataset="cube-single-play",
    environment_id="cube-single-v0",
    fields={
        "observations": FieldSpec("float32", (1,)),
        "actions": FieldSpec("float32", (1,), unit="none"),
        **schema.task_fields((0.99,)),
    },
    tasks=(Task(1, "one", "cube-single-v0", "cube", {"cube_xyzs": [[0.1, 0, 0]]}),),
    discounts=(0.99,),
    parts=(PART, dataclasses.replace(PART, index=4, split="val")),
    statistics=dict.fromkeys(
        ("observations", "actions", "rewards", "masks", "returns/0.99"), STATISTICS
    ),
    versions={"numpy": "2.0"},
)


def test_both_manifests_survive_json():
    text = manifest_json.to_json(DATASET)
    assert manifest_json.dataset_from_json(text, where="x") == DATASET
    assert manifest_json.part_from_json(manifest_json.to_json(PART), where="x") == PART


def test_equal_manifests_are_equal_bytes_in_any_order_of_keys():
    fields = {"b": FieldSpec("uint8", ()), "a": FieldSpec("uint8", ())}
    one = dataclasses.replace(DATASET, fields=fields)
    other = dataclasses.replace(DATASET, fields=dict(sorted(fields.items())))
    assert list(one.fields) != list(other.fields)
    assert manifest_json.to_json(one) == manifest_json.to_json(other)
    assert one.fingerprint() == other.fingerprint()


def test_the_fingerprint_sees_data_and_not_versions():
    elsewhere = dataclasses.replace(DATASET, versions={"numpy": "3.0"})
    assert elsewhere.fingerprint() == DATASET.fingerprint()
    for change in (
        {"discounts": (0.5,)},
        {"tasks": ()},
        {"parts": (dataclasses.replace(PART, checksums={"actions": "sha256:01"}),)},
    ):
        changed = dataclasses.replace(DATASET, **change)
        assert changed.fingerprint() != DATASET.fingerprint()


def test_parts_of_a_split_keep_their_order():
    assert [part.index for part in DATASET.parts_of("train")] == [3]
    assert [part.index for part in DATASET.parts_of("val")] == [4]


@pytest.mark.parametrize("discount", [0.9, 0.99, 0.995, 1 / 3, 1.0])
def test_a_discount_reads_back_equal_from_its_field_name(discount):
    name = manifest.returns_field(discount)
    assert float(name.removeprefix("returns/")) == discount


def test_a_newer_format_is_refused_with_both_versions():
    value = {**json.loads(manifest_json.to_json(DATASET)), "format_version": 7}
    with pytest.raises(FormatVersionError, match=r"version 7, .* up to 2"):
        manifest_json.dataset_from_json(json.dumps(value), where="here/dataset.json")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "expected JSON"),
        (lambda text: "[]", "expected a JSON object"),
        (lambda text: text.replace('"rows": 2', '"rows": "many"'), "rows"),
        (lambda text: text.replace('"split"', '"slit"'), "slit"),
        (lambda text: text.replace('"train"', '"test"'), "'train' or 'val'"),
    ],
)
def test_a_damaged_manifest_is_named(damage, message):
    with pytest.raises(DataFormatError, match=message) as caught:
        manifest_json.part_from_json(
            damage(manifest_json.to_json(PART)), where="p/part.json"
        )
    assert "p/part.json" in str(caught.value)


@pytest.mark.parametrize(
    ("place", "given", "message"),
    [
        (("format_version",), 0, "format_version: expected 1 or above, got 0"),
        (("format_version",), -1, "expected 1 or above, got -1"),
        (("format_version",), True, "expected 1 or above, got True"),
        (("format_version",), 1.0, r"expected 1 or above, got 1\.0"),
        (("parts",), [], "parts: expected at least one"),
        (("parts", 1, "index"), 3, r"of distinct indices, got \[3, 3\]"),
        (("parts", 0, "rows"), 2**62, r"parts\.3\.rows: expected 1 to"),
        (("parts", 0, "rows"), -2, r"parts\.3\.rows: expected 1 to"),
        (("parts", 0, "rows"), 10**400, "rows"),
        (("parts", 0, "episodes"), 3, "episodes: expected 1 to 2, the rows, got 3"),
        (("parts", 0, "labels"), "../../..", "labels: expected labels-"),
        (("fields", "../x"), {"dtype": "bool", "shape": []}, "a name within the part"),
        (("fields", "x"), {"dtype": "object", "shape": []}, "a dtype of numbers"),
        (("fields", "x"), {"dtype": "bool", "shape": [0]}, "lengths from 1"),
        (("fields", "x"), {"dtype": "bool", "shape": [2**62]}, "lengths from 1"),
        (("fields", "masks", "per"), "row", "expected row_and_task, got 'row'"),
        (("tasks",), [], "tasks: expected distinct numbers from 1"),
        (("discounts",), [math.nan], "text that is none .NaN is no number"),
        (("discounts",), [1.5], r"discounts: expected \(0, 1\], got 1\.5"),
        (("statistics", "masks", "std"), [-math.inf], "-Infinity is no number"),
        (("statistics", "masks", "mean"), [0.5, 0.5], "expected one width|expected 1"),
        (("statistics", "masks"), None, "masks"),
    ],
)
def test_what_cannot_be_is_refused(place, given, message):
    value = json.loads(manifest_json.to_json(DATASET))
    holder = value
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = given
    with pytest.raises(DataFormatError, match=message) as caught:
        manifest_json.dataset_from_json(json.dumps(value), where="here/dataset.json")
    assert type(caught.value) is DataFormatError
    assert "here/dataset.json" in str(caught.value)


def test_numbers_that_overflow_and_nesting_without_end_are_refused():
    text = manifest_json.to_json(DATASET).replace("0.5", "1e999")
    for spoilt in (text, "[" * 100_000, "1" * 10_000, '{"a":' * 100_000):
        with pytest.raises(DataFormatError, match="dataset"):
            manifest_json.dataset_from_json(spoilt, where="dataset")


@pytest.mark.parametrize("version", [1, 2])
def test_a_seal_is_of_the_values_and_not_of_how_they_are_written(version):
    value = dataclasses.replace(DATASET, format_version=version)
    plain = json.loads(manifest_json.to_json(value))
    assert ("seal" in plain) is (version == 2)
    for text in (json.dumps(plain), json.dumps(dict(reversed(plain.items())))):
        assert text != manifest_json.to_json(value)
        assert manifest_json.dataset_from_json(text, where="x") == value
    plain["tasks"][0]["goal"]["cube_xyzs"][0][0] = 0.3
    if version == 1:  # It is as good a number as the one that was written.
        assert manifest_json.dataset_from_json(json.dumps(plain), where="x") != value
    else:
        with pytest.raises(DataFormatError, match=r"sealed digest .* have changed"):
            manifest_json.dataset_from_json(json.dumps(plain), where="x")


def test_version_2_is_sealed():
    plain = json.loads(manifest_json.to_json(DATASET))
    del plain["seal"]
    with pytest.raises(DataFormatError, match=r"the sealed digest None\.\.\.,"):
        manifest_json.dataset_from_json(json.dumps(plain), where="x")
    part = json.loads(manifest_json.to_json(PART))
    del part["seal"]  # As version 1 wrote it.
    assert manifest_json.part_from_json(json.dumps(part), where="x") == PART


@pytest.mark.parametrize(
    ("value", "read"),
    [(DATASET, manifest_json.dataset_from_json), (PART, manifest_json.part_from_json)],
)
def test_every_flipped_bit_is_noticed(value, read):
    data = manifest_json.to_json(value).encode()
    for bit in range(0, 8 * len(data), 61):
        spoilt = bytearray(data)
        spoilt[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DataFormatError):
            read(bytes(spoilt), where="x")


@pytest.mark.parametrize("count", MUTATIONS)
@pytest.mark.parametrize(
    ("value", "read"),
    [(DATASET, manifest_json.dataset_from_json), (PART, manifest_json.part_from_json)],
)
def test_no_damage_ends_in_a_traceback(value, read, count):
    with version_1():  # Without a seal: it would refuse nearly all of them.
        data = manifest_json.to_json(value).encode()
    found = drill(
        lambda draw: mutate_json(data, draw),
        lambda spoilt: read(spoilt, where="x"),
        count=count,
    )
    assert found.read > 0 < found.refused
