import h5py
import numpy as np
import pytest

from pipeline.sources import hdf5, hdf5_datasets
from pipeline.store.errors import DataFormatError


def test_what_is_no_hdf5_is_refused():
    with (
        pytest.raises(DataFormatError, match="expected a whole HDF5"),
        hdf5.open_hdf5(__file__),
    ):
        pass


@pytest.fixture
def refused(tmp_path):
    """Writes a file and gives what is said of its data set x; the file stays small."""

    def refuse(fill):
        path = tmp_path / "a.hdf5"
        with h5py.File(path, "w") as file:
            fill(file)
        assert path.stat().st_size < 20_000
        with (
            hdf5.open_hdf5(str(path)) as file,
            pytest.raises(DataFormatError) as said,
        ):
            hdf5_datasets.find_rows(file, "x", str(path))
        return str(said.value)

    return refuse


def test_values_of_other_files_are_refused(refused, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"mine" * 6)
    said = refused(
        lambda file: file.create_dataset("x", (3,), "f8", external=[(secret, 0, 24)])
    )
    assert "x is external storage: its values are in other files" in said


def test_links_out_of_a_file_are_refused_and_others_followed(refused, tmp_path):
    def fill(file):
        file["out"] = h5py.ExternalLink("other.hdf5", "/")
        file["x"] = h5py.SoftLink("/out/y")

    assert "out/y is a link to other.hdf5, another file" in refused(fill)

    def loop(file):
        file["x"] = h5py.SoftLink("/x")

    assert "more than 16 of them" in refused(loop)
    path = tmp_path / "b.hdf5"
    with h5py.File(path, "w") as file:
        file["deep/y"] = np.arange(3.0)
        file["deep/z"] = h5py.SoftLink("y")
        file["x"] = h5py.SoftLink("/deep/z")
    with hdf5.open_hdf5(str(path)) as file:
        rows = hdf5.read(hdf5_datasets.find_rows(file, "x", "b"), 0, 3, "b")
    assert rows.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("chunks", [None, (1024,), (1 << 28,)])
def test_rows_that_are_declared_and_not_there_take_no_memory(refused, chunks):
    said = refused(
        lambda file: file.create_dataset("x", (1 << 36,), "f4", chunks=chunks)
    )
    assert "expected 274,877,906,944 bytes" in said
    assert "got 0 stored" in said


def test_a_chunk_that_is_missing_does_not_read_as_zeros(refused):
    def fill(file):
        file.create_dataset("x", (4096,), "u1", chunks=(64,), compression="gzip")
        file["x"][:64] = 1
        file["x"][128:] = 1

    assert "63 of 64 chunks" in refused(fill)


def test_what_deflate_makes_of_zeros_is_read(tmp_path):
    path = str(tmp_path / "a.hdf5")
    rows = np.zeros(1 << 22, np.uint8)
    with h5py.File(path, "w") as file:
        found = file.create_dataset("x", data=rows, chunks=len(rows), compression=9)
        assert found.id.get_storage_size() * 1000 < len(rows)
    with hdf5.open_hdf5(path) as file:
        found = hdf5.read(hdf5_datasets.find_rows(file, "x", path), 0, len(rows), path)
    np.testing.assert_array_equal(found, rows)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.zeros((3, 0)), "at least one number a row"),
        (np.zeros(3, np.longdouble), "at most 64 bits"),
        (np.float64(1.0), "one row per step"),
        (np.array([b"a"]), "expected numbers"),
        (h5py.Empty("f4"), "one row per step"),
    ],
)
def test_what_is_no_row_of_numbers_is_refused(refused, values, message):
    assert message in refused(lambda file: file.create_dataset("x", data=values))


def test_a_compression_that_is_not_installed_is_named(tmp_path):
    path = str(tmp_path / "a.hdf5")
    blosc = 32001  # Number of the filter of the package hdf5plugin.
    with h5py.File(path, "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((4,))
        properties.set_filter(blosc, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple((4,))
        kind = h5py.h5t.IEEE_F32LE
        rows = h5py.h5d.create(file.id, b"rows", kind, space, properties)
        rows.write_direct_chunk((0,), bytes(16))
    with hdf5.open_hdf5(path) as file:
        dataset = hdf5.find_dataset(file, "rows", path)
        with pytest.raises(DataFormatError, match="got filter 32001, which is not ins"):
            hdf5.read(dataset, 0, 4, path)
