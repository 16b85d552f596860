"""Reads npz archives as streams of rows, in bounded memory.

NumPy loads a member of an npz whole or not at all. This module reads the zip directory
and the array headers itself, and inflates the members a block of rows at a time. It
knows nothing of what the members mean, and never unpickles. An archive may come from a
stranger: the sizes that it declares are compared with the bytes that it has before
memory is allocated.
"""

import contextlib
import errno
import hashlib
import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from pipeline.sources import files, seek_points
from pipeline.sources.deflate import BEGINNING, Extent, MemberReader, SeekPoint
from pipeline.store.errors import DataFormatError

Array = npt.NDArray[Any]

# ISA-L releases the interpreter lock while it inflates, so that two members can be
# inflated at once.
_THREADS = 2
# Deflate inflates one byte to at most 1032.
MAX_COMPRESSION = 1032
# Size of the header before each member of a zip archive, and its last two fields.
_MEMBER_HEADER_BYTES, _LENGTHS = 30, struct.Struct("<HH")
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1
_MAX_ITEM_BYTES = 8
# NumPy refuses longer headers, but only after reading them, and a header of version 2
# may declare 4 GB.
_MAX_HEADER_BYTES = 10_000
# Exceptions that zipfile raises for bytes that are no archive, as fuzzed files showed.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    ValueError,
    KeyError,
    IndexError,
    RuntimeError,
    OverflowError,
    struct.error,
)
# An array header is the text of a Python literal, so NumPy also raises what Python's
# parser raises.
_BAD_HEADER = (*_DAMAGE, SyntaxError, TypeError, MemoryError, tokenize.TokenError)
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@dataclass(frozen=True)
class Member:
    """One array of an archive, described by its header.

    Attributes:
        name: Name of the member, without ``.npy``.
        dtype: Dtype in the file.
        shape: Shape in the file, rows first.
        extent: Position and size of the member in the archive.
        header_bytes: Bytes of the member before its first row.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    extent: Extent
    header_bytes: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one row, inflated."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    def position(self, row: int) -> int:
        """Computes how many bytes of the member lie before a row."""
        return self.header_bytes + row * self.row_bytes


@dataclass(frozen=True)
class Listing:
    """The directory of an archive.

    Attributes:
        members: Headers of those requested members that exist, by name.
        names: Names of all arrays, in the archive's order.
        digest: ``sha256:...`` of the names, sizes and CRC-32 sums in the directory. It
            identifies the content without reading it.
    """

    members: dict[str, Member]
    names: tuple[str, ...]
    digest: str


def list_archive(path: str, names: Sequence[str]) -> Listing:
    """Reads an archive's directory, and the headers of some members.

    Args:
        path: The archive, local or ``gs://``; it is opened once, because every opening
            costs a request to a bucket.
        names: Names of the members whose headers to read.

    Returns:
        The directory and those headers.

    Raises:
        UsageError: If there is no such file.
        DataFormatError: If the archive is cut short, or a member cannot be streamed.
    """
    with _open(path) as (file, archive):
        present = archive.namelist()
        members = {}
        for name in names:
            if f"{name}.npy" in present:
                with _open_member(archive, f"{name}.npy", path) as stream:
                    extent = _find_extent(file, archive, f"{name}.npy")
                    members[name] = _read_header(stream, extent, name, path)
        arrays = tuple(name.removesuffix(".npy") for name in present)
        return Listing(members, arrays, _digest(archive))


def list_members(path: str) -> list[str]:
    """Lists the names of all arrays of an archive, in the archive's order."""
    with _open(path) as (_, archive):
        return [name.removesuffix(".npy") for name in archive.namelist()]


def check_sums(path: str) -> None:
    """Reads an archive through and compares the CRC-32 sum of every member.

    Args:
        path: The archive.

    Raises:
        DataFormatError: If bytes of a member are damaged or missing.
    """
    with _open(path) as (file, archive):
        for name in archive.namelist():
            # Opening checks the name, the size and the compression of the member.
            _open_member(archive, name, path).close()
            extent = _find_extent(file, archive, name)
            try:
                MemberReader(file, extent).skip(extent.size)
            except _DAMAGE as error:
                raise _damaged(f"{path}: {name.removesuffix('.npy')}", error) from error


def read_array(path: str, member: Member) -> Array:
    """Reads a small member into memory."""
    blocks = stream(path, {member.name: member}, [(0, member.shape[0])])
    return next(blocks)[member.name]


