"""Readers of one episode at a time, and the source that is made of a reader.

A user adds a format by subclassing `EpisodeReader` with two methods: one returns the
lengths of episodes, one reads some of them. `ReaderSource` does the rest: it makes rows
and blocks, lays dictionaries of observations side by side, and checks everything.
"""

import contextlib
import dataclasses
import hashlib
import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pipeline.domains import observations
from pipeline.domains.spaces import LAID_OUT
from pipeline.sources import transitions
from pipeline.sources.base import Block, Description, Rows
from pipeline.sources.episodes import EpisodeRange
from pipeline.store import schema
from pipeline.store.errors import DataFormatError, UsageError

Array = npt.NDArray[Any]
# Arrays by name; observations may be a dictionary of arrays, nested or not.
Episode = Mapping[str, Any]

TERMINALS = transitions.TERMINALS
_PER_STEP = (schema.ACTIONS, schema.REWARDS, TERMINALS)


class EpisodeReader(ABC):
    """Reads an input episode by episode; subclass it to read a format of your own.

    Only `lengths` and `read` have to be written. Every process that needs the input
    makes its own reader, so a reader must not keep state that other processes need.

    Args:
        path: The input, as it was typed.
        split: Name of one of the input's own splits; empty for the whole input.

    Attributes:
        kind: Name of the format in a store's manifest; the class's name if empty.
        path: The input.
        split: The split.
    """

    kind: ClassVar[str] = ""

    def __init__(self, path: str, split: str = "") -> None:
        self.path, self.split = path, split

    @abstractmethod
    def lengths(self) -> Sequence[int]:
        """Counts the transitions of each episode, in an order that never changes.

        Returns:
            One number for each episode.
        """

    @abstractmethod
    def read(self, episodes: range) -> Iterable[Episode]:
        """Reads some episodes.

        Args:
            episodes: Consecutive indices into `lengths`.

        Yields:
            One mapping for each episode, in order, with T its number of transitions:
            ``observations``, an array ``[T+1, ...]`` or a dictionary of such arrays;
            ``actions``, ``f[T, A]``; ``rewards``, ``[T]``; ``terminals``, ``[T]``, 1
            where the task ended with the transition, so that no value is bootstrapped
            from the state after it. A time limit is no end of the task: an episode
            that a time limit ends has 0 throughout.
        """

    def digest(self) -> str:
        """Identifies the content, so that the same data are never added twice.

        Returns:
            Text that changes whenever the content does. This implementation reads all
            episodes and digests their values; override it if a cheaper text will do.
        """
        sha256 = hashlib.sha256()
        for index, episode in enumerate(self.read(range(len(self.lengths())))):
            rows, layout = _to_rows(episode, f"{self.path}, episode {index}")
            sha256.update(layout.encode())
            for name, values in sorted(rows.items()):
                sha256.update(f"{name} {values.dtype.str} {values.shape}".encode())
                sha256.update(np.ascontiguousarray(values).data)
        return f"sha256:{sha256.hexdigest()}"

    def name(self) -> str:
        """Names the input in the manifest, without the path of this machine."""
        return os.path.basename(self.path.rstrip("/")) or self.path

    def ignored(self) -> Sequence[str]:
        """Names the arrays of the input that are not read."""
        return ()

    def notes(self) -> Sequence[str]:
        """Returns sentences on what a person may want to know of the input."""
        return ()

    def warnings(self) -> Sequence[str]:
        """Returns sentences on what looks wrong in the input."""
        return ()


