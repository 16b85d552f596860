"""Finds places in the members of a large archive from which reading can start.

A deflate stream has no table of its blocks, and each block may refer back to the 32 KiB
before it. The library indexed_gzip notes both while it inflates a stream. It reads
gzip, which is a deflate stream between a header of ten bytes and a trailer of eight, so
a member is presented to it as a gzip file.
"""

import bisect
import io
import struct
import zlib
from collections.abc import Sequence
from typing import BinaryIO

import indexed_gzip
import numpy as np

from pipeline.sources.deflate import BEGINNING, Extent, MemberReader, SeekPoint

# Distance between seek points: a reader inflates at most so many bytes in vain. The
# number of points is bounded too, because each takes three times 32 KiB of memory while
# they are collected.
_SPACING_BYTES = 16 << 20
_MOST = 1024
_PIECE_BYTES = 1 << 20
# A gzip header without name and time, of an unknown operating system.
_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
# Format of the index that indexed_gzip exports: a header, the points, and then the
# windows of those points that have one.
_INDEX = struct.Struct("<5sBBQQIII")
_INDEX_NAME, _INDEX_VERSION = b"GZIDX", 1
_POINT = np.dtype(
    [("stored", "<u8"), ("position", "<u8"), ("bits", "u1"), ("has_window", "u1")]
)


def find(file: BinaryIO, extent: Extent, positions: Sequence[int]) -> list[SeekPoint]:
    """Reads a member through, and finds the seek points for several readers.

    Args:
        file: The archive; no other reader may use this handle at the same time.
        extent: Position and size of the member.
        positions: Offset within the member at which each reader starts.

    Returns:
        For each position, the last seek point at or before it.

    Raises:
        ValueError: If any bytes of the member are damaged. Readers that start at a seek
            point cannot compare the checksum of the whole member, so this reading does.
    """
    if not extent.deflated:
        # A stored member needs no windows; it is read only for its checksum.
        MemberReader(file, extent).skip(extent.size)
        return [SeekPoint(at, 8 * at, BEGINNING.window) for at in positions]
    points = [BEGINNING, *_index(file, extent)]
    starts = [point.position for point in points]
    return [points[bisect.bisect_right(starts, at) - 1] for at in positions]


def _index(file: BinaryIO, extent: Extent) -> list[SeekPoint]:
    """Returns all seek points except the beginning, in order."""
    exported = io.BytesIO()
    spacing = max(_SPACING_BYTES, extent.size // _MOST)
    gzip = io.BufferedReader(_AsGzip(file, extent), _PIECE_BYTES)
    try:
        with indexed_gzip.IndexedGzipFile(fileobj=gzip, spacing=spacing) as indexed:
            indexed.build_full_index()
            indexed.export_index(fileobj=exported)
    except (indexed_gzip.ZranError, indexed_gzip.indexed_gzip.CrcError) as error:
        raise ValueError(str(error)) from error
    data = exported.getvalue()
    name, version, _, _, size, _, window_bytes, count = _INDEX.unpack_from(data)
    if (name, version) != (_INDEX_NAME, _INDEX_VERSION):
        raise RuntimeError(f"indexed_gzip exports {name!r} of version {version}")
    if size != extent.size:
        raise ValueError(f"{size:,} bytes of {extent.size:,}")
    table = np.frombuffer(data, _POINT, count, _INDEX.size)
    table = table[table["has_window"] == 1]
    first_window = len(data) - len(table) * window_bytes
    return [
        SeekPoint(
            int(point["position"]),
            8 * (int(point["stored"]) - len(_GZIP_HEADER)) - int(point["bits"]),
            zlib.compress(data[window : window + window_bytes]),
        )
        for point, window in zip(
            table, range(first_window, len(data), window_bytes), strict=True
        )
    ]


class _AsGzip(io.RawIOBase):
    """Presents a deflated member as a gzip file."""

    def __init__(self, file: BinaryIO, extent: Extent) -> None:
        self._file, self._extent = file, extent
        self._place = 0
        trailer = struct.pack("<II", extent.crc, extent.size % (1 << 32))
        self._stored_end = len(_GZIP_HEADER) + extent.stored_bytes
        self._end = self._stored_end + len(trailer)
        self._trailer = trailer

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._end}
        self._place = start[whence] + offset
        return self._place

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        at, first = self._place, len(_GZIP_HEADER)
        if at < first:
            data = _GZIP_HEADER[at:]
        elif at < self._stored_end:
            self._file.seek(self._extent.start + at - first)
            data = self._file.read(min(len(buffer), self._stored_end - at))
        else:
            data = self._trailer[at - self._stored_end :]
        data = data[: len(buffer)]
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)
