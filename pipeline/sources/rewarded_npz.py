"""Reads a plain npz with its own rewards, one column for each task.

Rewards are ``[rows]`` or ``[rows, tasks]``; masks likewise, or ``[rows]`` for all
tasks.

The file may have one of two layouts:

- A row for each transition: a file without ``masks``, as D4RL's are; with
  ``next_observations``, as OGBench's regular form is; or with ``timeouts`` that mark
  ends which ``terminals`` does not. An episode ends at ``terminals`` or ``timeouts``.
  Masks are 0 where the task is solved; without them ``terminals`` marks these rows.
- OGBench's rows: all other files with ``masks``. An episode of T transitions has T+1
  rows, ``terminals`` marks the last of them, and masks are 0 where the task is solved.

A file with ``masks`` needs no ``timeouts``: its ``terminals`` can mark all ends.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.sources import boundaries, npz, transitions
from pipeline.sources.base import Block, Description
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
class RewardedNpz:
    """The source of an npz with its own rewards.

    Attributes:
        path: The file, local or ``gs://``.
        points: Seek points by name of the member, for a reader of later episodes.
    """

    path: str
    points: tuple[tuple[str, SeekPoint], ...] = ()

    def describe(self) -> Description:
        """Reads the headers and the ends of episodes.

        Returns:
            The description of the file.

        Raises:
            UsageError: If there is no such file.
            DataFormatError: If the file is cut short or lacks a member, does not mark
                where episodes end and where not to bootstrap, or may have either
                layout.
        """
        listing = self._read_listing()
        members = listing.members
        rows = {name: member.shape[0] for name, member in members.items()}
        transitions.check_rows(rows, where=self.path)
        samples = {
            name: self._flatten(name, np.empty((0, *member.shape[1:]), member.dtype))
            for name, member in members.items()
        }
        transitions.check_members(samples, where=self.path)
        table = self._read_table(members)
        if table is None:
            ends = npz.read_array(self.path, members[TERMINALS])
            table = TransitionTable.of_states(
                episode_lengths(ends, where=f"{self.path}: {TERMINALS}")
            )
        suspects = self._find_suspects(members, table)
        fields = {
            name: samples[name]
            for name in (schema.OBSERVATIONS, schema.ACTIONS, schema.REWARDS)
        }
        # Masks that the file lacks are made from `terminals` when rows are read.
        fields[schema.MASKS] = samples.get(schema.MASKS, np.empty(0, np.bool_))
        return Description(
            source="own_npz",
            name=os.path.basename(self.path),
            digest=listing.digest,
            fields=schema.input_fields(fields, where=self.path),
            lengths=table.lengths,
            ignored=tuple(name for name in listing.names if name not in members),
            warnings=(*table.warnings, *suspects),
        )

    def read(self, ranges: Sequence[EpisodeRange]) -> Iterator[Block]:
        """Streams episodes, one block for each range.

        Args:
            ranges: Ranges of episodes in order, without overlap.

        Yields:
            The blocks, with ``rewards`` and ``masks``.

        Raises:
            DataFormatError: If bytes are damaged.
        """
        members = self._read_listing().members
        table = self._read_table(members)
        slices = _file_rows(table, ranges)
        blocks = npz.stream(self.path, members, slices, dict(self.points))
        for episodes, given in zip(ranges, blocks, strict=True):
            rows = {name: self._flatten(name, values) for name, values in given.items()}
            if table is None:
                del rows[TERMINALS]
            else:
                rows = transitions.to_rows(table, episodes, rows)
            yield Block.of(episodes, rows)

    def starting_at(self, starts: Sequence[EpisodeRange]) -> list["RewardedNpz"]:
        """Prepares a source for each reader, see `pipeline.sources.base.Divisible`."""
        members = self._read_listing().members
        rows = [first for first, _ in _file_rows(self._read_table(members), starts)]
        by_reader = npz.find_seek_points(self.path, members, rows)
        return [replace(self, points=tuple(points.items())) for points in by_reader]

    def _read_listing(self) -> npz.Listing:
        """Reads the directory, and refuses a file without the required members."""
        listing = npz.list_archive(self.path, [*_REQUIRED, *_OPTIONAL])
        members = listing.members
        missing = [name for name in _REQUIRED if name not in members]
        if missing:
            raise DataFormatError(
                f"{self.path}: expected the members {', '.join(_REQUIRED)}, got "
                f"{', '.join(listing.names) or 'none'}; add "
                f"{', '.join(missing)}"
            )
        return listing

    def _read_table(self, members: dict[str, npz.Member]) -> TransitionTable | None:
        """Reads where episodes of transitions end; None if rows are OGBench's.

        Raises:
            DataFormatError: If ``timeouts`` do not tell which of the two layouts a file
                with masks has.
        """
        has_next = NEXT_OBSERVATIONS in members
        if not has_next and TIMEOUTS not in members:
            return None
        names = [name for name in _PER_STEP if name in members]
        # Masks decide only which last transitions are kept without a state after them.
        if not has_next and schema.MASKS in members:
            names.append(schema.MASKS)
        given = {
            name: self._flatten(name, npz.read_array(self.path, members[name]))
            for name in names
        }
        terminals, timeouts = given[TERMINALS], given.get(TIMEOUTS)
        masks = given.get(schema.MASKS)
        if masks is not None and not ((timeouts != 0) & (terminals == 0)).any():
            raise DataFormatError(
                f"{self.path}: expected {TIMEOUTS} beside {schema.MASKS} to mark an "
                f"end that {TERMINALS} does not, got none, so rows may be states (T+1 "
                f"for T transitions) or transitions; remove {TIMEOUTS} if they are "
                f"states, add {NEXT_OBSERVATIONS} if they are transitions"
            )
        return transitions.find_episodes(
            terminals,
            timeouts,
            masks=masks,
            has_next=has_next,
            where=os.path.basename(self.path),
        )

    def _find_suspects(
        self, members: dict[str, npz.Member], table: TransitionTable
    ) -> list[str]:
        """Searches the observations for boundaries that the file does not mark."""
        names = [n for n in (schema.OBSERVATIONS, NEXT_OBSERVATIONS) if n in members]
        states = {name: members[name] for name in names}

        def read(slices: Sequence[tuple[int, int]]) -> Iterator[boundaries.States]:
            for block in npz.stream(self.path, states, slices):
                yield block[schema.OBSERVATIONS], block.get(NEXT_OBSERVATIONS)

        return boundaries.find_suspects(
            read,
            table,
            row_shape=members[schema.OBSERVATIONS].shape[1:],
            where=os.path.basename(self.path),
        )

    def _flatten(self, name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Removes a second axis of length one; returns other members unchanged.

        Ends of episodes hold for all tasks, so those members must have one column. A
        task that is solved earlier than others is marked by its column of masks.
        """
        if name in _PER_STEP or (name in _PER_TASK and values.shape[1:] == (1,)):
            return transitions.flat(name, values, where=self.path)
        return values


def _file_rows(
    table: TransitionTable | None, ranges: Sequence[EpisodeRange]
) -> list[tuple[int, int]]:
    """Returns first row and number of rows of each range of episodes in the file."""
    if table is None:
        return [(episodes.first_row, episodes.rows) for episodes in ranges]
    return [table.file_rows(episodes) for episodes in ranges]
