"""Files of transitions, one row each, made into episodes of T transitions and T+1 rows.

Pure. D4RL and most plain files keep rows of (s, a, r), an end of the task in
``terminals`` and a time limit in ``timeouts``. The state an episode ends in is no row
of theirs, and has to be found.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.sources.episodes import EpisodeRange
from pipeline.store import schema
from pipeline.store.errors import DataFormatError

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]

TERMINALS = "terminals"
TIMEOUTS = "timeouts"
NEXT_OBSERVATIONS = "next_observations"


@dataclass(frozen=True)
class TransitionTable:
    """The episodes of a file of transitions.

    Attributes:
        starts: ``i64[E]``, first row of each within the file.
        counts: ``i64[E]``, rows of each within the file.
        completed: ``bool[E]``, whether a row is added for the state it ends in.
        warnings: What looks wrong.
    """

    starts: Int64
    counts: Int64
    completed: npt.NDArray[np.bool_]
    warnings: tuple[str, ...] = ()

    @property
    def lengths(self) -> tuple[int, ...]:
        """Rows that each episode will have."""
        return tuple((self.counts + self.completed).tolist())

    def file_rows(self, episodes: EpisodeRange) -> tuple[int, int]:
        """First row in the file, and number of rows there, of a range of episodes."""
        last = episodes.first_episode + episodes.episodes - 1
        first = int(self.starts[episodes.first_episode])
        return first, int(self.starts[last] + self.counts[last]) - first


def find_episodes(
    terminals: Array, timeouts: Array | None, *, has_next: bool, where: str
) -> TransitionTable:
    """Cuts a file of transitions at ends of the task and at time limits.

    The state after the last transition comes from ``next_observations`` where there
    are any. Without them, an episode that ends with the task is completed by a copy
    of its last state, which nothing ever bootstraps from; one that was cut off keeps
    its last row as the row that leads nowhere, and loses that one transition.

    Args:
        terminals: ``[N]``, 1 where the task ended with the transition.
        timeouts: ``[N]``, 1 where the episode was cut off after it; None if the file
            has none.
        has_next: Whether the file has ``next_observations``.
        where: File, for errors.

    Returns:
        The table. A last episode that does not end is taken as cut off, with a
        warning.

    Raises:
        DataFormatError: If there are no rows, or a value is neither 0 nor 1.

    Example:
        >>> ends = np.array([0, 0, 1, 0, 0]), np.array([0, 0, 0, 0, 1])
        >>> find_episodes(*ends, has_next=False, where="x").lengths
        (4, 2)
        >>> find_episodes(*ends, has_next=True, where="x").lengths
        (4, 3)
    """
    ended = _flags(terminals, f"{where}: {TERMINALS}")
    cut_off = np.zeros_like(ended)
    if timeouts is not None:
        cut_off = _flags(timeouts, f"{where}: {TIMEOUTS}")
        if cut_off.shape != ended.shape:
            raise DataFormatError(
                f"{where}: expected one value of {TIMEOUTS} per row, {len(ended)}, got "
                f"{len(cut_off)}; the file is inconsistent, make or fetch it again"
            )
    last = np.flatnonzero(ended | cut_off)
    warnings = []
    if not len(last) or last[-1] != len(ended) - 1:
        first = int(last[-1]) + 1 if len(last) else 0
        warnings.append(
            f"{where}: the last trajectory, rows {first} to {len(ended) - 1}, does not "
            "end; it is taken as cut off there"
        )
        last = np.append(last, len(ended) - 1)
    starts = np.concatenate([[0], last[:-1] + 1]).astype(np.int64)
    completed = np.ones(len(last), np.bool_) if has_next else ended[last]
    return TransitionTable(starts, last - starts + 1, completed, tuple(warnings))


def to_rows(
    table: TransitionTable,
    episodes: EpisodeRange,
    transitions: Mapping[str, Array],
) -> dict[str, Array]:
    """Makes the rows of whole episodes out of their transitions.

    Args:
        table: Of the file.
        episodes: Which episodes.
        transitions: ``[n, ...]`` for each member, the rows of ``file_rows``:
            observations, actions, rewards, terminals, and what there is besides.

    Returns:
        ``[n + completed, ...]`` for each member but ``terminals``, ``timeouts`` and
        ``next_observations``; and ``masks``, 0 where the task ended.
    """
    span = slice(episodes.first_episode, episodes.first_episode + episodes.episodes)
    completed = table.completed[span]
    ends = np.cumsum(table.counts[span])
    # For every row to be: the transition it is made of, the last one twice where a
    # row is added.
    n = int(ends[-1])
    taken = np.insert(np.arange(n), ends[completed], ends[completed] - 1)
    added = ends[completed] + np.arange(int(completed.sum()))
    given = dict(transitions)
    following = given.pop(NEXT_OBSERVATIONS, None)
    given.pop(TIMEOUTS, None)
    given[schema.MASKS] = given.pop(TERMINALS) == 0
    rows = {name: values[taken] for name, values in given.items()}
    if following is not None:
        rows[schema.OBSERVATIONS][added] = following[ends[completed] - 1]
    rows[schema.ACTIONS][added] = 0
    rows[schema.REWARDS][added] = 0
    rows[schema.MASKS][added] = True
    return rows


def _flags(values: Array, where: str) -> npt.NDArray[np.bool_]:
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or not len(values):
        raise DataFormatError(
            f"{where}: expected one value per row, [rows], got shape "
            f"{list(values.shape)}; write it as a flat array"
        )
    unlike = np.flatnonzero((values != 0) & (values != 1))
    if len(unlike):
        row = int(unlike[0])
        raise DataFormatError(
            f"{where}, row {row}: expected 0 or 1, got {values[row]}; mend the file"
        )
    return values.astype(np.bool_)
