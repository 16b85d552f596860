"""Searches files of transitions for episode boundaries that the file does not mark.

The search reads rows through a function that it is given, and nothing else. It only
warns: a jump of the state may be a missing boundary, or a robot that falls. Images,
which are rows of three or more axes, are not searched: a step may change any pixel.
"""

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.sources.transitions import TransitionTable

Array = npt.NDArray[Any]
# Observations of some rows, and their next observations if the file has any.
States = tuple[Array, Array | None]
# Reads the states of slices, each given by first row and number of rows. The slices are
# in order and do not overlap, so that a compressed file is inflated once.
ReadStates = Callable[[Sequence[tuple[int, int]]], Iterator[States]]

# A step is a jump if a component moves more than 10 times as far as in 99 % of steps.
_JUMP = 10.0
# Blocks and samples are bounded in bytes too, as float64, because rows may be wide.
_BLOCK_ROWS, _BLOCK_BYTES = 65_536, 16 << 20
# The 99 % are estimated from 32 stretches of rows spread over the file.
_SAMPLES, _SAMPLE_ROWS, _SAMPLE_BYTES = 32, 4096, 128 << 20
_IMAGE_AXES = 3
# Rows that a warning lists at most.
_LISTED = 10
# Several files are searched in threads at once; two blocks of wide rows at a time keep
# the memory of planning bounded.
_LOOKING = threading.BoundedSemaphore(2)


def find_suspects(
    read: ReadStates,
    table: TransitionTable,
    *,
    row_shape: tuple[int, ...],
    where: str,
) -> list[str]:
    """Searches for steps inside episodes that are too long for the environment.

    Args:
        read: Reads observations, and next observations if the file has them.
        table: Episodes as the file marks them.
        row_shape: Shape of one row of observations.
        where: Name of the file, for the warnings.

    Returns:
        Warnings that list suspicious rows; empty if nothing looks wrong, or if
        observations are images.
    """
    if len(row_shape) >= _IMAGE_AXES:
        return []
    with _LOOKING:
        return _find(read, table, 8 * max(1, math.prod(row_shape)), where)


