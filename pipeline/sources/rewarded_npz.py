"""A plain npz with rewards of its own: tasks whose labels came with the data.

Rewards are one number a row, or ``[rows, tasks]``; masks are likewise, or one for all.

Two layouts, told apart by what there is. With ``masks``, rows are as OGBench's: an
episode of T transitions has T+1 of them, ``terminals`` marks its last row, and masks
are 0 where the task is solved. With ``timeouts``, rows are transitions as D4RL's.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.sources import boundaries, npz, transitions
from pipeline.sources.base import Block, Facts
from pipeline.sources.deflate import SeekPoint
from pipeline.sources.episodes import EpisodeRange, episode_lengths
from pipeline.sources.transitions import (
    NEXT_OBSERVATIONS,
    TERMINALS,
    TIMEOUTS,
    TransitionTable,
)
from pipeline.store import schema
from pipeline.store.errors import DataFormatError

_REQUIRED = (schema.OBSERVATIONS, schema.ACTIONS, schema.REWARDS, TERMINALS)
_OPTIONAL = (schema.MASKS, TIMEOUTS, NEXT_OBSERVATIONS)
_PER_STEP = (TERMINALS, TIMEOUTS)
_PER_TASK = (schema.REWARDS, schema.MASKS)


@dataclass(frozen=True)
class OwnNpz:
    """An npz with rewards of its own, as a source.

    Attributes:
        path: The file, local or ``gs://``.
        points: Where to take up its members, for a reader of later episodes.
    """

    path: str
    points: tuple[tuple[str, SeekPoint], ...] = ()

    def describe(self) -> Facts:
        """Reads the headers and the ends of episodes.

        Returns:
            Facts of the file.

        Raises:
            UsageError: If there is no such file.
            DataFormatError: If it is cut short, lacks a member, or does not say
                where episodes end and where not to bootstrap.
        """
        listing = self._listing()
        members = listing.members
        rows = {name: member.shape[0] for name, member in members.items()}
        transitions.check_rows(rows, where=self.path)
        samples = {
            name: self._flat(name, np.empty((0, *member.shape[1:]), member.dtype))
            for name, member in members.items()
        }
        if schema.MASKS not in samples:
            transitions.check_members(samples, where=self.path)
        warnings: tuple[str, ...] = ()
        table = self._table(members)
        if table is None:
            ends = npz.read_array(self.path, members[TERMINALS])
            lengths = tuple(
                episode_lengths(ends, where=f"{self.path}: {TERMINALS}").tolist()
            )
        else:
            lengths = table.lengths
            suspects = self._suspects(members, table)
            warnings = (*table.warnings, *suspects)
        fields = {
            name: samples[name]
            for name in (schema.OBSERVATIONS, schema.ACTIONS, schema.REWARDS)
        }
        fields[schema.MASKS] = samples.get(schema.MASKS, np.empty(0, np.bool_))
        return Facts(
            source="own_npz",
            name=os.path.basename(self.path),
            digest=listing.digest,
            fields=schema.input_fields(fields, where=self.path),
            lengths=lengths,
            ignored=tuple(name for name in listing.names if name not in members),
            warnings=warnings,
        )

    def read(self, ranges: Sequence[EpisodeRange]) -> Iterator[Block]:
        """Streams episodes, one block for each range.

        Args:
            ranges: In order, without overlap.

        Yields:
            The blocks, with ``rewards`` and ``masks``.

        Raises:
            DataFormatError: If bytes are damaged.
        """
        members = self._listing().members
        table = self._table(members)
        slices = _file_rows(table, ranges)
        blocks = npz.stream(self.path, members, slices, dict(self.points))
        for episodes, given in zip(ranges, blocks, strict=True):
            rows = {name: self._flat(name, values) for name, values in given.items()}
            if table is None:
                del rows[TERMINALS]
            else:
                rows = transitions.to_rows(table, episodes, rows)
            yield Block.of(episodes, rows)

    def starting_at(self, starts: Sequence[EpisodeRange]) -> list["OwnNpz"]:
        """As of `pipeline.sources.base.Divisible`."""
        members = self._listing().members
        rows = [first for first, _ in _file_rows(self._table(members), starts)]
        found = npz.find_seek_points(self.path, members, rows)
        return [replace(self, points=tuple(points.items())) for points in found]

    def _listing(self) -> npz.Listing:
        listing = npz.list_archive(self.path, [*_REQUIRED, *_OPTIONAL])
        members = listing.members
        missing = [name for name in _REQUIRED if name not in members]
        if missing:
            raise DataFormatError(
                f"{self.path}: expected the members {', '.join(_REQUIRED)}, got "
                f"{', '.join(listing.names) or 'none'}; add "
                f"{', '.join(missing)}"
            )
        if schema.MASKS in members:
            # The next row says it all.
            members.pop(TIMEOUTS, None)
            members.pop(NEXT_OBSERVATIONS, None)
        return listing

    def _table(self, members: dict[str, npz.Member]) -> TransitionTable | None:
        """Episodes of a file of transitions; None if its rows are OGBench's."""
        if TIMEOUTS not in members:
            return None
        return transitions.find_episodes(
            npz.read_array(self.path, members[TERMINALS]),
            npz.read_array(self.path, members[TIMEOUTS]),
            has_next=NEXT_OBSERVATIONS in members,
            where=os.path.basename(self.path),
        )

    def _suspects(
        self, members: dict[str, npz.Member], table: TransitionTable
    ) -> list[str]:
        """Reads the observations through for boundaries that are not marked."""
        names = [n for n in (schema.OBSERVATIONS, NEXT_OBSERVATIONS) if n in members]
        states = {name: members[name] for name in names}

        def read(slices: Sequence[tuple[int, int]]) -> Iterator[boundaries.States]:
            for block in npz.stream(self.path, states, slices):
                yield block[schema.OBSERVATIONS], block.get(NEXT_OBSERVATIONS)

        return boundaries.find_suspects(read, table, where=os.path.basename(self.path))

    def _flat(self, name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Per-step numbers without a second axis of one, all else as it is.

        Where episodes end holds for all tasks: what one of them ends at, masks say.
        """
        if name in _PER_STEP or (name in _PER_TASK and values.shape[1:] == (1,)):
            return transitions.flat(name, values, where=self.path)
        return values


def _file_rows(
    table: TransitionTable | None, ranges: Sequence[EpisodeRange]
) -> list[tuple[int, int]]:
    """First row in the file, and number of rows there, of ranges of episodes."""
    if table is None:
        return [(episodes.first_row, episodes.rows) for episodes in ranges]
    return [table.file_rows(episodes) for episodes in ranges]
