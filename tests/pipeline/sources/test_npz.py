import io
import threading
import zipfile

import numpy as np
import pytest

from pipeline.sources import npz
from pipeline.store.errors import DataFormatError

VALUES = np.arange(6, dtype=np.float32)


def refuse(path, data):
    path.write_bytes(data)
    with pytest.raises(DataFormatError) as said:
        npz.list_archive(str(path), ["x"])
    return str(said.value)


def archive_of(member, method=zipfile.ZIP_STORED):
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", method) as archive:
        archive.writestr("x.npy", member)
    return bytearray(written.getvalue())


def member_of(values):
    written = io.BytesIO()
    np.save(written, values)
    return written.getvalue()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_methods_of_compression_are_refused(tmp_path, method):
    said = refuse(tmp_path / "a.npz", archive_of(member_of(VALUES), method))
    assert f"stored or deflated, got compression method {method}" in said


def test_encryption_is_refused(tmp_path):
    data = archive_of(member_of(VALUES))
    data[data.rindex(b"PK\1\2") + 8] |= 1
    assert "and encryption" in refuse(tmp_path / "a.npz", data)


def test_more_bytes_than_deflate_could_hold_are_refused(tmp_path):
    data = archive_of(member_of(VALUES))
    size = data.rindex(b"PK\1\2") + 24
    data[size : size + 4] = (1 << 31).to_bytes(4, "little")
    said = refuse(tmp_path / "a.npz", data)
    assert "speaks of 2,147,483,648 bytes, kept in 152 of" in said
    data[size - 4 : size] = (1 << 31).to_bytes(4, "little")
    assert "kept in 2,147,483,648 of" in refuse(tmp_path / "a.npz", data)


def test_a_place_before_the_beginning_is_refused(tmp_path):
    data = archive_of(member_of(VALUES))
    offset = data.rindex(b"PK\5\6") + 16
    data[offset : offset + 4] = (1 << 20).to_bytes(4, "little")
    assert "x" in refuse(tmp_path / "a.npz", data)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"\x93NUMPY\x02\x00" + (1 << 31).to_bytes(4, "little"), "10,000 bytes"),
        (b"\x93NUMPY\x01\x00\x04\x00((((", "array header"),
        (b"\x93NUMPY\x09\x00", "array header"),
        (b"", "array header"),
    ],
)
def test_headers_that_are_none_are_refused(tmp_path, header, message):
    assert message in refuse(tmp_path / "a.npz", archive_of(header + b" " * 100))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ("(-2, -3)", "at least one number a row, got shape [-2, -3]"),
        ("(6, 0)", "at least one number a row"),
        ("(68719476736,)", "its header speaks of 274,877,907,"),
    ],
)
def test_shapes_that_cannot_be_are_refused(tmp_path, shape, message):
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}"
    header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    assert message in refuse(tmp_path / "a.npz", archive_of(header + b"\0" * 24))


def test_a_header_of_python_2_is_read_in_silence(tmp_path):
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (6L,)}"
    header = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
    path = tmp_path / "a.npz"
    path.write_bytes(archive_of(header + VALUES.tobytes()))
    assert npz.list_archive(str(path), ["x"]).members["x"].shape == (6,)


def test_numbers_of_more_than_64_bits_are_refused(tmp_path):
    data = archive_of(member_of(np.zeros(3, np.longdouble)))
    assert "at most 64 bits" in refuse(tmp_path / "a.npz", data)


def test_a_stream_that_is_given_up_waits_for_no_thread(tmp_path, monkeypatch):
    """Python's collector may close it in a thread that is just starting."""
    path = str(tmp_path / "a.npz")
    np.savez(path, x=VALUES)
    blocks = npz.stream(
        path, npz.list_archive(path, ["x"]).members, [(0, 2), (2, 2), (4, 2)]
    )
    assert next(blocks)["x"].tolist() == [0, 1]

    def join(thread, timeout=None):
        raise AssertionError(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "join", join)
        blocks.close()
