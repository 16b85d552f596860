"""Looking for boundaries between episodes that a file of transitions does not mark.

Pure but for the rows it is handed. Finds what looks wrong and leaves the judgement to
people: a jump may be a bug of the file, or a fall.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.sources.transitions import TransitionTable

Array = npt.NDArray[Any]
# Observations of some rows, and their next observations if there are any.
States = tuple[Array, Array | None]
# Reads them for slices, first row and number of rows of each, in order and apart.
ReadStates = Callable[[Sequence[tuple[int, int]]], Iterator[States]]

# A component moves further than this many times what 99 % of steps do.
_JUMP = 10.0
_BLOCK_ROWS = 65_536
_SAMPLES, _SAMPLE_ROWS = 32, 4096
_LISTED = 10
# Files are looked at side by side, and a block of rows takes memory.
_LOOKING = threading.BoundedSemaphore(2)


def find_suspects(read: ReadStates, table: TransitionTable, *, where: str) -> list[str]:
    """Looks for steps inside episodes that no step of the environment could be.

    Args:
        read: Reads observations, and next observations if the file has them.
        table: Episodes as the file marks them.
        where: File, for the warnings.

    Returns:
        Warnings that list rows; empty if nothing looks wrong.
    """
    with _LOOKING:
        return _find(read, table, where)


def _find(read: ReadStates, table: TransitionTable, where: str) -> list[str]:
    n = int(table.starts[-1] + table.counts[-1])
    inside = np.ones(n - 1, np.bool_)
    inside[table.starts[1:] - 1] = False
    sampled = inside & _sample(n)
    blocks = [(at, min(_BLOCK_ROWS, n - 1 - at)) for at in range(0, n - 1, _BLOCK_ROWS)]
    samples, furthest, broken, jumps = [], [], [], []
    # Infinities and NaN are for whoever checks the rows; here they are far from all.
    with np.errstate(invalid="ignore", over="ignore"):
        for first, steps, gaps in _steps(read, blocks):
            within = inside[first : first + len(steps)]
            samples.append(steps[sampled[first : first + len(steps)]])
            furthest.append(np.fmax.reduce(steps[within], axis=0, initial=0.0))
            broken += (first + np.flatnonzero(within & gaps)).tolist()
        # What is far is known now. A file where nothing is, is not read again.
        far = _JUMP * _usual_steps(samples)
        suspected = [
            block
            for block, longest in zip(blocks, furthest, strict=True)
            if (longest > far).any()
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


def _sample(n: int) -> npt.NDArray[np.bool_]:
    """Steps of ``n`` rows, ``bool[n - 1]``, that tell how long steps usually are."""
    sampled = np.zeros(n - 1, np.bool_)
    count = min(_SAMPLE_ROWS, max(2, n // _SAMPLES)) - 1
    for i in range(_SAMPLES):
        first = n * i // _SAMPLES
        sampled[first : first + count] = True
    return sampled


def _usual_steps(samples: Sequence[Array]) -> Array:
    """Length that 99 % of steps do not exceed, ``f64[D]``, from a sample."""
    moved = np.concatenate(samples) if samples else np.zeros((0, 1))
    if not len(moved):
        return np.full(1, np.inf)
    # What hardly ever moves, such as a drawer, moves in jumps by nature.
    usual = np.quantile(moved, 0.99, axis=0)
    return np.where(usual > 0, usual, np.inf)


def _steps(
    read: ReadStates, blocks: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, Array, npt.NDArray[np.bool_]]]:
    """Blocks of steps: how far each component moves to the next row, and gaps.

    Args:
        read: Reads rows.
        blocks: First step and number of steps of each; step i leads from row i to the
            next one.

    Yields:
        First step, ``f64[n, D]``, and ``bool[n]``: where the next observation is not
        the observation of the next row.
    """
    slices, end = [], 0
    for first, count in blocks:
        # Where one block follows another, their common row is read once.
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
            bound = 1e-4 * (1.0 + np.abs(states[1:]))
            gaps = (np.abs(after - states[1:]) > bound).any(axis=1)
        yield first, np.abs(np.diff(states, axis=0)), gaps


def _listed(rows: list[int]) -> str:
    shown = ", ".join(map(str, rows[:_LISTED]))
    return f"{shown} and {len(rows) - _LISTED} more" if len(rows) > _LISTED else shown


def _shift(rows: list[int], ends: npt.NDArray[np.int64]) -> str:
    """Says if all of them lie equally far from a marked end."""
    if not len(ends):
        return ""
    nearest = [int(ends[np.argmin(np.abs(ends - row))]) for row in rows]
    shifts = {row - end for row, end in zip(rows, nearest, strict=True)}
    if len(shifts) != 1 or abs(next(iter(shifts))) > 2:
        return ""
    return f"; every one lies {next(iter(shifts)):+d} rows from an end that is marked"
