"""Reads TFRecord and ArrayRecord files without TensorFlow.

The module compares the checksum of every record, and knows nothing of what the records
contain.
"""

import contextlib
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

from pipeline.sources import files
from pipeline.store.errors import DataFormatError, MissingPackageError, UsageError
from pipeline.store.files import is_remote

FORMATS = ("tfrecord", "array_record")
# A TFRecord is a length with its checksum, then the bytes with their checksum.
_LENGTH, _SUM = struct.Struct("<QI"), struct.Struct("<I")
# TFRecord rotates its checksums and adds this constant, because the CRC of a string
# that contains its own CRC is a weak check.
_MASK_DELTA = 0xA282EAD8
_32_BITS = 0xFFFFFFFF


def count_records(path: str, form: str) -> int:
    """Counts the records of a file.

    Args:
        path: The file, local, or ``gs://`` for TFRecord.
        form: One of `FORMATS`.

    Returns:
        Number of records.

    Raises:
        UsageError: If there is no such file.
        DataFormatError: If the file is damaged.
    """
    if form == "array_record":
        with _opened_array(path) as reader:
            return int(reader.num_records())
    with files.open_file(path) as stream:
        return sum(1 for _ in _places(stream, path))


def read_records(path: str, form: str, first: int, count: int) -> Iterator[bytes]:
    """Reads consecutive records of a file.

    Args:
        path: The file, as for `count_records`.
        form: One of `FORMATS`.
        first: Index of the first record to read.
        count: Number of records to read; the file may end before.

    Yields:
        The records, in order.

    Raises:
        UsageError: If there is no such file.
        DataFormatError: If bytes are damaged.
    """
    if form == "array_record":
        with _opened_array(path) as reader:
            for index in range(first, min(first + count, reader.num_records())):
                with _damage(path, index):
                    (record,) = reader.read([index])
                yield record
        return
    with files.open_file(path) as stream:
        for index, size in enumerate(_places(stream, path)):
            if index >= first + count:
                return
            if index >= first:
                data = stream.read(size + _SUM.size)
                if _masked(data[:size]) != _SUM.unpack(data[size:])[0]:
                    raise _damaged(path, index, "its checksum is another")
                yield data[:size]


def _places(stream: BinaryIO, path: str) -> Iterator[int]:
    """Yields the size of each record, with the stream positioned at its bytes.

    The caller may read the record or not: the next one is found by a seek.
    """
    size, position, index = files.size(path), 0, 0
    while position < size:
        stream.seek(position)
        header = stream.read(_LENGTH.size)
        if len(header) < _LENGTH.size:
            raise _damaged(path, index, "the file ends in it")
        length, checksum = _LENGTH.unpack(header)
        if _masked(header[:8]) != checksum:
            raise _damaged(path, index, "the checksum of its length is another")
        position += _LENGTH.size + length + _SUM.size
        if position > size:
            raise _damaged(path, index, "the file ends in it")
        yield length
        index += 1


def _masked(data: bytes) -> int:
    """Computes TFRecord's masked CRC-32C of some bytes."""
    import google_crc32c

    value = int(google_crc32c.value(data))
    return ((value >> 15 | value << 17) + _MASK_DELTA) & _32_BITS


@contextlib.contextmanager
def _opened_array(path: str) -> Iterator[Any]:
    """Opens an ArrayRecord file."""
    try:
        from array_record.python.array_record_module import ArrayRecordReader
    except ImportError as error:
        raise MissingPackageError(
            f"{path}: reading ArrayRecord needs array-record ({error}); install it "
            "with `pip install 'vast-rl[rlds]'`"
        ) from error
    if is_remote(path):
        raise UsageError(
            f"{path}: ArrayRecord is read from local files only; copy the data set "
            "here, or write it as TFRecord"
        )
    files.open_file(path).close()  # Raises UsageError if the file does not exist.
    reader = ArrayRecordReader(path)
    try:
        yield reader
    finally:
        # ArrayRecord opens a damaged file as one without records, and reports the
        # damage only when it is closed.
        with _damage(path, 0):
            reader.close()


@contextlib.contextmanager
def _damage(path: str, index: int) -> Iterator[None]:
    """Turns ArrayRecord's exceptions into one line with advice."""
    try:
        yield
    except (RuntimeError, ValueError, IndexError) as error:
        raise _damaged(path, index, " ".join(str(error).split())) from error


def _damaged(path: str, index: int, why: str) -> DataFormatError:
    """Builds the error for a damaged record."""
    return DataFormatError(
        f"{path}: record {index} cannot be read ({why}); the file is damaged or cut "
        "short, fetch it again"
    )
