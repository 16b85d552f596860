"""The interface of inputs: a source describes its episodes, then streams them.

A source is a small frozen dataclass of plain values, because Beam pickles it into every
worker. It opens its files only when it is described or read.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from pipeline.sources.episodes import EpisodeRange
from pipeline.store.manifest import EnvironmentArgument, FieldSpec

# Rows of whole episodes by name of the field, ``[n, ...]`` each.
Rows = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class RecordedEnvironment:
    """The environment that an input names as the one its data are from.

    The code of the environment is never imported, since strangers publish data sets.

    Attributes:
        environment_id: Gymnasium id of the environment.
        arguments: Its constructor's arguments, as far as a store may keep them.
        left_out: Names of the arguments that a store may not keep, such as lists and
            paths.
        entry_point: Module and class of its code, shown to people; empty if unknown.
        reference_scores: Returns of a random policy and of an expert; None if unknown.
    """

    environment_id: str
    arguments: dict[str, EnvironmentArgument]
    left_out: tuple[str, ...] = ()
    entry_point: str = ""
    reference_scores: tuple[float, float] | None = None

    def __str__(self) -> str:
        """Formats the environment in one line for people."""
        text = self.environment_id
        if self.arguments:
            text += f" {json.dumps(self.arguments)}"
        if self.entry_point:
            text += f" ({self.entry_point})"
        text = f"the data are of {text}, as the input says; its code is not imported"
        if self.left_out:
            text += (
                f"; its arguments {', '.join(self.left_out)} are no numbers or words "
                "and are left out, so it may be another environment: name the right one"
            )
        return text


@dataclass(frozen=True)
class Description:
    """The description of an input, made without reading most of the input's bytes.

    Attributes:
        source: Kind of input, such as ``"ogbench_npz"``.
        name: File name or environment; never a path, so that manifests have the same
            bytes on every machine.
        digest: ``sha256:...``, which changes whenever the content does. Appending
            compares digests, because files are renamed and copied.
        fields: Dtype and shape of one row of each field, by name.
        lengths: Rows of each episode, one more than its transitions: the last row has
            the observation after the last action.
        ignored: Names of arrays in the input that are not read.
        warnings: Sentences on what looks wrong, for a person to judge.
        notes: Sentences on what a person may want to know besides.
        environment: Environment that the input names as its own; None if it names none.
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
        return EpisodeRange(first_episode=0, first_row=0, lengths=self.lengths)


@dataclass(frozen=True)
class Block:
    """Whole episodes in memory.

    Attributes:
        indices: ``i64[E]``, indices of the episodes within the input; not consecutive
            once bad episodes are dropped.
        lengths: ``i64[E]``, rows of each episode; their sum is n.
        rows: ``[n, ...]`` for each field, one episode after another.
    """

    indices: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    rows: Rows

    @classmethod
    def of(cls, episodes: EpisodeRange, rows: Rows) -> "Block":
        """Builds the block of a range of episodes from their rows."""
        first = episodes.first_episode
        return cls(
            np.arange(first, first + episodes.episodes),
            np.asarray(episodes.lengths, np.int64),
            rows,
        )

    def split(self) -> Iterator[tuple[int, Rows]]:
        """Yields each episode's index and its rows, as views without a copy."""
        end = 0
        for index, length in zip(self.indices, self.lengths, strict=True):
            start, end = end, end + int(length)
            yield (
                int(index),
                {name: values[start:end] for name, values in self.rows.items()},
            )

    def without(self, dropped: Collection[int]) -> "Block":
        """Returns the block without some episodes, given by their indices."""
        good = np.array([int(index) not in dropped for index in self.indices])
        # Almost all blocks have no bad episode, and are not copied.
        if good.all():
            return self
        keep = np.repeat(good, self.lengths)
        return Block(
            self.indices[good],
            self.lengths[good],
            {name: values[keep] for name, values in self.rows.items()},
        )


class Source(Protocol):
    """An input of the pipeline; a frozen dataclass of plain values, so it pickles."""

    def describe(self) -> Description:
        """Reads what the planner needs: headers and the ends of episodes.

        Returns:
            The description of the input.

        Raises:
            DataFormatError: If the input is cut short, incomplete or inconsistent.
        """
        ...

    def read(self, ranges: Sequence[EpisodeRange]) -> Iterator[Block]:
        """Streams episodes in bounded memory.

        Args:
            ranges: Ranges of episodes in order, without overlap; each gives one block.

        Yields:
            The blocks, in order.

        Raises:
            DataFormatError: If the bytes are damaged.
        """
        ...


# Checked with isinstance while parts are written: most formats are not divisible, and
# their sources need not say so.
@runtime_checkable
class Divisible(Source, Protocol):
    """A compressed source, where reading an episode means inflating all before it.

    ``starting_at`` inflates the input once and notes places at which later readers can
    start, so that several workers can share one large file.
    """

    def starting_at(self, starts: Sequence[EpisodeRange]) -> Sequence[Source]:
        """Reads the whole input once and notes where each reader can start.

        Args:
            starts: The first range that each reader will read.

        Returns:
            One source for each reader, in the order of ``starts``. A reader can use
            any of them; from its own it reads soonest.

        Raises:
            DataFormatError: If any bytes of the input are damaged.
        """
        ...
