"""The bytes of one member of a zip archive, in order, inflated with ISA-L.

ISA-L takes about half of zlib's time, and lets go of the interpreter as zlib does.
Knows nothing of arrays.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from isal import igzip_lib, isal_zlib

# Of stored bytes, and of inflated ones, that are worked on at a time.
_READ_BYTES = 256 << 10
_PIECE_BYTES = 1 << 20
# Its type says that it is an error, not a class of them.
_ERROR = cast(type[Exception], igzip_lib.error)


@dataclass(frozen=True)
class Extent:
    """Where a member lies in its archive, and what it comes to.

    Attributes:
        start: Place of its first byte in the file.
        stored_bytes: Bytes there.
        size: Bytes of the member, inflated.
        crc: CRC-32 of these.
        deflated: Whether they are deflated, or there as they are.
    """

    start: int
    stored_bytes: int
    size: int
    crc: int
    deflated: bool


class MemberReader:
    """Reads the bytes of a member in order.

    Their checksum is compared once all of them have been read.

    Args:
        file: The archive; nobody else reads from this handle meanwhile.
        extent: Of the member.

    Attributes:
        position: Bytes of the member that have been read.
    """

    def __init__(self, file: BinaryIO, extent: Extent) -> None:
        self.position = 0
        self._file, self._extent = file, extent
        self._crc = 0
        self._left = extent.stored_bytes
        self._inflater = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_DEFLATE)
        file.seek(extent.start)

    def fill(self, buffer: memoryview) -> None:
        """Fills a buffer with the next bytes.

        Args:
            buffer: Of bytes.

        Raises:
            ValueError: If the bytes are damaged, or there are fewer.
        """
        filled = 0
        for piece in self._pieces(len(buffer)):
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)

    def skip(self, count: int) -> None:
        """Reads so many bytes for nothing; raises as `fill` does."""
        for _ in self._pieces(count):
            pass

    def _pieces(self, count: int) -> Iterator[bytes]:
        """The next bytes, piece by piece."""
        end = self.position + count
        while self.position < end:
            piece = self._next(min(_PIECE_BYTES, end - self.position))
            if not piece:
                raise ValueError(f"{end - self.position:,} bytes are missing")
            self.position += len(piece)
            self._crc = isal_zlib.crc32(piece, self._crc)
            yield piece
        if self.position == self._extent.size and self._crc != self._extent.crc:
            raise ValueError("bad CRC-32")

    def _next(self, most: int) -> bytes:
        """At most so many of the next bytes; none where they end."""
        if not self._extent.deflated:
            return self._read(most)
        try:
            while not self._inflater.eof:
                waits = self._inflater.needs_input
                stored = self._read(_READ_BYTES) if waits else b""
                # It may hold inflated bytes back after the last stored ones.
                piece: bytes = self._inflater.decompress(stored, most)
                if piece or (waits and not stored):
                    return piece
        except _ERROR as error:
            raise ValueError(str(error)) from error
        return b""

    def _read(self, most: int) -> bytes:
        """At most so many of the member's stored bytes."""
        stored = self._file.read(min(most, self._left))
        self._left -= len(stored)
        return stored