def _find(
    read: ReadStates, table: TransitionTable, row_bytes: int, where: str
) -> list[str]:
    n = int(table.starts[-1] + table.counts[-1])
    inside = np.ones(n - 1, np.bool_)
    inside[table.starts[1:] - 1] = False
    sampled = inside & _sample(n, row_bytes)
    rows = max(1, min(_BLOCK_ROWS, _BLOCK_BYTES // row_bytes))
    blocks = [(at, min(rows, n - 1 - at)) for at in range(0, n - 1, rows)]
    # Longest steps are kept for groups of blocks, no more groups than rows of a block,
    # because those of all blocks of wide rows would fill the memory.
    per_group = -(-len(blocks) // rows)
    furthest: list[Array] = []
    samples, broken, jumps = [], [], []
    # NaN and infinities pass without a warning here, because every row is checked for
    # them later, with a better message.
    with np.errstate(invalid="ignore", over="ignore"):
        for first, steps, gaps in _steps(read, blocks):
            within = inside[first : first + len(steps)]
            samples.append(steps[sampled[first : first + len(steps)]])
            longest = np.fmax.reduce(steps[within], axis=0, initial=0.0)
            if first // rows % per_group:
                np.fmax(furthest[-1], longest, out=furthest[-1])
            else:
                furthest.append(longest)
            broken += (first + np.flatnonzero(within & gaps)).tolist()
        # The threshold is known only after the first pass. A second pass reads just
        # those groups whose longest step exceeds it, mostly none.
        far = _JUMP * _usual_steps(samples)
        suspected = [
            block
            for i, block in enumerate(blocks)
            if (furthest[i // per_group] > far).any()
        ]
        for first, steps, _ in _steps(read, suspected):
            within = inside[first : first + len(steps)]
            jumped = within & (steps > far).any(axis=1)
            jumps += (first + np.flatnonzero(jumped)).tolist()
    ends = table.starts[1:] - 1
    warnings = []
    if jumps:
        warnings.append(
            f"{where}: {len(jumps)} steps inside an episode are more than {_JUMP:g} "
            "times as long as 99 % of steps, so a boundary may be missing after rows "
            f"{_listed(jumps)}{_shift(jumps, ends)}"
        )
    if broken:
        warnings.append(
            f"{where}: {len(broken)} next observations are not the observation of the "
            f"next row, so a boundary may be missing after rows {_listed(broken)}"
            f"{_shift(broken, ends)}"
        )
    return warnings


def _sample(n: int, row_bytes: int) -> npt.NDArray[np.bool_]:
    """Chooses steps by which to estimate usual lengths, as ``bool[n - 1]``."""
    sampled = np.zeros(n - 1, np.bool_)
    bounded = _SAMPLE_BYTES // (_SAMPLES * row_bytes)
    count = min(_SAMPLE_ROWS, max(2, min(n // _SAMPLES, bounded))) - 1
    for i in range(_SAMPLES):
        first = n * i // _SAMPLES
        sampled[first : first + count] = True
    return sampled


def _usual_steps(samples: Sequence[Array]) -> Array:
    """Estimates the length that 99 % of steps do not exceed, ``f64[D]``."""
    moved = np.concatenate(samples) if samples else np.zeros((0, 1))
    if not len(moved):
        return np.full(1, np.inf)
    # A component that rests in 99 % of steps, such as a drawer, moves in jumps by
    # nature: an infinite threshold leaves it out.
    usual = np.quantile(moved, 0.99, axis=0, overwrite_input=True)
    return np.where(usual > 0, usual, np.inf)


def _steps(
    read: ReadStates, blocks: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, Array, npt.NDArray[np.bool_]]]:
    """Computes lengths of steps, and gaps between next observations and next rows.

    Args:
        read: Reads rows.
        blocks: First step and number of steps of each block; step i leads from row i to
            row i + 1.

    Yields:
        For each block its first step; ``f64[n, D]``, how far each component moves; and
        ``bool[n]``, whether the next observation differs from the next row's
        observation.
    """
    slices, end = [], 0
    for first, count in blocks:
        # Adjacent blocks share a row. Reading it once keeps the slices apart, as `read`
        # requires; it is carried over from the block before.
        begin = max(first, end)
        end = first + count + 1
        slices.append((begin, end - begin))
    last: States | None = None
    rows = read(slices) if slices else iter(())
    for (first, count), (begin, _), given in zip(blocks, slices, rows, strict=True):
        states, following = given
        if begin > first and last is not None:
            states = np.concatenate([last[0], states])
            if following is not None and last[1] is not None:
                following = np.concatenate([last[1], following])
        last = states[-1:], None if following is None else following[-1:]
        states = states.reshape(len(states), -1).astype(np.float64)
        gaps = np.zeros(count, np.bool_)
        if following is not None:
            after = following.reshape(len(states), -1)[:-1]
            # The two arrays may have been rounded to different dtypes.
            bound = 1e-4 * (1.0 + np.abs(states[1:]))
            gaps = (np.abs(after - states[1:]) > bound).any(axis=1)
        yield first, np.abs(np.diff(states, axis=0)), gaps


def _listed(rows: list[int]) -> str:
    """Formats the first rows of a list, and how many more there are."""
    shown = ", ".join(map(str, rows[:_LISTED]))
    return f"{shown} and {len(rows) - _LISTED} more" if len(rows) > _LISTED else shown


def _shift(rows: list[int], ends: npt.NDArray[np.int64]) -> str:
    """Adds the distance to the nearest marked end, if it is the same for all rows.

    A common distance of one or two rows suggests that the file marks its ends shifted.
    """
    if not len(ends):
        return ""
    nearest = [int(ends[np.argmin(np.abs(ends - row))]) for row in rows]
    shifts = {row - end for row, end in zip(rows, nearest, strict=True)}
    if len(shifts) != 1 or abs(next(iter(shifts))) > 2:
        return ""
    return f"; every one lies {next(iter(shifts)):+d} rows from an end that is marked"
