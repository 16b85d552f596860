"""Virtual data sets: read where all their rows are there, else refused in one line."""

import os
import shutil

import h5py
import numpy as np
import pytest

from pipeline.cli import main
from pipeline.sources import hdf5, hdf5_datasets
from pipeline.sources.d4rl_hdf5 import D4rlHdf5
from pipeline.store.errors import DataFormatError
from pipeline.store.reader import Store
from tests.fuzz import drill_source, mutate_bytes
from tests.pipeline.assembly.test_inputs import transitions

ROWS = 18


def write(path, rows):
    with h5py.File(path, "w") as file:
        for name, values in rows.items():
            file[name] = values


def write_virtual(path, rows, places, *, names=("a.src", "b.src")):
    """Virtual data sets: pieces of a file each, one after another, at some rows."""
    with h5py.File(path, "w") as file:
        for name, values in rows.items():
            n = len(values)
            layout = h5py.VirtualLayout((2 * n, *values.shape[1:]), values.dtype)
            for source, at in zip(names, places, strict=True):
                piece = h5py.VirtualSource(source, name, shape=values.shape)
                layout[at : at + n] = piece
            file.create_virtual_dataset(name, layout)
    return str(path)


@pytest.fixture
def sources(tmp_path):
    """Two files of transitions, and one of the rows of both."""
    both = transitions(0), transitions(1)
    for name, rows in zip("ab", both, strict=True):
        write(tmp_path / f"{name}.src", rows)
    whole = {n: np.concatenate([rows[n] for rows in both]) for n in both[0]}
    write(tmp_path / "whole.hdf5", whole)
    return both


def test_rows_are_those_of_the_files_they_come_from(sources, tmp_path):
    path = write_virtual(tmp_path / "all.hdf5", sources[0], (0, ROWS))
    stores = []
    for name in ("all", "whole"):
        out = str(tmp_path / name)
        given = [str(tmp_path / f"{name}.hdf5"), "--dataset", "mine", "--out", out]
        assert main(["shard", *given, "--part-rows", "10"]) == 0
        stores.append(Store(out))
    assert len(stores[0].manifest.parts) > 2
    for field in ("observations", "actions", "rewards"):
        first, second = (store.read(field) for store in stores)
        np.testing.assert_array_equal(first, second)
    # Its content is that of its sources, whose bytes are not in it.
    before = D4rlHdf5(path).describe().digest
    assert before == D4rlHdf5(path).describe().digest
    write(tmp_path / "b.src", transitions(2))
    assert D4rlHdf5(path).describe().digest != before


def test_order_is_that_of_the_virtual_rows(sources, tmp_path):
    path = write_virtual(tmp_path / "all.hdf5", sources[0], (ROWS, 0))
    with hdf5.open_hdf5(path) as file:
        found = hdf5_datasets.find_rows(file, "actions", path)
        rows = hdf5.read(found, ROWS - 3, ROWS + 3, path)
    first, second = (each["actions"] for each in sources)
    np.testing.assert_array_equal(rows, np.concatenate([second[-3:], first[:3]]))


@pytest.mark.parametrize("folder", ["below/deeper", "."])
def test_sources_may_lie_below_and_the_file_may_be_a_link(sources, tmp_path, folder):
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    for name in "ab":
        place = tmp_path / folder / f"{name}.src"
        if not place.exists():
            shutil.move(tmp_path / f"{name}.src", place)
    names = [f"{folder}/{name}.src" for name in "ab"]
    write_virtual(tmp_path / "all.hdf5", sources[0], (0, ROWS), names=names)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "link.hdf5").symlink_to(tmp_path / "all.hdf5")
    assert len(D4rlHdf5(str(elsewhere / "link.hdf5")).describe().lengths) == 6


def refuse(path, message):
    with pytest.raises(DataFormatError, match=message) as said:
        D4rlHdf5(str(path)).describe()
    assert "\n" not in str(said.value)


def test_a_source_that_is_missing_is_named(sources, tmp_path):
    path = write_virtual(tmp_path / "all.hdf5", sources[0], (0, ROWS))
    (tmp_path / "b.src").unlink()
    refuse(path, r"takes values from b\.src, which is not there")


@pytest.mark.parametrize("kind", ["above", "absolute", "link"])
def test_sources_elsewhere_are_not_read(sources, tmp_path, kind):
    inside = tmp_path / "inside"
    inside.mkdir()
    for name in "ab":
        shutil.copy(tmp_path / f"{name}.src", inside)
    secret = tmp_path / "a.src"
    name = {"above": "../a.src", "absolute": str(secret)}.get(kind, "x.src")
    if kind == "link":
        (inside / "x.src").symlink_to(secret)
    good = write_virtual(inside / "good.hdf5", sources[0], (0, ROWS))
    D4rlHdf5(good).describe()
    path = write_virtual(
        inside / "all.hdf5", sources[0], (0, ROWS), names=(name, "b.src")
    )
    refuse(path, "only files beside or below its own are read")


