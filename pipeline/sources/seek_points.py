"""Where the members of a large archive can be taken up, found in one pass over each.

A deflate stream does not say where its blocks begin, and each of them refers to the 32
KiB before it. indexed_gzip notes both as it inflates. It reads gzip, which is a deflate
stream with ten bytes before it and eight behind.
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

# A reader begins at most about so many bytes early, or a share of them all: while
# places are looked for, each takes 32 KiB of memory, three times over.
_SPACING_BYTES = 16 << 20
_MOST = 1024
_PIECE_BYTES = 1 << 20
# No name, no time, an unknown system.
_GZIP_HEADER = b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
# An exported index: a header, the points, and a window for each that has one.
_INDEX = struct.Struct("<5sBBQQIII")
_INDEX_NAME, _INDEX_VERSION = b"GZIDX", 1
_POINT = np.dtype(
    [("stored", "<u8"), ("position", "<u8"), ("bits", "u1"), ("has_window", "u1")]
)


def find(file: BinaryIO, extent: Extent, positions: Sequence[int]) -> list[SeekPoint]:
    """Reads a member through, and notes where it can be taken up.

    Args:
        file: The archive; nobody else reads from this handle meanwhile.
        extent: Of the member.
        positions: Bytes of the member that readers will leave out.

    Returns:
        For each position, the last place at or before it.

    Raises:
        ValueError: If bytes are damaged, wherever they are: a reader that begins in
            the middle cannot compare the sum of them all.
    """
    if not extent.deflated:
        MemberReader(file, extent).skip(extent.size)
        return [SeekPoint(at, 8 * at, BEGINNING.window) for at in positions]
    points = [BEGINNING, *_index(file, extent)]
    starts = [point.position for point in points]
    return [points[bisect.bisect_right(starts, at) - 1] for at in positions]


def _index(file: BinaryIO, extent: Extent) -> list[SeekPoint]:
    """All places but the beginning, in order."""
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
    """A deflated member as a gzip file."""

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
