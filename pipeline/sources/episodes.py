"""Episodes as ranges of rows: found from ``terminals``, and cut into parts and blocks.

The functions are pure and know nothing of files: an episode is its number of rows. An
`EpisodeRange` is what Beam sends to workers instead of the rows themselves.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.store.errors import DataFormatError, UsageError

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class EpisodeRange:
    """Consecutive episodes of one input.

    Attributes:
        first_episode: Index of the first episode within the input.
        first_row: Row of the input at which the first episode starts.
        lengths: Rows of each episode, one more than its transitions.
    """

    first_episode: int
    first_row: int
    lengths: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Rows of all the episodes."""
        return sum(self.lengths)

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(self.lengths)


def episode_lengths(terminals: npt.NDArray[Any], *, where: str) -> Int64:
    """Computes the lengths of episodes from the ``terminals`` array.

    Two adjacent terminal rows make an episode of one row, which holds no transition.

    Args:
        terminals: ``[N]``, bool or number: 1 at the last row of each episode.
        where: File and member, for the error.

    Returns:
        ``i64[E]``, rows of each episode; they sum to N.

    Raises:
        DataFormatError: If there are no rows, a value is neither 0 nor 1, or the
            last trajectory does not end.

    Example:
        >>> episode_lengths(np.array([0, 0, 1, 1, 0, 1]), where="x").tolist()
        [3, 1, 2]
    """
    if terminals.ndim != 1 or not len(terminals):
        raise DataFormatError(
            f"{where}: expected one value per row, [rows], got shape "
            f"{list(terminals.shape)}; write terminals as a flat array"
        )
    unlike = np.flatnonzero((terminals != 0) & (terminals != 1))
    if len(unlike):
        row = int(unlike[0])
        raise DataFormatError(
            f"{where}, row {row}: expected 0 or 1, got {terminals[row]}; mend the file"
        )
    ends = np.flatnonzero(terminals) + 1
    complete = int(ends[-1]) if len(ends) else 0
    if complete != len(terminals):
        raise DataFormatError(
            f"{where}: the last trajectory does not end: expected 1 in the last row, "
            f"{len(terminals) - 1}, and rows {complete} to {len(terminals) - 1} are "
            "all 0. If it was cut off, drop these rows; if it is whole, set its last "
            "row to 1"
        )
    return np.diff(ends, prepend=0).astype(np.int64)


def cut(episodes: EpisodeRange, rows: int) -> list[EpisodeRange]:
    """Cuts a range of episodes into pieces of about equal rows.

    Args:
        episodes: Range of at least one episode.
        rows: Rows to aim at for each piece.

    Returns:
        Consecutive ranges that cover the given one, each of at least one whole episode.

    Raises:
        UsageError: If ``rows`` is not positive.

    Example:
        >>> [piece.lengths for piece in cut(EpisodeRange(0, 0, (4, 4, 4, 9)), 8)]
        [(4, 4), (4,), (9,)]
    """
    if rows < 1:
        raise UsageError(
            f"rows of a part: expected at least 1 row, got {rows}; give a larger number"
        )
    ends = np.cumsum(np.asarray(episodes.lengths, np.int64))
    total = int(ends[-1])
    count = max(1, round(total / rows))
    # Cuts are at the episode ends nearest to equal shares of the rows. Filling pieces
    # one after another would leave the last one a stump, and a part that is much
    # smaller than others leaves its worker idle.
    targets = np.arange(1, count) * (total / count)
    after = np.searchsorted(ends, targets)
    before = np.maximum(after - 1, 0)
    nearer = targets - ends[before] <= ends[after] - targets
    cuts = np.unique(np.where(nearer, before, after) + 1)
    bounds = [0, *(int(end) for end in cuts if end < len(ends)), len(ends)]
    starts = [0, *ends.tolist()]
    return [
        EpisodeRange(
            episodes.first_episode + first,
            episodes.first_row + starts[first],
            episodes.lengths[first:last],
        )
        for first, last in itertools.pairwise(bounds)
    ]


def single_rows(lengths: Sequence[int]) -> int:
    """Counts episodes of one row, which hold no transition to train on."""
    return sum(length == 1 for length in lengths)
