"""Reads Minari's local data sets: a folder with one HDF5, one group for each episode.

An episode has T+1 observations and T actions, rewards, terminations and truncations.
The file is read with h5py alone, so that workers need no Minari and nothing that the
data set names is imported.
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
from pipeline.sources.base import Block, Description, RecordedEnvironment
from pipeline.sources.episode_reader import describe_kinds
from pipeline.sources.episodes import EpisodeRange
from pipeline.store import schema
from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import ENVIRONMENT_ID

MAIN_FILE = "main_data.hdf5"
_METADATA = "metadata.json"
EPISODE = re.compile(r"episode_(0|[1-9][0-9]*)")
_TERMINATIONS = "terminations"


@dataclass(frozen=True)
class Minari:
    """The source of a data set of Minari.

    Attributes:
        path: ``main_data.hdf5`` of the data set, local or ``gs://``.
    """

    path: str

    def describe(self) -> Description:
        """Reads the number of steps of each episode, and compares their layouts.

        Returns:
            The description of the data set. If observations are dictionaries, their
            entries are laid side by side, in the order that the unit of the field
            ``observations`` lists.

        Raises:
            UsageError: If there is no such file.
            DataFormatError: If the file is cut short, of a layout that a store cannot
                hold, such as dictionaries of actions or encoded images, or if episodes
                differ in layout.
        """
        with hdf5.open_hdf5(self.path) as file:
            names = _list_episodes(file, self.path)
            first = self._find_members(file, names[0])
            metadata = self._read_metadata()
            self._check_encoding(first, metadata)
            prefix = f"{schema.OBSERVATIONS}/"
            warnings = observations.warn_of_images(
                {
                    name.removeprefix(prefix): member
                    for name, member in first.items()
                    if name.startswith(prefix)
                }
            )
            samples, layout = _sample_rows(first, f"{self.path}: {names[0]}")
            expected = describe_kinds(samples, layout)
            lengths, virtual = [], []
            for name in names:
                where = f"{self.path}: {name}"
                episode = self._find_members(file, name)
                virtual += hdf5_datasets.find_virtual(episode.values())
                _check_lengths(episode, where)
                # Entries of other names or sizes may be as wide side by side as the
                # first episode's, and would be stored as columns of other meanings.
                kinds = describe_kinds(*_sample_rows(episode, where))
                if kinds != expected:
                    raise DataFormatError(
                        f"{where}: expected rows as those of {names[0]}, {expected}, "
                        f"got {kinds}; make all episodes alike, or split the file"
                    )
                lengths.append(len(episode[_TERMINATIONS]) + 1)
        digest = hdf5_datasets.digest(self.path, virtual)
        fields = schema.input_fields(samples, where=self.path)
        if layout:
            fields[schema.OBSERVATIONS] = dataclasses.replace(
                fields[schema.OBSERVATIONS], unit=f"{LAID_OUT}{layout}"
            )
        return Description(
            source="minari",
            name=self.name,
            digest=digest,
            fields=fields,
            lengths=tuple(lengths),
            warnings=warnings,
            environment=_read_environment(metadata, where=self._metadata_path),
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
            names = _list_episodes(file, self.path)
            for episodes in ranges:
                first = episodes.first_episode
                loaded = [
                    self._read_episode(file, name)
                    for name in names[first : first + episodes.episodes]
                ]
                yield Block.of(
                    episodes,
                    {
                        n: np.concatenate([rows[n] for rows in loaded])
                        for n in loaded[0]
                    },
                )

    @property
    def name(self) -> str:
        """Path of the data set within its collection, such as ``hopper/expert-v0``."""
        folders = [part for part in os.path.dirname(self.path).split("/") if part]
        if folders and folders[-1] == "data":
            folders.pop()
        return "/".join(folders[-2:]) or MAIN_FILE

    def _find_members(self, file: Any, name: str) -> dict[str, Any]:
        """Finds the data sets of an episode, all entries of observations included."""
        where = f"{self.path}: {name}"
        episode = hdf5.find_group(file, name, self.path)
        members = {
            field: hdf5_datasets.find_rows(episode, field, where)
            for field in (schema.ACTIONS, schema.REWARDS, _TERMINATIONS)
        }
        observed = hdf5_datasets.find_leaves(episode, schema.OBSERVATIONS, where)
        return members | {
            f"{schema.OBSERVATIONS}/{path}" if path else schema.OBSERVATIONS: leaf
            for path, leaf in observed.items()
        }

    def _read_episode(self, file: Any, name: str) -> dict[str, npt.NDArray[Any]]:
        """Reads the T+1 rows of one episode of T transitions."""
        where = f"{self.path}: {name}"
        members = self._find_members(file, name)
        _check_lengths(members, where)
        rows = {
            field: hdf5.read(member, 0, len(member), where)
            for field, member in members.items()
        }
        ended = transitions.flags(
            rows[_TERMINATIONS], where=f"{where}: {_TERMINATIONS}"
        )
        return {
            schema.OBSERVATIONS: _join_observations(rows)[0],
            schema.ACTIONS: transitions.pad(rows[schema.ACTIONS], 0),
            schema.REWARDS: transitions.pad(
                transitions.flat(schema.REWARDS, rows[schema.REWARDS], where=where), 0
            ),
            schema.MASKS: transitions.pad(~ended, 1),
        }

    @property
    def _metadata_path(self) -> str:
        return os.path.join(os.path.dirname(self.path), _METADATA)

    def _read_metadata(self) -> dict[str, Any]:
        """Reads ``metadata.json``; returns an empty mapping if there is none."""
        if not files.is_file(self._metadata_path):
            return {}
        return json_files.read_object(self._metadata_path)

    def _check_encoding(
        self, members: dict[str, Any], metadata: dict[str, Any]
    ) -> None:
        """Refuses images that Minari has stored as JPEG.

        Their bytes are an array of numbers like any other, and only the declared shape
        of the observation space tells that they are encoded.
        """
        space = metadata.get("observation_space", "{}")
        if not isinstance(space, str):
            return
        described = json_files.parse_object(
            space, f"{self._metadata_path}: observation_space"
        )
        for path, shape in _list_shapes(described, schema.OBSERVATIONS):
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
    """Reads the environment that the metadata name, without importing anything.

    An environment for evaluation is preferred to the one that was recorded in.
    """
    text = metadata.get("eval_env_spec") or metadata.get("env_spec")
    if not isinstance(text, str):
        return None
    spec = json_files.parse_object(text, f"{where}: env_spec")
    environment_id, arguments = spec.get("id"), spec.get("kwargs")
    if not isinstance(environment_id, str) or not isinstance(arguments, dict):
        return None
    if re.match(ENVIRONMENT_ID, environment_id) is None:
        return None  # Gymnasium cannot have registered such an id.
    # Gymnasium stores the limit beside the arguments, but `make` takes it as one more.
    limit = spec.get("max_episode_steps")
    if limit is not None:
        arguments = {"max_episode_steps": limit, **arguments}
    kept = keep_arguments(arguments)
    entry_point = spec.get("entry_point")
    # Many data sets name no reference scores, and some name useless ones. Training does
    # not need them, so such a data set is read without scores.
    given = [metadata.get(name) for name in ("ref_min_score", "ref_max_score")]
    try:
        scores = check_reference_scores(*map(float, given))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        scores = None
    return RecordedEnvironment(
        environment_id,
        kept,
        left_out=tuple(sorted(arguments.keys() - kept.keys())),
        entry_point=entry_point if isinstance(entry_point, str) else "",
        reference_scores=scores,
    )


def _list_shapes(space: Any, path: str) -> Iterator[tuple[str, list[Any]]]:
    """Yields path and shape of every box of a described space."""
    if not isinstance(space, dict):
        return
    if isinstance(space.get("shape"), list):
        yield path, space["shape"]
    inner = space.get("subspaces")
    if isinstance(inner, dict):
        for name, subspace in inner.items():
            yield from _list_shapes(subspace, f"{path}/{name}")


def _join_observations(
    rows: dict[str, npt.NDArray[Any]],
) -> tuple[npt.NDArray[Any], str]:
    """Joins observations to one array.

    Returns:
        The array, and the layout of its entries if observations are a dictionary.
    """
    if schema.OBSERVATIONS in rows:
        return rows[schema.OBSERVATIONS], ""
    prefix = f"{schema.OBSERVATIONS}/"
    columns = {
        name.removeprefix(prefix): values
        for name, values in rows.items()
        if name.startswith(prefix)
    }
    return observations.join(columns), observations.describe(columns)


def _sample_rows(
    members: dict[str, Any], where: str
) -> tuple[dict[str, npt.NDArray[Any]], str]:
    """Makes fields without rows, and the layout of observations, from headers.

    Arrays without rows pass all checks of dtypes and shapes at no cost.
    """
    samples = {
        name: np.empty((0, *member.shape[1:]), member.dtype)
        for name, member in members.items()
    }
    observed, layout = _join_observations(samples)
    fields = {
        schema.OBSERVATIONS: observed,
        schema.ACTIONS: samples[schema.ACTIONS],
        schema.REWARDS: transitions.flat(
            schema.REWARDS, samples[schema.REWARDS], where=where
        ),
        schema.MASKS: np.empty(0, np.bool_),
    }
    return fields, layout


def _list_episodes(file: Any, where: str) -> list[str]:
    """Lists the groups of episodes, in the order of their numbers."""
    names = hdf5.list_names(file, where)
    episodes = [name for name in names if EPISODE.fullmatch(name)]
    if not episodes:
        raise DataFormatError(
            f"{where}: expected groups episode_0, episode_1 and so on, got "
            f"{', '.join(names[:5]) or 'nothing'}; this is no data set of Minari, "
            "choose another --source"
        )
    # By length first: episode_10 comes after episode_9.
    return sorted(episodes, key=lambda name: (len(name), name))


def _check_lengths(members: dict[str, Any], where: str) -> None:
    """Refuses an episode whose data sets do not have T and T+1 rows."""
    counts = {name: len(member) for name, member in members.items()}
    steps = counts[schema.REWARDS]
    expected = {name: steps + name.startswith(schema.OBSERVATIONS) for name in counts}
    if counts != expected:
        raise DataFormatError(
            f"{where}: expected {steps + 1} observations and {steps} of all else, got "
            f"{counts}; record the data set again"
        )
