import io
import zlib

import numpy as np
import pytest

from pipeline.sources import deflate
from pipeline.sources.deflate import Extent, MemberReader, SeekPoint

# What deflate keeps by repeating, what it keeps as it is, and what is nearly nothing.
VALUES = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8)
DATA = bytes(VALUES // 64) + bytes(VALUES) + b"\0" * 300_000
BEFORE, BEHIND = b"before", b"behind"


def stored_in(data, level=6):
    """As it lies in an archive, and where."""
    made = zlib.compressobj(level, wbits=-15)
    stored = made.compress(data) + made.flush()
    extent = Extent(len(BEFORE), len(stored), len(data), zlib.crc32(data), True)
    return BEFORE + stored + BEHIND, extent


def read(file, extent, *, first=0, count=None):
    reader = MemberReader(io.BytesIO(file), extent)
    reader.skip(first)
    found = bytearray(extent.size - first if count is None else count)
    reader.fill(memoryview(found))
    return bytes(found)


@pytest.mark.parametrize("level", [0, 1, 9])
@pytest.mark.parametrize("sizes", [(1 << 20, 256 << 10), (100_003, 10_007), (999, 97)])
def test_a_member_is_inflated_piece_by_piece(monkeypatch, level, sizes):
    piece_bytes, read_bytes = sizes
    monkeypatch.setattr(deflate, "_PIECE_BYTES", piece_bytes)
    monkeypatch.setattr(deflate, "_READ_BYTES", read_bytes)
    file, extent = stored_in(DATA, level)
    assert read(file, extent) == DATA
    assert read(file, extent, first=299_999, count=7) == DATA[299_999:300_006]


@pytest.mark.parametrize("phase", range(8))
@pytest.mark.parametrize("level", [0, 6])
def test_a_member_is_taken_up_amid_a_byte(phase, level):
    """Level 0 deflates nothing: behind their header, blocks begin with a byte."""
    data = DATA[:200_000]
    made = zlib.compressobj(level, wbits=-15, zdict=DATA[:1000])
    stored = made.compress(data) + made.flush()
    if level:
        number = int.from_bytes(stored, "little") << phase
        moved = number.to_bytes(len(stored) + 1, "little")
    else:  # The header is three bits, all 0.
        moved = (b"\0\0" if phase > 5 else b"\0") + stored[1:]
    extent = Extent(0, len(moved), 1000 + len(data), 0, True)
    point = SeekPoint(1000, phase, zlib.compress(DATA[:1000]))
    found = bytearray(len(data))
    MemberReader(io.BytesIO(moved), extent, point).fill(memoryview(found))
    assert found == data


def test_what_is_not_deflated_is_read_as_it_is():
    extent = Extent(len(BEFORE), len(DATA), len(DATA), zlib.crc32(DATA), False)
    assert read(BEFORE + DATA + BEHIND, extent) == DATA


def test_a_flipped_bit_is_noticed_wherever_it_is():
    file, extent = stored_in(DATA[:4000] + DATA[300_000:302_000])
    for at in range(extent.start, extent.start + extent.stored_bytes, 7):
        spoilt = bytearray(file)
        spoilt[at] ^= 1 << at % 8
        with pytest.raises(ValueError, match=r"\w"):
            read(bytes(spoilt), extent)


@pytest.mark.parametrize("deflated", [True, False])
def test_a_member_cut_short_is_noticed(deflated):
    file, extent = stored_in(DATA)
    if not deflated:
        file = BEFORE + DATA
        extent = Extent(len(BEFORE), len(DATA), len(DATA), extent.crc, False)
    cut = extent.start + extent.stored_bytes * 9 // 10
    with pytest.raises(ValueError, match="bytes are missing"):
        read(file[:cut], extent)


def test_a_member_that_is_shorter_than_it_says_is_noticed():
    file, extent = stored_in(DATA[:-1])
    longer = Extent(extent.start, extent.stored_bytes, len(DATA), extent.crc, True)
    with pytest.raises(ValueError, match="1 bytes are missing"):
        read(file, longer)
