"""Inflates one member of a zip archive in order, with ISA-L.

ISA-L takes less than two thirds of zlib's processor time (tests/benchmarks), and like
zlib releases the interpreter lock. A member is read from its beginning, or from a
`SeekPoint` that an earlier reading noted. This module knows nothing of arrays.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from isal import igzip_lib, isal_zlib

# Bytes of the file that are read at a time, and inflated bytes handled at a time.
_READ_BYTES = 256 << 10
_PIECE_BYTES = 1 << 20
# The type stubs of isal declare this class as an instance.
_ERROR = cast(type[Exception], igzip_lib.error)


@dataclass(frozen=True)
class Extent:
    """Position and size of a member in its archive.

    Attributes:
        start: Offset of the member's first byte in the file.
        stored_bytes: Bytes that the member takes in the file.
        size: Bytes of the member when inflated.
        crc: CRC-32 of the inflated bytes.
        deflated: Whether the member is deflated; otherwise it is stored as it is.
    """

    start: int
    stored_bytes: int
    size: int
    crc: int
    deflated: bool


@dataclass(frozen=True)
class SeekPoint:
    """A place from which a member can be inflated without the bytes before it.

    Attributes:
        position: Inflated bytes of the member that lie before the place.
        bit: Offset among the stored bytes, in bits: a block of deflate may begin within
            a byte.
        window: The 32 KiB of inflated bytes before the place, to which deflate may
            refer back. They are compressed with zlib, because workers receive them;
            empty for a member that is not deflated.
    """

    position: int
    bit: int
    window: bytes


BEGINNING = SeekPoint(0, 0, zlib.compress(b""))


class MemberReader:
    """Reads the inflated bytes of a member in order.

    The checksum is compared at the end of the member, if reading started at its
    beginning.

    Args:
        file: The archive; no other reader may use this handle at the same time.
        extent: Position and size of the member.
        point: Place to start from.

    Attributes:
        position: Offset within the member of the byte that is read next.
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
            buffer: ``u8[n]`` to fill.

        Raises:
            ValueError: If the bytes are damaged, or the member ends too early.
        """
        filled = 0
        for piece in self._pieces(len(buffer)):
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)

    def skip(self, count: int) -> None:
        """Inflates bytes and throws them away; raises as `fill` does."""
        for _ in self._pieces(count):
            pass

    def _pieces(self, count: int) -> Iterator[bytes]:
        """Yields the next bytes, piece by piece, and checks the sum at the end."""
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
        """Returns at least one and at most ``most`` bytes; none at the end."""
        if not self._extent.deflated:
            return self._read(most)
        try:
            while not self._inflater.eof:
                waits = self._inflater.needs_input
                stored = self._read(_READ_BYTES) if waits else b""
                # The inflater may still hold inflated bytes after it has taken the last
                # stored ones, so an empty read alone does not mean the end.
                given, self._lead_in = self._lead_in + stored, b""
                piece: bytes = self._inflater.decompress(given, most)
                if piece or (waits and not stored):
                    return piece
        except _ERROR as error:
            raise ValueError(str(error)) from error
        return b""

    def _read(self, most: int) -> bytes:
        """Reads at most ``most`` stored bytes, and none of the next member."""
        stored = self._file.read(min(most, self._left))
        self._left -= len(stored)
        return stored


def _pack_bits(*fields: tuple[int, int]) -> tuple[int, int]:
    """Packs (number, bits) pairs from the lowest bit up, as deflate does."""
    value = length = 0
    for number, bits in fields:
        value |= number << length
        length += bits
    return value, length


# Empty deflate blocks, used by `_lead_in`. The first uses the fixed codes and has 10
# bits, an even number. The second has an odd number of bits: it defines dynamic codes
# of one bit each for the literal 255 and the end of block, encoded by code-length
# symbols 18 (138 and 117 zeros) and 1 (RFC 1951, 3.2.7).
_EVEN = _pack_bits((0, 1), (1, 2), (0, 7))
_ODD = _pack_bits(
    *[(0, 1), (2, 2), (0, 5), (0, 5), (14, 4)],
    *[(int(symbol in (2, 17)), 3) for symbol in range(18)],
    *[(1, 1), (127, 7), (1, 1), (106, 7), (0, 1), (0, 1), (0, 1)],
    (1, 1),
)


def _lead_in(phase: int, byte: bytes) -> bytes:
    """Makes bytes to inflate before a stream that starts within a byte.

    The inflater reads whole bytes only. Empty blocks fill the bits before the start, so
    that the stream keeps its alignment. Shifting the stream itself is no way out,
    because deflate's stored blocks are aligned to bytes.

    Args:
        phase: Bits of the byte that belong to the block before, 1 to 7.
        byte: The byte within which the stream starts.

    Returns:
        Empty blocks of together ``phase`` bits modulo 8, then the rest of the byte.
    """
    blocks = [_ODD] if phase % 2 else []
    while sum(length for _, length in blocks) % 8 != phase:
        blocks.append(_EVEN)
    value, length = _pack_bits(*blocks, (byte[0] >> phase, 8 - phase))
    return value.to_bytes(length // 8, "little")
