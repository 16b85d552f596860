"""Reading npz archives as streams: rows in order, in bounded memory.

NumPy opens a member of an npz whole or not at all. Here the zip directory and the
array headers tell what is there, and the bytes are inflated a block at a time. Knows
nothing of what the members mean, and never unpickles. An archive may say anything of
itself: what it declares is held against the bytes it has before memory is taken.
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

# Inflating lets go of the interpreter, so two members are read at once.
_THREADS = 2
# The most that deflate makes of one byte.
MAX_COMPRESSION = 1032
# What a zip archive has before each member.
_MEMBER_HEADER_BYTES, _LENGTHS = 30, struct.Struct("<HH")
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 1
_MAX_ITEM_BYTES = 8
# NumPy's own limit; its version 2 may announce 4 GB.
_MAX_HEADER_BYTES = 10_000
# What zipfile raises of bytes that are no archive, besides BadZipFile.
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
# And NumPy, of a header: it is the text of a Python value, which Python parses.
_BAD_HEADER = (*_DAMAGE, SyntaxError, TypeError, MemoryError, tokenize.TokenError)
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@dataclass(frozen=True)
class Member:
    """One array of an archive, from its header.

    Attributes:
        name: Without ``.npy``.
        dtype: As stored.
        shape: As stored, rows first.
        extent: Where it lies in the archive.
        header_bytes: Bytes before its first row.
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
        """Bytes of the member before a row."""
        return self.header_bytes + row * self.row_bytes


@dataclass(frozen=True)
class Listing:
    """What an archive says of itself.

    Attributes:
        members: Headers of the members that were asked for and are there, by name.
        names: All of its arrays, in its order.
        digest: ``sha256:...`` of the names, sizes and CRC-32 sums in its directory,
            which identifies its content.
    """

    members: dict[str, Member]
    names: tuple[str, ...]
    digest: str


def list_archive(path: str, names: Sequence[str]) -> Listing:
    """Reads an archive's directory, and the headers of some members.

    Args:
        path: The archive, local or ``gs://``; it is opened once.
        names: Members whose headers are wanted.

    Returns:
        What was found.

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


def member_names(path: str) -> list[str]:
    """Names of all arrays of an archive, in its order."""
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
            # Opened to be looked at: its name, its size and how it is kept.
            _open_member(archive, name, path).close()
            extent = _find_extent(file, archive, name)
            try:
                MemberReader(file, extent).skip(extent.size)
            except _DAMAGE as error:
                raise _damaged(f"{path}: {name.removesuffix('.npy')}", error) from error


def read_array(path: str, member: Member) -> Array:
    """Reads one member whole: only for small ones."""
    blocks = stream(path, {member.name: member}, [(0, member.shape[0])])
    return next(blocks)[member.name]


def find_seek_points(
    path: str, members: Mapping[str, Member], rows: Sequence[int]
) -> list[dict[str, SeekPoint]]:
    """Reads members through, and notes where `stream` can take them up.

    Args:
        path: The archive.
        members: What will be read.
        rows: First row that each reader will want.

    Returns:
        For each reader, places by member.

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
        found = list(pool.map(find, _widest_first(members)))
    names = [member.name for member in _widest_first(members)]
    return [
        dict(zip(names, points, strict=True)) for points in zip(*found, strict=True)
    ]


def stream(
    path: str,
    members: Mapping[str, Member],
    slices: Sequence[tuple[int, int]],
    points: Mapping[str, SeekPoint] | None = None,
) -> Iterator[dict[str, Array]]:
    """Streams blocks of rows of several members in lock-step.

    The next block is inflated while the caller works on this one. What lies between
    has to be inflated too, and what lies before as far as the place where a member is
    taken up; it is thrown away.

    Args:
        path: The archive.
        members: What to read, from `list_archive`.
        slices: First row and number of rows of each block, in order.
        points: Where to take up members, from `find_seek_points`; those that lie
            behind the first row are of no use, and left.

    Yields:
        ``[count, ...]`` of each member, in native byte order.

    Raises:
        DataFormatError: If bytes are damaged or missing.
    """
    with contextlib.ExitStack() as stack:
        # A handle each: members read through one would have to take turns, and over a
        # network throw away what the other had read ahead.
        readers = {
            name: _Reader(
                stack.enter_context(files.open_file(path)),
                member,
                path,
                _usable((points or {}).get(name), member, slices),
            )
            for name, member in members.items()
        }
        pool = ThreadPoolExecutor(_THREADS)
        # Nobody waits for its threads: what was given up half-way may be closed by
        # Python's collector in a thread that is just starting, where waiting for
        # another one never ends.
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
    """Members in an order in which none is left to one thread at the end."""
    return sorted(members.values(), key=lambda member: -member.row_bytes)


