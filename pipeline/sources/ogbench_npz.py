"""Reads OGBench's own files: one npz with the rows of all trajectories in order.

Members are ``observations``, ``actions`` and ``terminals``, and in most files the
physics state. Rewards come from the tasks of the domain, not from the file.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeline.sources import npz, transitions
from pipeline.sources.base import Block, Description
from pipeline.sources.deflate import SeekPoint
from pipeline.sources.episodes import EpisodeRange, episode_lengths
from pipeline.store import schema
from pipeline.store.errors import DataFormatError

TERMINALS = "terminals"
_REQUIRED = (schema.OBSERVATIONS, schema.ACTIONS, TERMINALS)


@dataclass(frozen=True)
class OgbenchNpz:
    """The source of an npz of OGBench's layout.

    Attributes:
        path: The file, local or ``gs://``.
        points: Seek points by name of the member, for a reader of later episodes.
    """

    path: str
    points: tuple[tuple[str, SeekPoint], ...] = ()

    def describe(self) -> Description:
        """Reads the headers of all members and ``terminals``.

        Returns:
            The description of the file.

        Raises:
            UsageError: If there is no such file.
            DataFormatError: If the file is cut short or lacks a member, if members
                differ in length, or if the last trajectory does not end.
        """
        listing = self._read_listing()
        members, file_name = listing.members, os.path.basename(self.path)
        lengths = {name: member.shape[0] for name, member in members.items()}
        transitions.check_rows(lengths, where=self.path)
        table = episode_lengths(
            npz.read_array(self.path, members[TERMINALS]),
            where=f"{self.path}: {TERMINALS}",
        )
        sample = {
            name: np.empty((0, *member.shape[1:]), member.dtype)
            for name, member in members.items()
            if name != TERMINALS
        }
        warnings: tuple[str, ...] = ()
        # OGBench's published files and compact form have no such member.
        if transitions.NEXT_OBSERVATIONS in listing.names:
            warnings = (
                f"{file_name}: {transitions.NEXT_OBSERVATIONS} is not read, because a "
                "row is taken as a state; if rows are transitions, the state after the "
                "last one of each trajectory is lost: use the compact form, which has "
                "a row for that state too",
            )
        return Description(
            source="ogbench_npz",
            name=file_name,
            digest=listing.digest,
            fields=schema.input_fields(sample, where=self.path),
            lengths=tuple(table.tolist()),
            ignored=tuple(name for name in listing.names if name not in members),
            warnings=warnings,
        )

    def read(self, ranges: Sequence[EpisodeRange]) -> Iterator[Block]:
        """Streams episodes, one block for each range.

        Args:
            ranges: Ranges of episodes in order, without overlap.

        Yields:
            The blocks, without ``terminals``, which the episode table replaces.

        Raises:
            DataFormatError: If bytes are damaged.
        """
        blocks = npz.stream(
            self.path,
            self._row_members(),
            [(episodes.first_row, episodes.rows) for episodes in ranges],
            dict(self.points),
        )
        for episodes, rows in zip(ranges, blocks, strict=True):
            yield Block.of(episodes, rows)

    def starting_at(self, starts: Sequence[EpisodeRange]) -> list["OgbenchNpz"]:
        """Prepares a source for each reader, see `pipeline.sources.base.Divisible`."""
        rows = [episodes.first_row for episodes in starts]
        by_reader = npz.find_seek_points(self.path, self._row_members(), rows)
        return [replace(self, points=tuple(points.items())) for points in by_reader]

    def _row_members(self) -> dict[str, npz.Member]:
        """Returns the members that hold rows, which are all but ``terminals``."""
        members = self._read_listing().members
        del members[TERMINALS]
        return members

    def _read_listing(self) -> npz.Listing:
        """Reads the directory, and refuses a file without the required members."""
        listing = npz.list_archive(self.path, [*_REQUIRED, *schema.PHYSICS])
        for name in _REQUIRED:
            if name not in listing.members:
                raise DataFormatError(
                    f"{self.path}: expected the members {', '.join(_REQUIRED)}, got "
                    f"{', '.join(listing.names) or 'none'}; this is not "
                    "a file of OGBench's layout, choose another --source"
                )
        return listing