def find_seek_points(
    path: str, members: Mapping[str, Member], rows: Sequence[int]
) -> list[dict[str, SeekPoint]]:
    """Reads members through once, and notes places from which `stream` can start.

    Args:
        path: The archive.
        members: Members that readers will stream.
        rows: First row of each reader.

    Returns:
        One mapping for each reader: seek points by name of the member.

    Raises:
        DataFormatError: If bytes of one of the members are damaged or missing.
    """

    def find(member: Member) -> list[SeekPoint]:
        positions = [member.position(row) for row in rows]
        try:
            with files.open_file(path) as file:
                return seek_points.find(file, member.extent, positions)
        except _DAMAGE as error:
            raise _damaged(f"{path}: {member.name}", error) from error

    with ThreadPoolExecutor(_THREADS) as pool:
        by_member = list(pool.map(find, _widest_first(members)))
    names = [member.name for member in _widest_first(members)]
    return [
        dict(zip(names, points, strict=True)) for points in zip(*by_member, strict=True)
    ]


def stream(
    path: str,
    members: Mapping[str, Member],
    slices: Sequence[tuple[int, int]],
    points: Mapping[str, SeekPoint] | None = None,
) -> Iterator[dict[str, Array]]:
    """Streams blocks of rows of several members in lock-step.

    The next block is inflated while the caller works on the current one. Deflate cannot
    skip: rows between two blocks, and rows between the seek point and the first block,
    are inflated and thrown away.

    Args:
        path: The archive.
        members: Members to read, from `list_archive`.
        slices: First row and number of rows of each block, in order.
        points: Seek points by name of the member, from `find_seek_points`. A point
            behind the first row is not used.

    Yields:
        ``[count, ...]`` for each member, in native byte order.

    Raises:
        DataFormatError: If bytes are damaged or missing.
    """
    with contextlib.ExitStack() as stack:
        # Every member has its own file handle. On a shared handle members would have to
        # take turns, and on a network each would discard the other's read-ahead.
        readers = {
            name: _Reader(
                stack.enter_context(files.open_file(path)),
                member,
                path,
                _choose_start((points or {}).get(name), member, slices),
            )
            for name, member in members.items()
        }
        pool = ThreadPoolExecutor(_THREADS)
        # Shutting down does not wait for the threads. Python's garbage collector may
        # close an abandoned stream within a thread that is just starting; that thread
        # holds a lock which joining another thread needs, and test runs hung that way.
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        order = [member.name for member in _widest_first(members)]

        def submit(first_row: int, count: int) -> dict[str, Future[Array]]:
            return {
                name: pool.submit(readers[name].read, first_row, count)
                for name in order
            }

        pending = submit(*slices[0]) if slices else {}
        for following in [*slices[1:], None][: len(slices)]:
            block = {name: pending[name].result() for name in members}
            pending = {} if following is None else submit(*following)
            yield block


def _widest_first(members: Mapping[str, Member]) -> list[Member]:
    """Sorts members by row size, so that no thread starts the widest one last."""
    return sorted(members.values(), key=lambda member: -member.row_bytes)


def _choose_start(
    point: SeekPoint | None, member: Member, slices: Sequence[tuple[int, int]]
) -> SeekPoint:
    """Returns the seek point if all slices lie behind it, else the beginning."""
    first = member.position(slices[0][0]) if slices else 0
    return point if point is not None and point.position <= first else BEGINNING


class _Reader:
    """Reads the rows of one member in order."""

    def __init__(
        self, file: BinaryIO, member: Member, path: str, point: SeekPoint
    ) -> None:
        self._member, self._path = member, path
        self._bytes = MemberReader(file, member.extent, point)

    def read(self, first_row: int, count: int) -> Array:
        """Reads rows at or behind the end of the last ones that were read."""
        rows = np.empty((count, *self._member.shape[1:]), self._member.dtype)
        try:
            self._bytes.skip(self._member.position(first_row) - self._bytes.position)
            if rows.nbytes:
                self._bytes.fill(rows.reshape(-1).view(np.uint8).data)
        except _DAMAGE as error:
            raise _damaged(f"{self._path}: {self._member.name}", error) from error
        return rows.astype(rows.dtype.newbyteorder("="), copy=False)


def _damaged(where: str, error: Exception) -> DataFormatError:
    """Builds the error for damaged bytes of a member."""
    return DataFormatError(
        f"{where}: bytes are damaged ({error}); fetch the file again"
    )


@contextlib.contextmanager
def _open(path: str) -> Iterator[tuple[BinaryIO, zipfile.ZipFile]]:
    """Opens an archive and reads its directory."""
    with files.open_file(path) as file:
        try:
            with _seek_errors():
                archive = zipfile.ZipFile(file)
        except _DAMAGE as error:
            raise DataFormatError(
                f"{path}: expected a whole npz archive, got {files.size(path):,} "
                f"bytes without its directory ({error}). It was cut short or is no "
                "npz; compare its size with the original and fetch it again, or see "
                "`python -m pipeline inputs` for the kinds that can be read"
            ) from error
        with archive:
            yield file, archive