def _usable(
    point: SeekPoint | None, member: Member, slices: Sequence[tuple[int, int]]
) -> SeekPoint:
    """The point, if all that is wanted lies behind it."""
    first = member.position(slices[0][0]) if slices else 0
    return point if point is not None and point.position <= first else BEGINNING


class _Reader:
    """Rows of one member, in order."""

    def __init__(
        self, file: BinaryIO, member: Member, path: str, point: SeekPoint
    ) -> None:
        self._member, self._path = member, path
        self._bytes = MemberReader(file, member.extent, point)

    def read(self, first_row: int, count: int) -> Array:
        """Reads rows at or after the last ones that were read."""
        rows = np.empty((count, *self._member.shape[1:]), self._member.dtype)
        try:
            self._bytes.skip(self._member.position(first_row) - self._bytes.position)
            if rows.nbytes:
                self._bytes.fill(rows.reshape(-1).view(np.uint8).data)
        except _DAMAGE as error:
            raise _damaged(f"{self._path}: {self._member.name}", error) from error
        return rows.astype(rows.dtype.newbyteorder("="), copy=False)


def _damaged(where: str, error: Exception) -> DataFormatError:
    return DataFormatError(
        f"{where}: bytes are damaged ({error}); fetch the file again"
    )


@contextlib.contextmanager
def _open(path: str) -> Iterator[tuple[BinaryIO, zipfile.ZipFile]]:
    with files.open_file(path) as file:
        try:
            with _sought():
                archive = zipfile.ZipFile(file)
        except _DAMAGE as error:
            raise DataFormatError(
                f"{path}: expected a whole npz archive, got {files.size(path):,} "
                f"bytes without its directory ({error}). It was cut short or is no "
                "npz; compare its size with the original and fetch it again"
            ) from error
        with archive:
            yield file, archive


@contextlib.contextmanager
def _sought() -> Iterator[None]:
    """Raises as ValueError that a place lies before a file's beginning.

    That comes of an offset in the archive; any other OSError is of the disk or network.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise ValueError(str(error)) from error


def _open_member(archive: zipfile.ZipFile, name: str, path: str) -> IO[bytes]:
    """Opens a member, if it is one that NumPy writes and as large as it says."""
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
        with _sought():
            return archive.open(info)
    except _DAMAGE as error:
        raise DataFormatError(
            f"{where}: cannot be opened ({error}); the file is damaged, fetch it again"
        ) from error


def _find_extent(file: BinaryIO, archive: zipfile.ZipFile, name: str) -> Extent:
    """Where a member lies, once it has been opened without complaint."""
    info = archive.getinfo(name)
    header_end = info.header_offset + _MEMBER_HEADER_BYTES
    # The last of its numbers are how many bytes of name and of extra fields follow.
    file.seek(header_end - _LENGTHS.size)
    start = header_end + sum(_LENGTHS.unpack(file.read(_LENGTHS.size)))
    deflated = info.compress_type == zipfile.ZIP_DEFLATED
    return Extent(start, info.compress_size, info.file_size, info.CRC, deflated)


def _digest(archive: zipfile.ZipFile) -> str:
    """Identifies an archive's content without reading it."""
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
            # A header as Python 2 wrote it is read all the same; NumPy would have the
            # user save the file again.
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
    """Looks at how long a header of version 2 is, before it is read."""
    announced = stream.peek(4)[:4] if version == (2, 0) else b""  # type: ignore[attr-defined]
    if int.from_bytes(announced, "little") > _MAX_HEADER_BYTES:
        raise ValueError(f"a header of more than {_MAX_HEADER_BYTES:,} bytes")
