"""Inputs that are read an episode at a time: readers, and the source made of one.

`EpisodeReader` is what a source of your own is: a subclass that says how long its
episodes are and reads some of them. `ReaderSource` does all else: rows, blocks,
dictionaries of observations, checks.
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
from pipeline.sources.base import Block, Facts, Rows
from pipeline.sources.episodes import EpisodeRange
from pipeline.store import schema
from pipeline.store.errors import DataFormatError, UsageError

Array = npt.NDArray[Any]
# By name: observations may be a dictionary of arrays, nested or not.
Episode = Mapping[str, Any]

TERMINALS = transitions.TERMINALS
_PER_STEP = (schema.ACTIONS, schema.REWARDS, TERMINALS)


class EpisodeReader(ABC):
    """An input as episodes: subclass it to read data of a kind of your own.

    A process that needs the input makes a reader of its own, so a reader keeps nothing
    that others must see. Only `lengths` and `read` have to be written.

    Args:
        path: The input, as it was typed.
        split: Which of its own splits to read; empty for all of it.

    Attributes:
        kind: What a store's manifest calls inputs of this kind.
        path: The input.
        split: Its split.
    """

    kind: ClassVar[str] = ""

    def __init__(self, path: str, split: str = "") -> None:
        self.path, self.split = path, split

    @abstractmethod
    def lengths(self) -> Sequence[int]:
        """Counts the transitions of each episode, in an order that stays.

        Returns:
            One number an episode.
        """

    @abstractmethod
    def read(self, episodes: range) -> Iterable[Episode]:
        """Reads some episodes.

        Args:
            episodes: Consecutive ones, by their place in `lengths`.

        Yields:
            Of each, in order, with T its number of transitions: ``observations``, an
            array ``[T+1, ...]`` or a dictionary of such arrays; ``actions``
            ``f[T, A]``; ``rewards`` ``[T]``; ``terminals`` ``[T]``, 1 where the task
            ended with the transition, so that no value is bootstrapped from the state
            after it. An episode that ends at a time limit has none.
        """

    def digest(self) -> str:
        """Identifies the content, so that no data are taken twice or mixed up.

        Returns:
            Text that changes whenever the content does; here a digest of all values,
            which reads every episode. Override it where less will do.
        """
        found = hashlib.sha256()
        for index, episode in enumerate(self.read(range(len(self.lengths())))):
            rows, layout = _to_rows(episode, f"{self.path}, episode {index}")
            found.update(layout.encode())
            for name, values in sorted(rows.items()):
                found.update(f"{name} {values.dtype.str} {values.shape}".encode())
                found.update(np.ascontiguousarray(values).data)
        return f"sha256:{found.hexdigest()}"

    def name(self) -> str:
        """What the manifest calls this input: never a path of one machine."""
        return os.path.basename(self.path.rstrip("/")) or self.path

    def ignored(self) -> Sequence[str]:
        """Names what the input holds besides, and is not read."""
        return ()

    def notes(self) -> Sequence[str]:
        """Says what a person may want to know, a sentence each."""
        return ()

    def warnings(self) -> Sequence[str]:
        """Says what looks wrong, a sentence each."""
        return ()


@dataclass(frozen=True)
class ReaderSource:
    """An input that an `EpisodeReader` reads, as a source with rewards of its own.

    Attributes:
        reader: ``module:Class``; a name, so that it travels to workers as plain text.
        path: The input.
        split: Which of the input's own splits; empty for all of it.
    """

    reader: str
    path: str
    split: str = ""

    def describe(self) -> Facts:
        """Asks the reader for the lengths, and reads the first episode.

        Returns:
            Facts of the input. Dictionaries of observations are laid out side by side,
            and the unit of the observations says in which order.

        Raises:
            UsageError: If there is no such input or reader.
            DataFormatError: If the input is damaged or of a layout that is not read.
        """
        reader = self._open()
        with self._guarded("describing it"):
            lengths = _checked_lengths(reader.lengths(), self.path)
            facts = Facts(
                source=reader.kind or self.reader,
                name=reader.name(),
                digest=reader.digest(),
                fields={},
                lengths=tuple(length + 1 for length in lengths),
                ignored=tuple(reader.ignored()),
                warnings=tuple(reader.warnings()),
                notes=tuple(reader.notes()),
            )
        ((rows, layout),) = self._load(reader, range(1), facts.lengths[:1])
        fields = schema.input_fields(rows, where=self.path)
        if layout:
            fields[schema.OBSERVATIONS] = dataclasses.replace(
                fields[schema.OBSERVATIONS], unit=f"{LAID_OUT}{layout}"
            )
        return dataclasses.replace(facts, fields=fields)

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
            # All are to be like the first, wherever this worker begins.
            ((rows, layout),) = self._load(reader, range(1), None)
            expected = _kinds(rows, layout)
        for episodes in ranges:
            start = episodes.first_episode
            span = range(start, start + episodes.episodes)
            loaded = []
            for index, (rows, layout) in zip(
                span, self._load(reader, span, episodes.lengths), strict=True
            ):
                kinds = _kinds(rows, layout)
                expected = expected or kinds
                if kinds != expected:
                    raise DataFormatError(
                        f"{self.path}, episode {index}: expected rows as those of "
                        f"the first episode, {expected}, got {kinds}; one store holds "
                        "data of one kind"
                    )
                loaded.append(rows)
            yield Block.of(
                episodes,
                {n: np.concatenate([rows[n] for rows in loaded]) for n in loaded[0]},
            )

    def _open(self) -> EpisodeReader:
        kind = load_reader(self.reader)
        with self._guarded("opening it"):
            opened: EpisodeReader = (
                kind(self.path, self.split) if self.split else kind(self.path)
            )
        return opened

    def _load(
        self, reader: EpisodeReader, span: range, lengths: Sequence[int] | None
    ) -> Iterator[tuple[Rows, str]]:
        """Rows of episodes, and how their observations are laid out, checked."""
        reading = f"reading episodes {span.start} to {span.stop - 1}"
        with self._guarded(reading):
            episodes = iter(reader.read(span))
        for number, index in enumerate(span):
            where = f"{self.path}, episode {index}"
            with self._guarded(reading):
                episode = next(episodes, None)
            if episode is None:
                raise DataFormatError(
                    f"{where}: expected an episode, got none from {self.reader}; "
                    "correct it, or fetch the input again"
                )
            rows, layout = _to_rows(episode, where)
            found = len(rows[schema.REWARDS])
            if lengths is not None and found != lengths[number]:
                raise DataFormatError(
                    f"{where}: expected {lengths[number] - 1} transitions, as its "
                    f"length says, got {found - 1}; correct {self.reader}, or fetch "
                    "the input again"
                )
            yield rows, layout

    def _guarded(self, doing: str) -> contextlib.AbstractContextManager[None]:
        """A block in which the reader's code runs."""
        return contextlib.nullcontext()


