"""What an input is to the rest of the pipeline: a plan first, then whole episodes.

A source is a small frozen value that travels to workers; it opens its files only
when it is read.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pipeline.sources.episodes import EpisodeRange
from pipeline.store.manifest import EnvironmentArgument, FieldSpec

Rows = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class RecordedEnvironment:
    """What data say of the environment they were recorded in; nothing is imported.

    Attributes:
        environment_id: Gymnasium id.
        arguments: What it was made with, as far as a store may keep it.
        left_out: Names of arguments that a store may not keep.
        entry_point: Where its code is, for people; empty if the data do not say.
        reference_scores: Returns of a random policy and of an expert; None if the data
            do not say.
    """

    environment_id: str
    arguments: dict[str, EnvironmentArgument]
    left_out: tuple[str, ...] = ()
    entry_point: str = ""
    reference_scores: tuple[float, float] | None = None

    def __str__(self) -> str:
        """One line, for people."""
        text = self.environment_id
        if self.arguments:
            text += f" {json.dumps(self.arguments)}"
        if self.entry_point:
            text += f" ({self.entry_point})"
        text = f"the data are of {text}, as they say; nothing of it is imported"
        if self.left_out:
            text += (
                f"; its arguments {', '.join(self.left_out)} are no numbers or words "
                "and are left out, so it may be another environment: name the right one"
            )
        return text


@dataclass(frozen=True)
class Facts:
    """What can be known of an input without reading its bulk.

    Attributes:
        source: Kind of input, such as ``"ogbench_npz"``.
        name: File name or environment; never a path of one machine.
        digest: ``sha256:...`` that changes whenever the content does.
        fields: What one row of each field will be, by name.
        lengths: Rows of each episode.
        ignored: Names of what the input holds besides and nothing will read.
        warnings: What looks wrong and a person should judge, a sentence each.
        notes: What else a person may want to know, a sentence each.
        environment: Environment that the input says it was recorded in, if it does.
    """

    source: str
    name: str
    digest: str
    fields: dict[str, FieldSpec]
    lengths: tuple[int, ...]
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    environment: RecordedEnvironment | None = None

    @property
    def episodes(self) -> EpisodeRange:
        """All episodes of the input."""
        return EpisodeRange(0, 0, self.lengths)


@dataclass(frozen=True)
class Block:
    """Whole episodes in memory.

    Attributes:
        indices: ``i64[E]``, which episodes of the input they are.
        lengths: ``i64[E]``, rows of each.
        rows: ``[n, ...]`` for each field, one episode after another.
    """

    indices: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    rows: Rows

    @classmethod
    def of(cls, episodes: EpisodeRange, rows: Rows) -> "Block":
        """The block of a range of episodes."""
        first = episodes.first_episode
        return cls(
            np.arange(first, first + episodes.episodes),
            np.asarray(episodes.lengths, np.int64),
            rows,
        )

    def split(self) -> Iterator[tuple[int, Rows]]:
        """Each episode's index and rows, as views."""
        end = 0
        for index, length in zip(self.indices, self.lengths, strict=True):
            start, end = end, end + int(length)
            yield int(index), {name: v[start:end] for name, v in self.rows.items()}

    def without(self, dropped: Collection[int]) -> "Block":
        """The block without some episodes; itself if it holds none of them."""
        good = np.array([int(index) not in dropped for index in self.indices])
        if good.all():
            return self
        keep = np.repeat(good, self.lengths)
        return Block(
            self.indices[good],
            self.lengths[good],
            {name: values[keep] for name, values in self.rows.items()},
        )


class Source(Protocol):
    """An input of the pipeline: a frozen value of plain values, so it pickles."""

    def describe(self) -> Facts:
        """Reads what a plan needs.

        Returns:
            Facts from headers and the ``terminals`` alone.

        Raises:
            DataFormatError: If the input is cut short, incomplete or inconsistent.
        """
        ...

    def read(self, ranges: Sequence[EpisodeRange]) -> Iterator[Block]:
        """Streams episodes in bounded memory.

        Args:
            ranges: In order, without overlap: one block each.

        Yields:
            The blocks, in order.

        Raises:
            DataFormatError: If the bytes are damaged.
        """
        ...


@runtime_checkable
class Divisible(Source, Protocol):
    """A source of which later episodes cost all before them, unless it is prepared."""

    def starting_at(self, starts: Sequence[EpisodeRange]) -> Sequence[Source]:
        """Reads the input through, so that readers need not.

        Args:
            starts: What each reader will read first.

        Returns:
            For each reader the source, whose blocks are the same.

        Raises:
            DataFormatError: If bytes are damaged, wherever they are.
        """
        ...
