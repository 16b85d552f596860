"""Reads D4RL's files: one HDF5 with a transition a row.

``terminals`` marks the end of the task (mask 0, no bootstrap). ``timeouts`` marks where
a time limit cut an episode off; the value of the state after it is still bootstrapped.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.sources import boundaries, hdf5, hdf5_datasets, transitions
from pipeline.sources.base import Block, Description
from pipeline.sources.episodes import EpisodeRange
from pipeline.sources.transitions import (
    NEXT_OBSERVATIONS,
    TERMINALS,
    TIMEOUTS,
    TransitionTable,
)
from pipeline.store import schema

_REQUIRED = (schema.OBSERVATIONS, schema.ACTIONS, schema.REWARDS, TERMINALS)
_OPTIONAL = (TIMEOUTS, NEXT_OBSERVATIONS)
_PER_STEP = (schema.REWARDS, TERMINALS, TIMEOUTS)


@dataclass(frozen=True)
class D4rlHdf5:
    """An HDF5 file of D4RL's layout, as a source with rewards of its own.

    Attributes:
        path: The file, local or ``gs://``.
    """

    path: str

    def describe(self) -> Description:
        """Reads the ends of episodes, and searches observations for unmarked ends.

        Returns:
            The description of the file; boundaries that seem to be missing are
            warnings.

        Raises:
            UsageError: If there is no such file.
            DataFormatError: If the file is cut short, lacks a member, or does not mark
                time limits.
        """
        with hdf5.open_hdf5(self.path) as file:
            members = self._find_members(file)
            rows = {name: len(member) for name, member in members.items()}
            transitions.check_rows(rows, where=self.path)
            # Arrays without rows pass all checks of dtypes and shapes at no cost.
            samples = {
                name: self._flatten(
                    name, np.empty((0, *member.shape[1:]), member.dtype)
                )
                for name, member in members.items()
            }
            transitions.check_members(samples, where=self.path)
            table = self._find_table(members)

            def read(slices: Sequence[tuple[int, int]]) -> Iterator[boundaries.States]:
                states = members[schema.OBSERVATIONS]
                after = members.get(NEXT_OBSERVATIONS)
                for first, count in slices:
                    rows = first, first + count, self.path
                    yield (
                        hdf5.read(states, *rows),
                        None if after is None else hdf5.read(after, *rows),
                    )

            row_shape = tuple(members[schema.OBSERVATIONS].shape[1:])
            suspects = boundaries.find_suspects(
                read, table, row_shape=row_shape, where=self.name
            )
            kept = (schema.OBSERVATIONS, schema.ACTIONS, schema.REWARDS)
            sample = {name: samples[name] for name in kept}
            # Masks are made from terminals when rows are read.
            sample[schema.MASKS] = np.empty(0, np.bool_)
            digest = hdf5_datasets.digest(self.path, members.values())
            ignored = tuple(
                sorted(set(hdf5.list_names(file, self.path)) - set(members))
            )
        return Description(
            source="d4rl_hdf5",
            name=self.name,
            digest=digest,
            fields=schema.input_fields(sample, where=self.path),
            lengths=table.lengths,
            ignored=ignored,
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
        with hdf5.open_hdf5(self.path) as file:
            members = self._find_members(file)
            table = self._find_table(members)
            for episodes in ranges:
                first, count = table.file_rows(episodes)
                given = {
                    name: self._flatten(
                        name, hdf5.read(member, first, first + count, self.path)
                    )
                    for name, member in members.items()
                }
                yield Block.of(episodes, transitions.to_rows(table, episodes, given))

    @property
    def name(self) -> str:
        """File name."""
        return os.path.basename(self.path)

    def _find_members(self, file: Any) -> dict[str, Any]:
        """Finds the data sets that are read, by name."""
        stored = hdf5.list_names(file, self.path)
        names = [*_REQUIRED, *(name for name in _OPTIONAL if name in stored)]
        return {name: hdf5_datasets.find_rows(file, name, self.path) for name in names}

    def _find_table(self, members: dict[str, Any]) -> TransitionTable:
        """Reads where episodes end."""
        timeouts = members.get(TIMEOUTS)
        return transitions.find_episodes(
            hdf5.read(members[TERMINALS], 0, len(members[TERMINALS]), self.path),
            None
            if timeouts is None
            else hdf5.read(timeouts, 0, len(timeouts), self.path),
            has_next=NEXT_OBSERVATIONS in members,
            where=self.name,
        )

    def _flatten(self, name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Flattens members of one number per step; returns other members unchanged."""
        if name in _PER_STEP:
            return transitions.flat(name, values, where=self.path)
        return values