def load_reader(reader: str) -> Any:
    """Imports a reader's class.

    Args:
        reader: ``module:Class``.

    Returns:
        The class.

    Raises:
        UsageError: If there is none of that name, or it is no reader.
    """
    module, _, name = reader.partition(":")
    try:
        kind: Any = importlib.import_module(module)
        for each in name.split("."):
            kind = getattr(kind, each)
    except ModuleNotFoundError as error:
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


def close_episode(episode: Episode) -> Episode:
    """Completes an episode of which the state after the last transition is not known.

    Args:
        episode: T observations, and T of all else.

    Returns:
        The same transitions, with T+1 observations, if the task ended with the last of
        them: its state is there twice, and nothing ever bootstraps from it. Else one
        transition less: its state is the one that the last but one leads to.
    """
    if episode[TERMINALS][-1]:
        observed = _map_leaves(
            episode[schema.OBSERVATIONS], lambda each: np.concatenate([each, each[-1:]])
        )
        return {**episode, schema.OBSERVATIONS: observed}
    return {
        **episode,
        **{name: np.asarray(episode[name])[:-1] for name in _PER_STEP},
    }


def _map_leaves(tree: Any, change: Any) -> Any:
    if isinstance(tree, Mapping):
        return {name: _map_leaves(each, change) for name, each in tree.items()}
    return change(np.asarray(tree))


def _checked_lengths(lengths: Iterable[Any], where: str) -> tuple[int, ...]:
    found = list(lengths)
    whole = all(
        isinstance(each, int | np.integer) and not isinstance(each, bool) and each >= 0
        for each in found
    )
    if not found or not whole:
        raise DataFormatError(
            f"{where}: expected episodes, with a number of transitions each, got "
            f"{found[:5] or 'none'}; correct the input or its reader"
        )
    return tuple(int(each) for each in found)


def _columns(episode: Episode) -> dict[str, Array]:
    """Arrays of an episode by name, those of dictionaries by names joined by /."""
    return {name: np.asarray(leaf) for name, leaf in observations.leaves(episode)}


def _to_rows(episode: Episode, where: str) -> tuple[Rows, str]:
    """Rows of an episode, the last of which leads nowhere, and their layout."""
    given = _columns(episode)
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


def _kinds(rows: Rows, layout: str) -> str:
    """Says what a row is of, as it is stored."""
    kinds = [
        f"{name} {schema.stored_dtype(name, values.dtype)}{list(values.shape[1:])}"
        for name, values in rows.items()
    ]
    return ", ".join(kinds) + (f" ({layout})" if layout else "")