@dataclass(frozen=True)
class ReaderSource:
    """The source of an input that an `EpisodeReader` reads.

    Attributes:
        reader: ``module:Class``. A name and not the class, because workers unpickle
            this source and must not depend on how Python pickles the user's class.
        path: The input.
        split: Name of one of the input's own splits; empty for the whole input.
    """

    reader: str
    path: str
    split: str = ""

    def describe(self) -> Description:
        """Asks the reader for the lengths of episodes, and reads the first episode.

        Returns:
            The description of the input. If observations are dictionaries, their
            entries are laid side by side, in the order that the unit of the field
            ``observations`` lists.

        Raises:
            UsageError: If there is no such input or reader.
            DataFormatError: If the input is damaged or its layout cannot be read.
        """
        reader = self._open()
        with self._guarded("describing it"):
            lengths = _check_lengths(reader.lengths(), self.path)
            description = Description(
                source=reader.kind or self.reader,
                name=reader.name(),
                digest=reader.digest(),
                fields={},
                lengths=tuple(length + 1 for length in lengths),
                ignored=tuple(reader.ignored()),
                warnings=tuple(reader.warnings()),
                notes=tuple(reader.notes()),
            )
        # A reader declares no dtypes or shapes, so the first episode shows them.
        ((rows, layout, first),) = self._load(reader, range(1), description.lengths[:1])
        fields = schema.input_fields(rows, where=self.path)
        warnings = description.warnings
        if layout:
            entries = observations.leaves(first[schema.OBSERVATIONS])
            warnings += observations.warn_of_images(
                {name: np.asarray(values) for name, values in entries}
            )
            fields[schema.OBSERVATIONS] = dataclasses.replace(
                fields[schema.OBSERVATIONS], unit=f"{LAID_OUT}{layout}"
            )
        return dataclasses.replace(description, fields=fields, warnings=warnings)

    def read(self, ranges: Sequence[EpisodeRange]) -> Iterator[Block]:
        """Streams episodes, one block for each range.

        Args:
            ranges: In order, without overlap.

        Yields:
            The blocks, with ``rewards`` and ``masks``.

        Raises:
            DataFormatError: If bytes are damaged, or episodes differ in kind.
        """
        reader = self._open()
        expected = ""
        if ranges[0].first_episode:
            # Every episode is compared with the input's first one. Compared with the
            # first one that this worker reads, two workers might accept two layouts.
            ((rows, layout, _),) = self._load(reader, range(1), None)
            expected = describe_kinds(rows, layout)
        for episodes in ranges:
            start = episodes.first_episode
            span = range(start, start + episodes.episodes)
            loaded = []
            for index, (rows, layout, _) in zip(
                span, self._load(reader, span, episodes.lengths), strict=True
            ):
                kinds = describe_kinds(rows, layout)
                expected = expected or kinds
                if kinds != expected:
                    raise DataFormatError(
                        f"{self.path}, episode {index}: expected rows as those of "
                        f"the first episode, {expected}, got {kinds}; make all "
                        "episodes alike, or write them into stores of their own"
                    )
                loaded.append(rows)
            yield Block.of(
                episodes,
                {n: np.concatenate([rows[n] for rows in loaded]) for n in loaded[0]},
            )

    def _open(self) -> EpisodeReader:
        """Makes the reader."""
        kind = load_reader(self.reader)
        with self._guarded("opening it"):
            # A reader of a format without splits needs no such parameter.
            opened: EpisodeReader = (
                kind(self.path, self.split) if self.split else kind(self.path)
            )
        return opened

    def _load(
        self, reader: EpisodeReader, span: range, lengths: Sequence[int] | None
    ) -> Iterator[tuple[Rows, str, Episode]]:
        """Reads and checks episodes.

        Args:
            reader: The reader.
            span: Consecutive episodes.
            lengths: Rows that each episode must have; None if any number will do.

        Yields:
            Rows, the layout of the observations, and the episode as it was read.
        """
        reading = f"reading episodes {span.start} to {span.stop - 1}"
        with self._guarded(reading):
            episodes = iter(reader.read(span))
        for number, index in enumerate(span):
            where = f"{self.path}, episode {index}"
            # If `read` is a generator, its code runs here and not in the call above.
            with self._guarded(reading):
                episode = next(episodes, None)
            if episode is None:
                raise DataFormatError(
                    f"{where}: expected an episode, got none from {self.reader}; "
                    "correct it, or fetch the input again"
                )
            rows, layout = _to_rows(episode, where)
            count = len(rows[schema.REWARDS])
            if lengths is not None and count != lengths[number]:
                raise DataFormatError(
                    f"{where}: expected {lengths[number] - 1} transitions, as its "
                    f"length says, got {count - 1}; correct {self.reader}, or fetch "
                    "the input again"
                )
            yield rows, layout, episode

    def _guarded(self, doing: str) -> contextlib.AbstractContextManager[None]:
        """Wraps blocks that run the reader's code; `UserSource` reports its errors."""
        return contextlib.nullcontext()


def load_reader(reader: str) -> Any:
    """Imports a reader's class.

    Args:
        reader: ``module:Class``.

    Returns:
        The class.

    Raises:
        UsageError: If there is no class of that name, or it is no `EpisodeReader`.
    """
    module, _, name = reader.partition(":")
    try:
        kind: Any = importlib.import_module(module)
        for attribute in name.split("."):
            kind = getattr(kind, attribute)
    except ModuleNotFoundError as error:
        # The missing module may be one that the reader's module imports in turn.
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise UsageError(
                f"{reader}: importing it ended with {error}; install that package here "
                "and on all workers"
            ) from error
        raise UsageError(
            f"{reader}: expected a module {module} that can be imported, got none "
            "here; install its package, or set PYTHONPATH to the folder it is in, and "
            "so on all workers"
        ) from error
    except AttributeError as error:
        raise UsageError(
            f"{reader}: expected a class {name} in {module}, got none; correct the name"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, EpisodeReader)):
        raise UsageError(
            f"{reader}: expected a subclass of "
            f"{EpisodeReader.__module__}.{EpisodeReader.__name__}, got {kind!r}; give "
            "it that base, and methods lengths and read"
        )
    return kind


