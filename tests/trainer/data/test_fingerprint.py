"""A fingerprint is of what is read: it sees all of that, and nothing besides."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.assembly.relabel import commit_labels, plan_relabelling, write_labels
from pipeline.store import files, manifest, manifest_json
from pipeline.store.manifest import DatasetManifest
from pipeline.store.reader import Store
from tests.stores import version_1, write_store
from trainer.data.block_window import ResidentRows
from trainer.data.fingerprint import make_former_fingerprint
from trainer.data.table import load_table


def fingerprint(root: Path, *, task: int = 1, discount: float = 0.99) -> str:
    return load_table(Store(str(root)), task=task, discount=discount).fingerprint


def restate(root: Path, change: Callable[[DatasetManifest], DatasetManifest]) -> None:
    """Changes what a store's manifest says."""
    text = manifest_json.to_json(change(Store(str(root)).manifest))
    files.write(str(root), manifest.DATASET_MANIFEST, text.encode())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_store(tmp_path / "store", tasks=1)


def test_more_discounts_leave_it_as_it_is(root: Path) -> None:
    before = fingerprint(root)
    former = make_former_fingerprint(Store(str(root)), split="train", task=1)
    asked = plan_relabelling(str(root), discounts=(0.9,))
    assert asked is not None
    commit_labels(asked, [write_labels(each) for each in asked.parts])
    store = Store(str(root))
    assert store.manifest.discounts == (0.9, 0.99)
    assert fingerprint(root) == before
    assert fingerprint(root, discount=0.9) != before
    # Of everything in the store, as it was before: another one.
    assert make_former_fingerprint(store, split="train", task=1) != former


def test_a_version_of_the_format_leaves_it_as_it_is(tmp_path: Path, root: Path) -> None:
    with version_1():
        older = write_store(tmp_path / "older", tasks=1)
    assert Store(str(older)).manifest.format_version == 1
    assert fingerprint(older) == fingerprint(root)
    stores = Store(str(older)), Store(str(root))
    former = {make_former_fingerprint(each, split="train", task=1) for each in stores}
    assert len(former) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: write_store(folder, tasks=1, seed=1),
        lambda folder: write_store(folder, ((40, 30), (30, 20)), tasks=1),
        lambda folder: write_store(folder, ((40, 30),), tasks=1),
        lambda folder: write_store(folder, tasks=1, S=7),
    ],
    ids=["rows", "episodes", "parts", "fields"],
)
def test_other_data_have_another_one(
    tmp_path: Path, root: Path, change: Callable[[Path], Path]
) -> None:
    assert fingerprint(change(tmp_path / "other")) != fingerprint(root)


@pytest.mark.parametrize("field", ["observations", "actions"])
def test_it_sees_every_checksum(root: Path, field: str) -> None:
    before = fingerprint(root)

    def checksum(value: DatasetManifest) -> DatasetManifest:
        first = value.parts[0]
        sums = {**first.checksums, field: "sha256:00"}
        part = dataclasses.replace(first, checksums=sums)
        return dataclasses.replace(value, parts=(part, *value.parts[1:]))

    restate(root, checksum)
    assert fingerprint(root) != before


def test_it_sees_the_statistics_that_networks_are_scaled_by(root: Path) -> None:
    before = fingerprint(root)

    def scaled(value: DatasetManifest) -> DatasetManifest:
        known = value.statistics["observations"]
        wider = dataclasses.replace(known, std=(2.0, *known.std[1:]))
        return dataclasses.replace(
            value, statistics={**value.statistics, "observations": wider}
        )

    restate(root, scaled)
    assert fingerprint(root) != before


def test_a_window_of_the_rows_reads_the_same_labels(root: Path) -> None:
    rows = ResidentRows(
        Store(str(root)),
        task=1,
        discount=0.99,
        limit_bytes=1 << 20,
        block_rows=40,
        batch_size=4,
        reuse=1.0,
        span=1,
        seed=0,
    )
    assert rows.fingerprint.startswith(f"{fingerprint(root)}/resident/Schedule(")
    assert rows.with_fingerprint("another").fingerprint == "another"
    with rows.at(0) as table:
        assert table.fingerprint == "another"
    rows.close()
