"""The bytes of one member of a zip archive, in order, inflated with ISA-L.

ISA-L takes less than two thirds of zlib's time, and lets go of the interpreter as zlib
does. Knows nothing of arrays. A member is read from its beginning, or from a place that
was noted when it was read before: see `SeekPoint`.
"""

import zlib
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


@dataclass(frozen=True)
class SeekPoint:
    """A place where a member can be taken up without reading all that lies before.

    Attributes:
        position: Bytes of the member that lie before.
        bit: Place among the stored bytes, in bits: deflate's blocks begin amid bytes.
        window: The last 32 KiB before, which what follows may repeat; as zlib keeps
            them, for it travels to workers. Nothing of what is not deflated.
    """

    position: int
    bit: int
    window: bytes


BEGINNING = SeekPoint(0, 0, zlib.compress(b""))


class MemberReader:
    """Reads the bytes of a member in order.

    Their checksum is compared once all of them have been read, from the beginning.

    Args:
        file: The archive; nobody else reads from this handle meanwhile.
        extent: Of the member.
        point: Where to begin.

    Attributes:
        position: Bytes of the member that lie before what is read next.
    """

    def __init__(
        self, file: BinaryIO, extent: Extent, point: SeekPoint = BEGINNING
    ) -> None:
        self.position = point.position
        self._file, self._extent = file, extent
        self._crc = 0
        self._compares = point.position == 0
        first, phase = divmod(point.bit, 8)
        self._left = extent.stored_bytes - first
        self._inflater = igzip_lib.IgzipDecompressor(
            igzip_lib.DECOMP_DEFLATE, zdict=zlib.decompress(point.window)
        )
        file.seek(extent.start + first)
        self._lead_in = _lead_in(phase, self._read(1)) if phase else b""

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
            if self._compares:
                self._crc = isal_zlib.crc32(piece, self._crc)
            yield piece
        complete = self._compares and self.position == self._extent.size
        if complete and self._crc != self._extent.crc:
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
                given, self._lead_in = self._lead_in + stored, b""
                piece: bytes = self._inflater.decompress(given, most)
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


def _packed(*fields: tuple[int, int]) -> tuple[int, int]:
    """Numbers of so many bits each, one after another as deflate has them."""
    value = length = 0
    for number, bits in fields:
        value |= number << length
        length += bits
    return value, length


# Blocks of deflate that hold nothing but their end. One has the codes that are fixed;
# the other says that 255 and the end have a code of one bit each, by way of a code of
# code lengths that has two: 18 for 138 and for 117 zeros, and 1 (RFC 1951, 3.2.7).
_EVEN = _packed((0, 1), (1, 2), (0, 7))
_ODD = _packed(
    *[(0, 1), (2, 2), (0, 5), (0, 5), (14, 4)],
    *[(int(symbol in (2, 17)), 3) for symbol in range(18)],
    *[(1, 1), (127, 7), (1, 1), (106, 7), (0, 1), (0, 1), (0, 1)],
    (1, 1),
)


def _lead_in(phase: int, byte: bytes) -> bytes:
    """Empty blocks that end amid a byte, and the rest of that byte.

    A stream is not to be shifted instead: what deflate keeps as it is begins with a
    byte.

    Args:
        phase: Bits of the byte that are not to be read, 1 to 7.
        byte: The byte.
    """
    blocks = [_ODD] if phase % 2 else []
    while sum(length for _, length in blocks) % 8 != phase:
        blocks.append(_EVEN)
    value, length = _packed(*blocks, (byte[0] >> phase, 8 - phase))
    return value.to_bytes(length // 8, "little")
