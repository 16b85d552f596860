"""Minari's local data sets: a folder with one HDF5, one group an episode.

An episode has T+1 observations and T actions, rewards, terminations and truncations.
Read through h5py alone: nothing of Minari is imported, and nothing decoded.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.sources import files, hdf5
from pipeline.sources.base import Block, Facts
from pipeline.sources.episodes import EpisodeRange
from pipeline.sources.ogbench_npz import stored_dtype
from pipeline.store import schema
from pipeline.store.errors import DataFormatError

MAIN_FILE = "main_data.hdf5"
_METADATA = "metadata.json"
_EPISODE = re.compile(r"episode_(0|[1-9][0-9]*)")
_TERMINATIONS = "terminations"


@dataclass(frozen=True)
class Minari:
    """A data set of Minari, as a source with rewards of its own.

    Attributes:
        path: Its ``main_data.hdf5``, local or ``gs://``.
    """

    path: str

    def describe(self) -> Facts:
        """Reads how many steps each episode has.

        Returns:
            Facts of the data set.

        Raises:
            UsageError: If there is no such file.
            DataFormatError: If it is cut short, or of a layout that cannot be kept,
                such as dictionaries of observations or encoded images.
        """
        with hdf5.opened(self.path) as file:
            names = _episode_names(file, self.path)
            lengths = []
            for name in names:
                episode = self._members(file, name)
                _check_lengths(episode, f"{self.path}: {name}")
                lengths.append(len(episode[schema.OBSERVATIONS]))
            first = self._members(file, names[0])
            self._check_encoding(first[schema.OBSERVATIONS])
            sample = {
                schema.OBSERVATIONS: _rows(first, schema.OBSERVATIONS, 0),
                schema.ACTIONS: _rows(first, schema.ACTIONS, 0),
                schema.REWARDS: np.empty(0, first[schema.REWARDS].dtype),
                schema.MASKS: np.empty(0, np.bool_),
            }
        return Facts(
            source="minari",
            name=self.name,
            digest=files.digest(self.path),
            fields=schema.input_fields(sample),
            lengths=tuple(lengths),
        )

    def read(self, ranges: Sequence[EpisodeRange]) -> Iterator[Block]:
        """Streams episodes, one block for each range.

        Args:
            ranges: In order, without overlap.

        Yields:
            The blocks, with ``rewards`` and ``masks``.

        Raises:
            DataFormatError: If bytes are damaged, or episodes differ in kind.
        """
        with hdf5.opened(self.path) as file:
            names = _episode_names(file, self.path)
            for episodes in ranges:
                first = episodes.first_episode
                loaded = [
                    self._episode(file, name)
                    for name in names[first : first + episodes.episodes]
                ]
                yield Block.of(
                    episodes,
                    {name: _joined(name, loaded, self.path) for name in loaded[0]},
                )

    @property
    def name(self) -> str:
        """Path of the data set within its collection, such as ``hopper/expert-v0``."""
        folders = [part for part in os.path.dirname(self.path).split("/") if part]
        if folders and folders[-1] == "data":
            folders.pop()
        return "/".join(folders[-2:]) or MAIN_FILE

    def _members(self, file: Any, name: str) -> dict[str, Any]:
        where = f"{self.path}: {name}"
        names = (schema.OBSERVATIONS, schema.ACTIONS, schema.REWARDS, _TERMINATIONS)
        episode = hdf5.group(file, name, self.path)
        return {each: hdf5.dataset(episode, each, where) for each in names}

    def _episode(self, file: Any, name: str) -> dict[str, npt.NDArray[Any]]:
        """Rows of one episode: the last one leads nowhere."""
        members = self._members(file, name)
        t = len(members[schema.REWARDS])
        ended = hdf5.read(members[_TERMINATIONS], 0, t, f"{self.path}: {name}")
        return {
            schema.OBSERVATIONS: _rows(members, schema.OBSERVATIONS, t + 1),
            schema.ACTIONS: _padded(_rows(members, schema.ACTIONS, t), 0),
            schema.REWARDS: _padded(_rows(members, schema.REWARDS, t), 0),
            schema.MASKS: _padded(ended == 0, 1),
        }

    def _check_encoding(self, observations: Any) -> None:
        """Refuses images that Minari has encoded: they would be read as numbers."""
        metadata = os.path.join(os.path.dirname(self.path), _METADATA)
        if not files.is_file(metadata):
            return
        with files.open_file(metadata) as stream:
            text = stream.read()
        space = _load(text, metadata).get("observation_space", "{}")
        shape = _load(space, metadata).get("shape") if isinstance(space, str) else None
        if isinstance(shape, list) and list(observations.shape[1:]) != list(shape):
            raise DataFormatError(
                f"{self.path}: expected observations of shape {shape}, as its "
                f"{_METADATA} says, got {list(observations.shape[1:])}: encoded "
                "images cannot be read; record the data set without JPEG encoding"
            )


def _episode_names(file: Any, where: str) -> list[str]:
    there = hdf5.names(file, where)
    found = [name for name in there if _EPISODE.fullmatch(name)]
    if not found:
        raise DataFormatError(
            f"{where}: expected groups episode_0, episode_1 and so on, got "
            f"{', '.join(there[:5]) or 'nothing'}; this is no data set of Minari"
        )
    return sorted(found, key=lambda name: (len(name), name))


def _load(text: str | bytes, where: str) -> dict[str, Any]:
    """An object of JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataFormatError(f"{where}: not JSON ({error}); fetch it again") from error
    if not isinstance(value, dict):
        raise DataFormatError(
            f"{where}: expected a JSON object, got {type(value).__name__}"
        )
    return value


def _check_lengths(members: dict[str, Any], where: str) -> None:
    counts = {name: len(member) for name, member in members.items()}
    steps = counts[schema.REWARDS]
    expected = dict.fromkeys(counts, steps) | {schema.OBSERVATIONS: steps + 1}
    if counts != expected:
        raise DataFormatError(
            f"{where}: expected {steps + 1} observations and {steps} of all else, got "
            f"{counts}; record the data set again"
        )


def _rows(members: dict[str, Any], name: str, count: int) -> npt.NDArray[Any]:
    member = members[name]
    rows = hdf5.read(member, 0, count, member.name)
    return rows.astype(stored_dtype(name, rows.dtype), copy=False)


def _padded(values: npt.NDArray[Any], last: int) -> npt.NDArray[Any]:
    return np.concatenate(
        [values, np.full_like(values, last, shape=(1, *values.shape[1:]))]
    )


def _joined(
    name: str, loaded: Sequence[dict[str, npt.NDArray[Any]]], where: str
) -> npt.NDArray[Any]:
    kinds = {(each[name].dtype, each[name].shape[1:]) for each in loaded}
    if len(kinds) > 1:
        raise DataFormatError(
            f"{where}: {name}: expected one kind of value, got "
            f"{sorted(map(str, kinds))}; one store holds data of one kind"
        )
    return np.concatenate([each[name] for each in loaded])
