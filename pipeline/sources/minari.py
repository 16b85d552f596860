"""Minari's local data sets: a folder with one HDF5, one group an episode.

An episode has T+1 observations and T actions, rewards, terminations and truncations.
Read through h5py alone: nothing of Minari is imported, and nothing decoded.
"""

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.domains import observations
from pipeline.domains.environments import keep_arguments
from pipeline.domains.reference_scores import check_reference_scores
from pipeline.domains.spaces import LAID_OUT
from pipeline.sources import files, hdf5, hdf5_datasets, json_files, transitions
from pipeline.sources.base import Block, Facts, RecordedEnvironment
from pipeline.sources.episodes import EpisodeRange
from pipeline.store import schema
from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import ENVIRONMENT_ID

MAIN_FILE = "main_data.hdf5"
_METADATA = "metadata.json"
EPISODE = re.compile(r"episode_(0|[1-9][0-9]*)")
_TERMINATIONS = "terminations"
# Environments to evaluate in and recorded in; what is meant for evaluating goes first.
_SPECS = ("eval_env_spec", "env_spec")


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
            Facts of the data set. Dictionaries of observations are laid out side by
            side, and the unit of the observations says in which order.

        Raises:
            UsageError: If there is no such file.
            DataFormatError: If it is cut short, or of a layout that cannot be kept,
                such as dictionaries of actions or encoded images.
        """
        with hdf5.opened(self.path) as file:
            names = _episode_names(file, self.path)
            lengths, virtual = [], []
            for name in names:
                episode = self._members(file, name)
                virtual += hdf5_datasets.find_virtual(episode.values())
                _check_lengths(episode, f"{self.path}: {name}")
                lengths.append(len(episode[_TERMINATIONS]) + 1)
            first = self._members(file, names[0])
            metadata = self._metadata()
            recorded = _read_environment(
                {**self._attributes(file), **metadata}, where=self.path
            )
            self._check_encoding(first, metadata)
            samples = {name: _no_rows(member) for name, member in first.items()}
        digest = hdf5_datasets.digest(self.path, virtual)
        observed = _observed(samples)
        fields = schema.input_fields(
            {
                schema.OBSERVATIONS: observed.pop(""),
                schema.ACTIONS: samples[schema.ACTIONS],
                schema.REWARDS: self._flat(schema.REWARDS, samples[schema.REWARDS]),
                schema.MASKS: np.empty(0, np.bool_),
            },
            where=self.path,
        )
        if observed:
            order = observations.describe(observed)
            fields[schema.OBSERVATIONS] = dataclasses.replace(
                fields[schema.OBSERVATIONS], unit=f"{LAID_OUT}{order}"
            )
        return Facts(
            source="minari",
            name=self.name,
            digest=digest,
            fields=fields,
            lengths=tuple(lengths),
            environment=recorded,
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
        """Data sets of an episode; of dictionaries of observations, all there are."""
        where = f"{self.path}: {name}"
        episode = hdf5.group(file, name, self.path)
        members = {
            each: hdf5_datasets.dataset(episode, each, where)
            for each in (schema.ACTIONS, schema.REWARDS, _TERMINATIONS)
        }
        observed = hdf5_datasets.leaves(episode, schema.OBSERVATIONS, where)
        return members | {
            f"{schema.OBSERVATIONS}/{path}" if path else schema.OBSERVATIONS: leaf
            for path, leaf in observed.items()
        }

    def _episode(self, file: Any, name: str) -> dict[str, npt.NDArray[Any]]:
        """Rows of one episode: the last one leads nowhere."""
        where = f"{self.path}: {name}"
        members = self._members(file, name)
        _check_lengths(members, where)
        rows = {
            each: hdf5.read(member, 0, len(member), where)
            for each, member in members.items()
        }
        ended = transitions.flags(
            rows[_TERMINATIONS], where=f"{where}: {_TERMINATIONS}"
        )
        return {
            schema.OBSERVATIONS: _observed(rows)[""],
            schema.ACTIONS: transitions.pad(rows[schema.ACTIONS], 0),
            schema.REWARDS: transitions.pad(
                self._flat(schema.REWARDS, rows[schema.REWARDS]), 0
            ),
            schema.MASKS: transitions.pad(~ended, 1),
        }

    def _flat(self, name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return transitions.flat(name, values, where=self.path)

    @property
    def _metadata_path(self) -> str:
        return os.path.join(os.path.dirname(self.path), _METADATA)

    def _metadata(self) -> dict[str, Any]:
        """What the data set says of itself; nothing if it has no such file."""
        if not files.is_file(self._metadata_path):
            return {}
        return json_files.read_object(self._metadata_path)

    def _attributes(self, file: Any) -> dict[str, str]:
        """What the file says of its environment, as earlier versions of Minari did."""
        found = {name: hdf5.attribute(file, name, self.path) for name in _SPECS}
        return {name: text for name, text in found.items() if text is not None}

    def _check_encoding(
        self, members: dict[str, Any], metadata: dict[str, Any]
    ) -> None:
        """Refuses images that Minari has encoded: they would be read as numbers."""
        space = metadata.get("observation_space", "{}")
        if not isinstance(space, str):
            return
        described = json_files.parse_object(space, self._metadata_path)
        for path, shape in _shapes(described, schema.OBSERVATIONS):
            member = members.get(path)
            if member is not None and list(member.shape[1:]) != shape:
                raise DataFormatError(
                    f"{self.path}: expected {path} of shape {shape}, as its "
                    f"{_METADATA} says, got {list(member.shape[1:])}: encoded images "
                    "cannot be read; record the data set without JPEG encoding"
                )


def _read_environment(
    metadata: dict[str, Any], *, where: str
) -> RecordedEnvironment | None:
    """Reads the environment to evaluate in, or that was recorded in; as data alone."""
    name = next((name for name in _SPECS if metadata.get(name)), "")
    text = metadata.get(name)
    if not isinstance(text, str):
        return None
    spec = json_files.parse_object(text, f"{where}: {name}")
    environment_id, arguments = spec.get("id"), spec.get("kwargs")
    if not isinstance(environment_id, str) or not isinstance(arguments, dict):
        return None
    if re.match(ENVIRONMENT_ID, environment_id) is None:
        return None  # Nobody can have registered it.
    limit = spec.get("max_episode_steps")
    if limit is not None:
        arguments = {"max_episode_steps": limit, **arguments}
    kept = keep_arguments(arguments)
    entry_point = spec.get("entry_point")
    ends = [metadata.get(name) for name in ("ref_min_score", "ref_max_score")]
    try:
        scores = check_reference_scores(*map(float, ends))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        scores = None
    return RecordedEnvironment(
        environment_id,
        kept,
        left_out=tuple(sorted(arguments.keys() - kept.keys())),
        entry_point=entry_point if isinstance(entry_point, str) else "",
        reference_scores=scores,
    )


def _shapes(space: Any, path: str) -> Iterator[tuple[str, list[Any]]]:
    """Where the boxes of a space are, and what shape each has."""
    if not isinstance(space, dict):
        return
    if isinstance(space.get("shape"), list):
        yield path, space["shape"]
    inner = space.get("subspaces")
    if isinstance(inner, dict):
        for name, each in inner.items():
            yield from _shapes(each, f"{path}/{name}")


def _observed(rows: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """Observations as one array, under no name, and what it is joined of, if it is."""
    if schema.OBSERVATIONS in rows:
        return {"": rows[schema.OBSERVATIONS]}
    prefix = f"{schema.OBSERVATIONS}/"
    columns = {
        name.removeprefix(prefix): values
        for name, values in rows.items()
        if name.startswith(prefix)
    }
    return {"": observations.join(columns), **columns}


def _no_rows(member: Any) -> npt.NDArray[Any]:
    return np.empty((0, *member.shape[1:]), member.dtype)


def _episode_names(file: Any, where: str) -> list[str]:
    there = hdf5.names(file, where)
    found = [name for name in there if EPISODE.fullmatch(name)]
    if not found:
        raise DataFormatError(
            f"{where}: expected groups episode_0, episode_1 and so on, got "
            f"{', '.join(there[:5]) or 'nothing'}; this is no data set of Minari"
        )
    return sorted(found, key=lambda name: (len(name), name))


def _check_lengths(members: dict[str, Any], where: str) -> None:
    counts = {name: len(member) for name, member in members.items()}
    steps = counts[schema.REWARDS]
    expected = {name: steps + name.startswith(schema.OBSERVATIONS) for name in counts}
    if counts != expected:
        raise DataFormatError(
            f"{where}: expected {steps + 1} observations and {steps} of all else, got "
            f"{counts}; record the data set again"
        )


def _joined(
    name: str, loaded: Sequence[dict[str, npt.NDArray[Any]]], where: str
) -> npt.NDArray[Any]:
    kinds = {
        (schema.stored_dtype(name, each[name].dtype).name, each[name].shape[1:])
        for each in loaded
    }
    if len(kinds) > 1:
        raise DataFormatError(
            f"{where}: {name}: expected one kind of value, got "
            f"{sorted(map(str, kinds))}; one store holds data of one kind"
        )
    return np.concatenate([each[name] for each in loaded])