def describe_kinds(rows: Rows, layout: str) -> str:
    """Describes the stored dtypes and shapes of a row, to compare episodes by.

    Args:
        rows: ``[n, ...]`` for each field; any n.
        layout: Entries of the observations in their order; empty if they are an array.

    Example:
        >>> rows = {"observations": np.zeros((0, 3)), "rewards": np.zeros(0)}
        >>> describe_kinds(rows, "a[2], b[1]")
        'observations float32[3], rewards float32[] (a[2], b[1])'
    """
    kinds = [
        f"{name} {schema.stored_dtype(name, values.dtype)}{list(values.shape[1:])}"
        for name, values in rows.items()
    ]
    return ", ".join(kinds) + (f" ({layout})" if layout else "")


def close_episode(episode: Episode) -> Episode:
    """Completes an episode whose file lacks the state after the last transition.

    Args:
        episode: Arrays of one length T, observations included.

    Returns:
        If the task ended with the last transition: the same T transitions with T+1
        observations, the last observation repeated. Nothing bootstraps from a state
        after the end of the task, so its values do not matter. Otherwise: T-1
        transitions, because the last observation serves as the state after the one
        before, and the last action and reward are dropped.
    """
    if episode[TERMINALS][-1]:
        observed = _map_leaves(
            episode[schema.OBSERVATIONS],
            lambda values: np.concatenate([values, values[-1:]]),
        )
        return {**episode, schema.OBSERVATIONS: observed}
    return {
        **episode,
        **{name: np.asarray(episode[name])[:-1] for name in _PER_STEP},
    }


def _map_leaves(tree: Any, change: Any) -> Any:
    """Applies a function to an array, or to every array of a nested dictionary."""
    if isinstance(tree, Mapping):
        return {name: _map_leaves(branch, change) for name, branch in tree.items()}
    return change(np.asarray(tree))


def _check_lengths(lengths: Iterable[Any], where: str) -> tuple[int, ...]:
    """Refuses lengths of a reader that are no whole numbers; returns them as ints."""
    counts = list(lengths)
    # True is an int in Python. Here it would be a mistake, such as a list of masks.
    whole = all(
        isinstance(count, int | np.integer)
        and not isinstance(count, bool)
        and count >= 0
        for count in counts
    )
    if not counts or not whole:
        raise DataFormatError(
            f"{where}: expected episodes, with a number of transitions each, got "
            f"{counts[:5] or 'none'}; correct the input or its reader"
        )
    return tuple(int(count) for count in counts)


def _flatten(episode: Episode) -> dict[str, Array]:
    """Returns the arrays of an episode; names of nested ones are joined by /."""
    return {name: np.asarray(leaf) for name, leaf in observations.leaves(episode)}


def _to_rows(episode: Episode, where: str) -> tuple[Rows, str]:
    """Converts an episode of T transitions to T+1 rows, and checks it.

    Returns:
        The rows, and the layout of the observations if they are a dictionary.
    """
    given = _flatten(episode)
    prefix = f"{schema.OBSERVATIONS}/"
    observed = {n: v for n, v in given.items() if f"{n}/".startswith(prefix)}
    columns = observed | {n: given[n] for n in _PER_STEP if n in given}
    missing = [name for name in _PER_STEP if name not in columns]
    if not observed:
        missing.append(schema.OBSERVATIONS)
    if missing:
        raise DataFormatError(
            f"{where}: expected observations, actions, rewards and terminals, got "
            f"{', '.join(given) or 'nothing'}; add {', '.join(missing)}"
        )
    for name, values in columns.items():
        if values.dtype.kind not in "biuf" or not values.ndim:
            raise DataFormatError(
                f"{where}: expected {name} as numbers, one row a step, got "
                f"{values.dtype}{list(values.shape)}; leave it out or convert it"
            )
    counts = {name: len(values) for name, values in columns.items()}
    steps = counts[schema.REWARDS]
    if counts != {name: steps + (name in observed) for name in counts}:
        raise DataFormatError(
            f"{where}: expected {steps + 1} observations and {steps} of all else, got "
            f"{counts}; correct the input or its reader"
        )
    parts = {name.removeprefix(prefix): v for name, v in observed.items()}
    whole = parts.pop(schema.OBSERVATIONS, None)
    if whole is None:
        whole = observations.join(parts)
    ended = transitions.flags(columns[TERMINALS], where=f"{where}: {TERMINALS}")
    rewards = transitions.flat(schema.REWARDS, columns[schema.REWARDS], where=where)
    rows = {
        schema.OBSERVATIONS: whole,
        schema.ACTIONS: transitions.pad(columns[schema.ACTIONS], 0),
        schema.REWARDS: transitions.pad(rewards, 0),
        schema.MASKS: transitions.pad(~ended, 1),
    }
    return rows, observations.describe(parts) if len(parts) > 1 else ""