def test_where_hdf5_would_look_for_sources_is_no_matter(sources, tmp_path, monkeypatch):
    """HDF5 finds a source in the working folder, or by a variable, too."""
    path = write_virtual(tmp_path / "all.hdf5", sources[0], (0, ROWS))
    other = tmp_path / "other"
    other.mkdir()
    shutil.move(tmp_path / "b.src", other / "b.src")
    monkeypatch.chdir(other)
    monkeypatch.setenv("HDF5_VDS_PREFIX", str(other))
    refuse(path, r"b\.src, which is not there")


@pytest.mark.parametrize("places", [(0, ROWS + 3), (0, ROWS - 3), (3, ROWS)])
def test_every_row_comes_from_one_row(sources, tmp_path, places):
    with h5py.File(tmp_path / "all.hdf5", "w") as file:
        for name, values in sources[0].items():
            n = 2 * ROWS + 3
            layout = h5py.VirtualLayout((n, *values.shape[1:]), values.dtype)
            for source, at in zip(("a.src", "b.src"), places, strict=True):
                piece = h5py.VirtualSource(source, name, shape=values.shape)
                layout[at : at + ROWS] = piece
            file.create_virtual_dataset(name, layout)
    refuse(tmp_path / "all.hdf5", "expected each to be one row of one file")


def test_rows_that_are_taken_twice_are_refused(sources, tmp_path):
    path = write_virtual(
        tmp_path / "all.hdf5", sources[0], (0, ROWS), names=("a.src", "a.src")
    )
    refuse(path, "several that are one")


def test_other_pieces_than_whole_rows_are_refused(tmp_path):
    write(tmp_path / "a.src", {"x": np.zeros((4, 2))})
    layout = h5py.VirtualLayout((4, 4), "f8")
    layout[:, :2] = layout[:, 2:] = h5py.VirtualSource("a.src", "x", shape=(4, 2))
    with h5py.File(tmp_path / "all.hdf5", "w") as file:
        file.create_virtual_dataset("x", layout)
    with (
        hdf5.open_hdf5(str(tmp_path / "all.hdf5")) as file,
        pytest.raises(DataFormatError, match="other pieces than whole rows"),
    ):
        hdf5_datasets.find_rows(file, "x", "all.hdf5")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("dtype", r"expected observations as float64\['rows', 4\], got float32"),
        ("width", r"got float64\['rows', 5\]"),
        ("nothing", "expected a data set observations, got nothing"),
        ("virtual", "is a virtual data set: its values are in other files"),
        ("external", "is external storage: its values are in other files"),
        ("link", "is a link to secret.hdf5, another file"),
        ("short", "never written in full"),
    ],
)
def test_sources_are_checked_as_all_else(sources, tmp_path, kind, message):
    path = write_virtual(tmp_path / "all.hdf5", sources[0], (0, ROWS))
    shutil.copy(tmp_path / "a.src", tmp_path / "secret.hdf5")
    (tmp_path / "secret").write_bytes(b"mine" * 200)
    states = sources[1]["observations"]
    with h5py.File(tmp_path / "b.src", "r+") as file:
        del file["observations"]
        if kind == "dtype":
            file["observations"] = states.astype("f4")
        elif kind == "width":
            file["observations"] = np.zeros((ROWS, 5))
        elif kind == "virtual":
            layout = h5py.VirtualLayout(states.shape, states.dtype)
            layout[:] = h5py.VirtualSource("a.src", "observations", shape=states.shape)
            file.create_virtual_dataset("observations", layout)
        elif kind == "external":
            external = [(str(tmp_path / "secret"), 0, states.nbytes)]
            file.create_dataset(
                "observations", states.shape, states.dtype, external=external
            )
        elif kind == "link":
            file["observations"] = h5py.ExternalLink("secret.hdf5", "observations")
        elif kind == "short":
            file.create_dataset("observations", states.shape, states.dtype)
    refuse(path, message)


def test_they_are_read_from_local_files_only(sources, tmp_path, monkeypatch):
    path = write_virtual(tmp_path / "all.hdf5", sources[0], (0, ROWS))
    D4rlHdf5(path).describe()
    # As of gs://, which is read through a stream and has no folder.
    monkeypatch.setattr(hdf5, "is_remote", lambda path: True)
    refuse(path, "read from local files only")


def test_values_in_its_own_file_are_found_by_a_point(tmp_path):
    path = tmp_path / "all.hdf5"
    with h5py.File(path, "w") as file:
        file["y"] = np.arange(6.0).reshape(3, 2)
        layout = h5py.VirtualLayout((3, 2), "f8")
        layout[:] = h5py.VirtualSource(".", "y", shape=(3, 2))
        file.create_virtual_dataset("x", layout)
    with hdf5.open_hdf5(str(path)) as file:
        found = hdf5_datasets.find_rows(file, "x", "all.hdf5")
        assert hdf5.read(found, 1, 3, "x").tolist() == [[2, 3], [4, 5]]
    assert os.path.realpath(path) == found.pieces[0].path


def test_no_damage_of_a_source_ends_in_a_traceback(sources, tmp_path):
    path = write_virtual(tmp_path / "all.hdf5", sources[0], (0, ROWS))
    found = drill_source(
        lambda _: D4rlHdf5(path), tmp_path / "b.src", mutate_bytes, count=300
    )
    assert found.read > 0 < found.refused
