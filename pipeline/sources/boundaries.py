"""Looking for boundaries between episodes that a file of transitions does not mark.

Pure but for the rows it is handed. Finds what looks wrong and leaves the judgement to
people: a jump may be a bug of the file, or a fall.
"""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.sources.transitions import TransitionTable

Array = npt.NDArray[Any]
# Reads rows [first, last) of observations, and of next observations if there are any.
ReadStates = Callable[[int, int], tuple[Array, Array | None]]

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
    jumps, broken = [], []
    # Infinities and NaN are for whoever checks the rows; here they are far from all.
    with np.errstate(invalid="ignore", over="ignore"):
        usual = _usual_steps(read, inside)
        for first, last, steps, gaps in _steps(read, n, _BLOCK_ROWS):
            within = inside[first : last - 1]
            far = within & (steps > _JUMP * usual).any(axis=1)
            jumps += (first + np.flatnonzero(far)).tolist()
            if gaps is not None:
                broken += (first + np.flatnonzero(within & gaps)).tolist()
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


def _usual_steps(read: ReadStates, inside: npt.NDArray[np.bool_]) -> Array:
    """Length that 99 % of steps do not exceed, ``f64[D]``, from a sample."""
    n = len(inside) + 1
    sampled = []
    for first in sorted({n * i // _SAMPLES for i in range(_SAMPLES)}):
        last = min(first + _SAMPLE_ROWS, first + max(2, n // _SAMPLES), n)
        if last - first > 1:
            ((_, _, steps, _),) = _steps(read, last - first, last - first, first)
            sampled.append(steps[inside[first : last - 1]])
    moved = np.concatenate(sampled) if sampled else np.zeros((0, 1))
    if not len(moved):
        return np.full(1, np.inf)
    # What hardly ever moves, such as a drawer, moves in jumps by nature.
    usual = np.quantile(moved, 0.99, axis=0)
    return np.where(usual > 0, usual, np.inf)


def _steps(
    read: ReadStates, n: int, block: int, start: int = 0
) -> Iterator[tuple[int, int, Array, npt.NDArray[np.bool_] | None]]:
    """Blocks of rows: how far each component moves to the next row, and gaps."""
    for first in range(start, start + n - 1, block):
        last = min(first + block + 1, start + n)
        states, following = read(first, last)
        states = states.reshape(len(states), -1).astype(np.float64)
        gaps = None
        if following is not None:
            after = following.reshape(len(states), -1)[:-1]
            bound = 1e-4 * (1.0 + np.abs(states[1:]))
            gaps = (np.abs(after - states[1:]) > bound).any(axis=1)
        yield first, last, np.abs(np.diff(states, axis=0)), gaps


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