@contextlib.contextmanager
def _seek_errors() -> Iterator[None]:
    """Raises ValueError for a seek to a negative position, which damaged bytes cause.

    Any other OSError is a fault of the disk or network, and passes unchanged.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise ValueError(str(error)) from error


def _open_member(archive: zipfile.ZipFile, name: str, path: str) -> IO[bytes]:
    """Opens a member, after checking its compression and declared size."""
    where = f"{path}: {name.removesuffix('.npy')}"
    info = archive.getinfo(name)
    if info.flag_bits & _ENCRYPTED or info.compress_type not in _METHODS:
        raise DataFormatError(
            f"{where}: expected a member as NumPy writes them, stored or deflated, got "
            f"compression method {info.compress_type}"
            f"{' and encryption' if info.flag_bits & _ENCRYPTED else ''}; write it "
            "with np.savez_compressed, or fetch the file again"
        )
    deflated = info.compress_type == zipfile.ZIP_DEFLATED
    most = info.compress_size * (MAX_COMPRESSION if deflated else 1)
    if info.compress_size > archive.start_dir or info.file_size > most:
        raise DataFormatError(
            f"{where}: its directory speaks of {info.file_size:,} bytes, kept in "
            f"{info.compress_size:,} of {archive.start_dir:,}, which cannot be; fetch "
            "the file again"
        )
    try:
        with _seek_errors():
            return archive.open(info)
    except _DAMAGE as error:
        raise DataFormatError(
            f"{where}: cannot be opened ({error}); the file is damaged, fetch it again"
        ) from error


def _find_extent(file: BinaryIO, archive: zipfile.ZipFile, name: str) -> Extent:
    """Finds where the bytes of a member start; zipfile has checked its header."""
    info = archive.getinfo(name)
    header_end = info.header_offset + _MEMBER_HEADER_BYTES
    # The header ends with the lengths of the name and of the extra fields that follow.
    # They may differ from those in the directory, so that zipfile cannot be asked.
    file.seek(header_end - _LENGTHS.size)
    start = header_end + sum(_LENGTHS.unpack(file.read(_LENGTHS.size)))
    deflated = info.compress_type == zipfile.ZIP_DEFLATED
    return Extent(start, info.compress_size, info.file_size, info.CRC, deflated)


def _digest(archive: zipfile.ZipFile) -> str:
    """Digests names, sizes and CRC-32 sums of the archive's directory."""
    lines = [
        f"{info.filename} {info.file_size} {info.CRC:08x}\n"
        for info in sorted(archive.infolist(), key=lambda info: info.filename)
    ]
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def _read_header(stream: IO[bytes], extent: Extent, name: str, path: str) -> Member:
    """Reads an array's header and refuses what cannot be streamed in rows."""
    try:
        version = np.lib.format.read_magic(stream)
        _check_header_size(stream, version)
        with warnings.catch_warnings():
            # NumPy warns of headers that Python 2 wrote and advises to save the file
            # again. Such files read correctly, so the warning is hidden.
            warnings.filterwarnings(
                "ignore", r"Reading `\.npy` or `\.npz` file", UserWarning
            )
            shape, fortran, dtype = _HEADERS[version](stream)
        header_bytes = stream.tell()
    except _BAD_HEADER as error:
        raise DataFormatError(
            f"{path}: {name}: expected a NumPy array header ({error}); the file is "
            "damaged, fetch it again"
        ) from error
    if dtype.kind not in "biuf" or dtype.itemsize > _MAX_ITEM_BYTES:
        raise DataFormatError(
            f"{path}: {name}: expected numbers of at most 64 bits, got dtype {dtype}; "
            "nothing is ever unpickled here, write it as a plain numeric array"
        )
    if not shape or (fortran and len(shape) > 1):
        raise DataFormatError(
            f"{path}: {name}: expected rows in C order, got shape {list(shape)}"
            f"{' in Fortran order' if fortran else ''}; write it with "
            "np.ascontiguousarray"
        )
    if min(shape) < 0 or math.prod(shape[1:]) < 1:
        raise DataFormatError(
            f"{path}: {name}: expected at least one number a row, got shape "
            f"{list(shape)}; make or fetch the file again"
        )
    expected = header_bytes + dtype.itemsize * math.prod(shape)
    if extent.size != expected:
        raise DataFormatError(
            f"{path}: {name}: its header speaks of {expected:,} bytes, the archive "
            f"holds {extent.size:,}; fetch the file again"
        )
    return Member(name, dtype, tuple(shape), extent, header_bytes)


def _check_header_size(stream: IO[bytes], version: tuple[int, int]) -> None:
    """Refuses a header of version 2 by its declared length, before reading it."""
    announced = stream.peek(4)[:4] if version == (2, 0) else b""  # type: ignore[attr-defined]
    if int.from_bytes(announced, "little") > _MAX_HEADER_BYTES:
        raise ValueError(f"a header of more than {_MAX_HEADER_BYTES:,} bytes")
