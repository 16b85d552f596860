"""Converts files with one transition a row into episodes of T transitions and T+1 rows.

The functions are pure, and hold for npz and HDF5 files alike: `check_members` checks
headers, `flat` and `find_episodes` check values. D4RL and most plain files keep rows of
(s, a, r), with the end of the task in ``terminals`` and time limits in ``timeouts``.
The state in which an episode ends has no row in such a file, so it is taken from
``next_observations`` or made up as `find_episodes` describes.
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


def check_members(samples: Mapping[str, Array], *, where: str) -> None:
    """Refuses a file whose headers show that it cannot be cut into episodes.

    Args:
        samples: ``[n, ...]`` of each member, in the file's dtypes; n may be 0.
        where: Path of the file, for the error.

    Raises:
        DataFormatError: If no member tells ends of the task from time limits, or next
            observations differ in dtype or shape from observations.
    """
    if TIMEOUTS not in samples and schema.MASKS not in samples:
        raise DataFormatError(
            f"{where}: expected masks or timeouts beside rewards and terminals, got "
            "neither, and a terminal could be the end of the task or a time limit; add "
            "timeouts (1 where an episode was cut off; rows are transitions), or in an "
            "npz masks (0 where the task is solved, terminals at the last of T+1 rows)"
        )
    if NEXT_OBSERVATIONS in samples:
        states = samples[schema.OBSERVATIONS], samples[NEXT_OBSERVATIONS]
        kinds = [
            f"{schema.stored_dtype(schema.OBSERVATIONS, values.dtype)}"
            f"{list(values.shape[1:])}"
            for values in states
        ]
        if kinds[0] != kinds[1]:
            raise DataFormatError(
                f"{where}: expected {NEXT_OBSERVATIONS} as observations are, a row "
                f"{kinds[0]}, got {kinds[1]}; make the file again"
            )


def check_rows(rows: Mapping[str, int], *, where: str) -> None:
    """Refuses members of different lengths.

    Args:
        rows: Number of rows of each member, by name.
        where: Path of the file, for the error.

    Raises:
        DataFormatError: If the numbers differ.
    """
    if len(set(rows.values())) > 1:
        raise DataFormatError(
            f"{where}: expected one row of each member per step, got rows "
            f"{dict(rows)}; the file is inconsistent, make or fetch it again"
        )


def flat(name: str, values: Array, *, where: str) -> Array:
    """Flattens a member of one number per step, which may be ``[n]`` or ``[n, 1]``.

    Args:
        name: Name of the member, for the error.
        values: Values of the member.
        where: Path of the file, for the error.

    Returns:
        ``[n]``.

    Raises:
        DataFormatError: If there are several numbers per step.
    """
    if values.shape[1:] == (1,):
        return values[:, 0]
    if values.ndim != 1:
        raise DataFormatError(
            f"{where}: expected {name} [rows], one number a row, got "
            f"{['rows', *values.shape[1:]]}; choose one column"
        )
    return values


@dataclass(frozen=True)
class TransitionTable:
    """The episodes of a file of transitions.

    Attributes:
        starts: ``i64[E]``, first row of each episode within the file.
        counts: ``i64[E]``, rows of each episode within the file.
        completed: ``bool[E]``, whether a row is added for the state that the episode
            ends in.
        warnings: Sentences on what looks wrong.
    """

    starts: Int64
    counts: Int64
    completed: npt.NDArray[np.bool_]
    warnings: tuple[str, ...] = ()

    @classmethod
    def of_states(cls, lengths: Int64) -> "TransitionTable":
        """Makes the table of a file that has a row for each state, also the last ones.

        Args:
            lengths: ``i64[E]``, rows of each episode.
        """
        return cls(
            starts=np.cumsum(lengths) - lengths,
            counts=lengths,
            completed=np.zeros(len(lengths), np.bool_),
        )

    @property
    def lengths(self) -> tuple[int, ...]:
        """Rows of each episode in the store."""
        return tuple((self.counts + self.completed).tolist())

    def file_rows(self, episodes: EpisodeRange) -> tuple[int, int]:
        """Returns first row and number of rows of a range of episodes in the file."""
        last = episodes.first_episode + episodes.episodes - 1
        first = int(self.starts[episodes.first_episode])
        return first, int(self.starts[last] + self.counts[last]) - first


def find_episodes(
    terminals: Array,
    timeouts: Array | None,
    *,
    has_next: bool,
    where: str,
    masks: Array | None = None,
) -> TransitionTable:
    """Cuts a file of transitions at ends of the task and at time limits.

    The state after an episode's last transition comes from ``next_observations`` if the
    file has them. Otherwise, an episode that ends with the task is completed by a copy
    of its last state: nothing bootstraps from a state after the end, so its values do
    not matter. An episode that a time limit cut off loses its last transition, whose
    state becomes the final state of the transition before.

    Args:
        terminals: ``[N]``, 1 where the task ended with the transition.
        timeouts: ``[N]``, 1 where a time limit cut the episode off after the
            transition; None if the file has none.
        has_next: Whether the file has ``next_observations``.
        where: Name of the file, for errors.
        masks: ``[N]`` or ``[N, tasks]``, 0 where the task is solved; None if it is
            solved where ``terminals`` is 1. They are needed only if the file has no
            ``next_observations``.

    Returns:
        The table. A last episode without an end is treated as cut off, with a warning.

    Raises:
        DataFormatError: If there are no rows, or a value is neither 0 nor 1.

    Example:
        >>> ends = np.array([0, 0, 1, 0, 0]), np.array([0, 0, 0, 0, 1])
        >>> find_episodes(*ends, has_next=False, where="x").lengths
        (4, 2)
        >>> find_episodes(*ends, has_next=True, where="x").lengths
        (4, 3)
    """
    ended = flags(terminals, where=f"{where}: {TERMINALS}")
    if not len(ended):
        raise DataFormatError(
            f"{where}: expected one value of {TERMINALS} per row, got no rows; make or "
            "fetch the file again"
        )
    cut_off = np.zeros_like(ended)
    if timeouts is not None:
        cut_off = flags(timeouts, where=f"{where}: {TIMEOUTS}")
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
    solved = (ended[last] if masks is None else masks[last] == 0).reshape(len(last), -1)
    completed = np.asarray(solved.all(axis=1) | has_next)
    lost = int((~completed & solved.any(axis=1)).sum())
    if lost:
        warnings.append(
            f"{where}: {lost} episodes lose their last transition although it solves "
            "a task, because other tasks need the state after it, which is not in the "
            f"file; add {NEXT_OBSERVATIONS}"
        )
    return TransitionTable(starts, last - starts + 1, completed, tuple(warnings))


def to_rows(
    table: TransitionTable,
    episodes: EpisodeRange,
    transitions: Mapping[str, Array],
) -> dict[str, Array]:
    """Converts transitions of whole episodes to rows of a store.

    Args:
        table: Episodes of the file.
        episodes: Range of episodes to convert.
        transitions: ``[n, ...]`` for each member, those rows of the file that
            ``file_rows`` names: observations, actions, rewards, terminals and others.

    Returns:
        ``[n + completed, ...]`` for each member except ``terminals``, ``timeouts`` and
        ``next_observations``; and ``masks``, those of the file or else 0 where the
        task ended.
    """
    span = slice(episodes.first_episode, episodes.first_episode + episodes.episodes)
    completed = table.completed[span]
    ends = np.cumsum(table.counts[span])
    # The transition that each row of the store is copied from. The last transition of a
    # completed episode appears twice: its second copy becomes the added row.
    n = int(ends[-1])
    taken = np.insert(np.arange(n), ends[completed], ends[completed] - 1)
    added = ends[completed] + np.arange(int(completed.sum()))
    given = dict(transitions)
    following = given.pop(NEXT_OBSERVATIONS, None)
    given.pop(TIMEOUTS, None)
    ended = given.pop(TERMINALS)
    given.setdefault(schema.MASKS, ended == 0)
    rows = {name: values[taken] for name, values in given.items()}
    if following is not None:
        states = rows[schema.OBSERVATIONS]
        # The wider dtype of both, so that no value is rounded or overflows before the
        # checks of `pipeline.store.schema` see it.
        kind = np.result_type(states, following)
        rows[schema.OBSERVATIONS] = states.astype(kind, copy=False)
        rows[schema.OBSERVATIONS][added] = following[ends[completed] - 1]
    rows[schema.ACTIONS][added] = 0
    rows[schema.REWARDS][added] = 0
    rows[schema.MASKS][added] = True
    return rows


def pad(values: Array, last: int) -> Array:
    """Appends the row of the state that an episode ends in.

    Args:
        values: ``[T, ...]``, one row for each transition.
        last: Number that fills the added row.

    Returns:
        ``[T+1, ...]``.
    """
    return np.concatenate(
        [values, np.full_like(values, last, shape=(1, *values.shape[1:]))]
    )


def flags(values: Array, *, where: str) -> npt.NDArray[np.bool_]:
    """Converts a member of zeros and ones to booleans.

    Args:
        values: ``[n]`` or ``[n, 1]``.
        where: File and member, for the error.

    Returns:
        ``bool[n]``.

    Raises:
        DataFormatError: If a value is neither 0 nor 1, or there are several per row.
    """
    values = flat("values", values, where=where)
    unlike = np.flatnonzero((values != 0) & (values != 1))
    if len(unlike):
        row = int(unlike[0])
        raise DataFormatError(
            f"{where}, row {row}: expected 0 or 1, got {values[row]}; mend the file"
        )
    return values.astype(np.bool_)
