"""Damages valid files, to test that readers refuse them with a message of one line.

The same seed gives the same mutations. The mutations know nothing about formats, except
that headers stand at the beginnings and ends of files.
"""

import copy
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.front_door import exit_code
from pipeline.sources.base import Source
from pipeline.sources.episodes import cut

# Mutations for every reader: 2,000 take less than 10 s in the fast suite.
MUTATIONS = (2_000, pytest.param(100_000, marks=pytest.mark.slow))

# Numbers at which counts, sizes and offsets overflow.
_EDGES = (0, 1, 2, 127, 128, 255, 65_535, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1)
_HEADER_BYTES = 256
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**62, -(2**63), 10**400, 0.5, -0.0, 1e308),
    *(math.inf, -math.inf, math.nan, "", "x", "../..", "\ud800", "float32", "1"),
    *([], [1, 2], [[]], ["x"], {}, {"x": 1}, {"": None}),
)


@dataclass(frozen=True)
class Outcomes:
    """Counts of how mutations were received.

    Attributes:
        read: Mutations that were read as if valid, perhaps with other values.
        refused: Mutations that were refused with a message of one line.
    """

    read: int
    refused: int


def drill(
    mutate: Callable[[random.Random], Any],
    read: Callable[[Any], object],
    *,
    count: int,
    seed: int = 0,
) -> Outcomes:
    """Reads mutations, and fails for exceptions without an exit code.

    Args:
        mutate: Makes a mutation.
        read: Reads a mutation.
        count: Number of mutations.
        seed: Seed of the mutations.

    Returns:
        How many mutations were read and how many were refused.

    Raises:
        AssertionError: If a mutation would end in a traceback; the message has its
            number, to find it again.
    """
    refused = 0
    for number in range(count):
        mutation = mutate(random.Random(f"{seed}/{number}"))
        try:
            read(mutation)
        except Exception as error:
            if exit_code(error) is None:
                raise AssertionError(f"mutation {number} of seed {seed}") from error
            refused += 1
    return Outcomes(count - refused, refused)


def drill_source(
    make: Callable[[str], Source],
    path: Path,
    mutate: Callable[[bytes, random.Random], bytes],
    *,
    count: int,
) -> Outcomes:
    """Reads the valid file of a source, then mutations of it, each from end to end.

    Args:
        make: Makes the source of a path.
        path: A valid file, which is overwritten.
        mutate: Damages its bytes.
        count: Number of mutations.

    Returns:
        The counts of `drill`.
    """
    valid = path.read_bytes()

    def read(data: bytes) -> None:
        path.write_bytes(data)
        source = make(str(path))
        with np.errstate(all="ignore"):  # Damaged values may overflow.
            for _ in source.read(cut(source.describe().episodes, 10)):
                pass

    read(valid)
    return drill(lambda draw: mutate(valid, draw), read, count=count)


def flip_bits(folder: Path, *, count: int, seed: int = 0) -> Iterator[str]:
    """Flips single bits in the files of a folder, and restores each before the next.

    Half of the time all files are equally likely, half of the time all bytes.

    Args:
        folder: Folder whose files, at any depth, are chosen from.
        count: Number of bits.
        seed: Seed of the choices.

    Yields:
        The bit and the file, while the bit is flipped.
    """
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    paths = [path for path in found if path.stat().st_size]
    sizes = [path.stat().st_size for path in paths]
    draw = random.Random(seed)
    for number in range(count):
        weights = sizes if number % 2 else None
        (path,) = draw.choices(paths, weights)
        valid = path.read_bytes()
        bit = draw.randrange(8 * len(valid))
        spoilt = bytearray(valid)
        spoilt[bit // 8] ^= 1 << bit % 8
        path.write_bytes(spoilt)
        try:
            yield f"bit {bit} of {path.relative_to(folder)}"
        finally:
            path.write_bytes(valid)


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """Flips, deletes, duplicates or overwrites some of the bytes."""
    spoilt = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        if not spoilt:
            break
        at = _place(len(spoilt), draw)
        kind = draw.randrange(8)
        if kind < 3:
            spoilt[at] ^= 1 << draw.randrange(8)
        elif kind < 5:
            size = draw.choice((1, 2, 4, 8))
            number = draw.choice(_EDGES) % (1 << (8 * size))
            spoilt[at : at + size] = number.to_bytes(size, "little")
        elif kind == 5:
            del spoilt[at:]
        elif kind == 6:
            del spoilt[at : at + draw.randrange(1, 64)]
        else:
            other = _place(len(spoilt), draw)
            spoilt[at:at] = spoilt[other : other + draw.randrange(1, 64)]
    return bytes(spoilt)


def mutate_value(value: Any, draw: random.Random) -> Any:
    """Replaces, drops or duplicates one of the values within nested values."""
    spoilt = [copy.deepcopy(value)]
    holder: Any = spoilt
    key: Any = 0
    while isinstance(holder[key], dict | list) and holder[key] and draw.random() < 0.9:
        holder = holder[key]
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        key = draw.choice(keys)
    kind = draw.randrange(4)
    if kind == 0 and holder is not spoilt:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[f"{key}x"] = holder[key]
    elif kind == 2 and isinstance(holder, list):
        holder.append(copy.deepcopy(holder[key]))
    else:
        holder[key] = copy.deepcopy(draw.choice(_VALUES))
    return spoilt[0]


def mutate_json(data: bytes, draw: random.Random) -> bytes:
    """Damages the bytes of JSON, or its values."""
    if draw.random() < 0.5:
        return mutate_bytes(data, draw)
    return json.dumps(mutate_value(json.loads(data), draw)).encode()


def mutate_json_lines(data: bytes, draw: random.Random) -> bytes:
    """Damages one line of JSON lines, or the bytes of the whole."""
    if draw.random() < 0.3:
        return mutate_bytes(data, draw)
    lines = data.splitlines()
    chosen = draw.randrange(len(lines))
    lines[chosen] = mutate_json(lines[chosen], draw)
    return b"".join(line + b"\n" for line in lines)


def _place(size: int, draw: random.Random) -> int:
    """Draws a position anywhere, or near the beginning or end, where headers are."""
    near = draw.randrange(min(size, _HEADER_BYTES))
    return draw.choice((draw.randrange(size), near, size - 1 - near))
