"""Reads robomimic's files: one HDF5, with a group ``data/demo_N`` per demonstration.

A demonstration has T observations, next observations, actions, rewards and dones. Only
the last next observation is read, because the others equal the observations of the next
row. The environment that the file names is shown to the user and never imported.
"""

import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.sources import hdf5, hdf5_datasets, json_files, transitions
from pipeline.sources.episode_reader import (
    TERMINALS,
    Episode,
    EpisodeReader,
    close_episode,
)
from pipeline.store import schema
from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import Split

DATA = "data"
DEMO = re.compile(r"demo_(0|[1-9][0-9]*)")
_OBS, _NEXT_OBS, _DONES = "obs", "next_obs", "dones"
_MASK = "mask"
# robomimic's names of splits, which it calls filter keys, by our names.
_SPLITS: dict[Split, str] = {"train": "train", "val": "valid"}
# An observation with three or more axes is an image, or as large as one.
_IMAGE_DIMENSIONS = 3
# Characters shown of an environment's arguments, which may be pages of settings.
_SHOWN_CHARACTERS = 200


@dataclass(frozen=True)
class _Demo:
    """The data sets of a demonstration, not read.

    Attributes:
        actions: ``[T, A]``.
        rewards: ``[T]``.
        dones: ``[T]``.
        observed: Observations by name, ``[T, ...]``, without images.
        following: Next observations by name, ``[T, ...]``; empty if there are none.
        images: Names of images.
    """

    actions: Any
    rewards: Any
    dones: Any
    observed: dict[str, Any]
    following: dict[str, Any]
    images: frozenset[str]

    def members(self) -> list[Any]:
        """Lists all data sets of the demonstration."""
        alone = [self.actions, self.rewards, self.dones]
        return [*alone, *self.observed.values(), *self.following.values()]

    def layout(self) -> dict[str, tuple[int, ...]]:
        """Returns the shape of a row of each observation, by name."""
        return {
            name: member.shape[1:] for name, member in sorted(self.observed.items())
        }


@dataclass(frozen=True)
class _Contents:
    """The description of the demonstrations that are read, from the file's headers."""

    lengths: tuple[int, ...]
    images: tuple[str, ...]
    digest: str
    environment: str | None
    keys: tuple[str, ...]
    unrewarded_ends: int


class RobomimicReader(EpisodeReader):
    """Reads the demonstrations of a file, or of one filter key.

    Args:
        path: The file, local or ``gs://``.
        split: Filter key, such as ``train``; empty for all demonstrations.
    """

    kind = "robomimic"

    def lengths(self) -> tuple[int, ...]:
        """Counts the transitions of each demonstration, in order of their numbers."""
        return self._contents.lengths

    def read(self, episodes: range) -> Iterator[Episode]:
        """Reads demonstrations, without images."""
        with hdf5.open_hdf5(self.path) as file:
            names = self._list_names(file)
            for index in episodes:
                yield self._read_demo(file, names[index])

    def digest(self) -> str:
        """Digests the file, and which of its demonstrations are read."""
        return self._contents.digest

    def name(self) -> str:
        """Names the file and the filter key."""
        return super().name() + (f"[{self.split}]" if self.split else "")

    def ignored(self) -> tuple[str, ...]:
        """Names the images."""
        return tuple(f"{_OBS}/{name} (image)" for name in self._contents.images)

    def notes(self) -> tuple[str, ...]:
        """Names the environment of the data, and filter keys that are not used."""
        environment, keys = self._contents.environment, self._contents.keys
        unused = [key for key in keys if key != self.split]
        if self.split:
            unused = [key for key in unused if key not in _SPLITS.values()]
        return (
            *([f"made in {environment}"] if environment else []),
            *([f"filter keys not used: {', '.join(unused)}"] if unused else []),
        )

    def warnings(self) -> tuple[str, ...]:
        """Warns of ends that may be those of time limits."""
        ends, demos = self._contents.unrewarded_ends, len(self.lengths())
        if not ends:
            return ()
        # robomimic also sets the flag where a demonstration just ends, see --done_mode
        # of its dataset_states_to_obs.py.
        return (
            f"{self.name()}: {ends} of {demos} demonstrations end with {_DONES} 1 and "
            "without a reward, which is taken for the end of the task; where a time "
            f"limit ended them, set {_DONES} to 0",
        )

    @functools.cached_property
    def _contents(self) -> _Contents:
        with hdf5.open_hdf5(self.path) as file:
            names = self._list_names(file)
            lengths, virtual = [], []
            images: set[str] = set()
            layout, unrewarded = None, 0
            for name in names:
                demo = self._find_demo(file, name)
                where = f"{self.path}: {name}"
                _check_lengths(demo, where)
                layout = layout or demo.layout()
                if demo.layout() != layout:
                    raise DataFormatError(
                        f"{where}: expected the observations of {names[0]}, {layout}, "
                        f"got {demo.layout()}; make all demonstrations alike, or "
                        "split the file"
                    )
                virtual += hdf5_datasets.find_virtual(demo.members())
                images |= demo.images
                steps = len(demo.rewards)
                last = steps - 1, steps, where
                (ended,) = transitions.flags(
                    hdf5.read(demo.dones, *last), where=f"{where}: {_DONES}"
                )
                unrewarded += ended and not hdf5.read(demo.rewards, *last).any()
                # `close_episode` drops the last transition of a demonstration without
                # next observations, unless the task ended with it.
                lengths.append(steps if ended or demo.following else steps - 1)
            digest = hdf5_datasets.digest(self.path, virtual)
            data = hdf5.find_group(file, DATA, self.path)
            environment = _format_environment(
                hdf5.read_attribute(data, "env_args", self.path), self.path
            )
            keys = _list_filter_keys(file, self.path)
        if self.split:
            chosen = f"{digest} {' '.join(names)}".encode()
            digest = f"sha256:{hashlib.sha256(chosen).hexdigest()}"
        return _Contents(
            tuple(lengths),
            tuple(sorted(images)),
            digest,
            environment,
            tuple(keys),
            int(unrewarded),
        )

    def _list_names(self, file: Any) -> list[str]:
        """Lists the demonstrations that are read, in the order of their numbers."""
        names = _list_demos(file, self.path)
        if not self.split:
            return names
        split, *others = (
            set(_read_key(file, key, self.path))
            for key in (self.split, *(k for k in _SPLITS.values() if k != self.split))
        )
        wrong = split - set(names) or split.intersection(*others)
        if wrong or not split:
            raise DataFormatError(
                f"{self.path}: expected {_MASK}/{self.split} to name demonstrations of "
                f"{DATA} that are in no other split, got {min(wrong, default='none')}; "
                "write them again, such as with robomimic's split_train_val.py"
            )
        return [name for name in names if name in split]

    def _find_demo(self, file: Any, name: str) -> _Demo:
        """Finds the data sets of a demonstration and checks what they are."""
        where = f"{self.path}: {name}"
        group = hdf5.find_group(hdf5.find_group(file, DATA, self.path), name, self.path)
        names = hdf5.list_names(group, where)
        if _OBS not in names:
            raise DataFormatError(
                f"{where}: expected observations in a group {_OBS}, got "
                f"{', '.join(names) or 'nothing'}; extract them from the simulator's "
                "states with robomimic's dataset_states_to_obs.py"
            )
        observed = hdf5_datasets.find_leaves(group, _OBS, where)
        following = (
            hdf5_datasets.find_leaves(group, _NEXT_OBS, where)
            if _NEXT_OBS in names
            else {}
        )
        images = frozenset(
            key
            for key, member in observed.items()
            if len(member.shape) > _IMAGE_DIMENSIONS
        )
        kept = {key: member for key, member in observed.items() if key not in images}
        if not kept or "" in kept:
            raise DataFormatError(
                f"{where}: expected observations by name in {_OBS}, at least one of "
                f"them no image, got {', '.join(observed).strip() or 'one data set'}; "
                "extract low-dimensional observations as well"
            )
        if following and not kept.keys() <= following.keys():
            raise DataFormatError(
                f"{where}: expected {_NEXT_OBS} of {', '.join(sorted(kept))}, got "
                f"{', '.join(sorted(following))}; write the file again"
            )
        for key in kept if following else ():
            before, after = kept[key].shape[1:], following[key].shape[1:]
            if before != after:
                raise DataFormatError(
                    f"{where}: expected {_NEXT_OBS}/{key} as {_OBS}/{key} is, rows of "
                    f"shape {list(before)}, got {list(after)}; write the file again"
                )
        return _Demo(
            actions=hdf5_datasets.find_rows(group, schema.ACTIONS, where),
            rewards=hdf5_datasets.find_rows(group, schema.REWARDS, where),
            dones=hdf5_datasets.find_rows(group, _DONES, where),
            observed=kept,
            following={key: following[key] for key in kept} if following else {},
            images=images,
        )

    def _read_demo(self, file: Any, name: str) -> Episode:
        """Reads a demonstration as an episode of T+1 observations."""
        where = f"{self.path}: {name}"
        demo = self._find_demo(file, name)
        _check_lengths(demo, where)
        steps = len(demo.rewards)

        def read(member: Any) -> npt.NDArray[Any]:
            return hdf5.read(member, 0, steps, where)

        observed = {key: read(member) for key, member in demo.observed.items()}
        episode = {
            schema.OBSERVATIONS: observed,
            schema.ACTIONS: read(demo.actions),
            schema.REWARDS: transitions.flat(
                schema.REWARDS, read(demo.rewards), where=where
            ),
            TERMINALS: transitions.flags(read(demo.dones), where=f"{where}: {_DONES}"),
        }
        if not demo.following:
            return close_episode(episode)
        # Every next observation but the last is the observation of the step after, so
        # only the last is read.
        return {
            **episode,
            schema.OBSERVATIONS: {
                key: np.concatenate(
                    [states, hdf5.read(demo.following[key], steps - 1, steps, where)]
                )
                for key, states in observed.items()
            },
        }


def find_splits(path: str) -> list[tuple[Split, str]]:
    """Finds the splits of a file by its filter keys ``train`` and ``valid``.

    Args:
        path: The file.

    Returns:
        Pairs of our name and robomimic's name. A file without both keys is one split
        ``train`` with an empty name.

    Raises:
        DataFormatError: If the file is damaged.
    """
    with hdf5.open_hdf5(path) as file:
        keys = _list_filter_keys(file, path)
    both = set(_SPLITS.values()) <= set(keys)
    return list(_SPLITS.items()) if both else [("train", "")]


def _list_filter_keys(file: Any, where: str) -> list[str]:
    """Lists the filter keys of a file."""
    if _MASK not in hdf5.list_names(file, where):
        return []
    return sorted(hdf5.list_names(hdf5.find_group(file, _MASK, where), where))


def _read_key(file: Any, key: str, where: str) -> list[str]:
    """Reads the names of the demonstrations of a filter key."""
    return hdf5.read_names(hdf5.find_group(file, _MASK, where), key, where)


def _list_demos(file: Any, where: str) -> list[str]:
    """Lists all demonstrations of a file, in the order of their numbers."""
    names = hdf5.list_names(hdf5.find_group(file, DATA, where), where)
    demos = [name for name in names if DEMO.fullmatch(name)]
    if not demos:
        raise DataFormatError(
            f"{where}: expected groups demo_0, demo_1 and so on in {DATA}, got "
            f"{', '.join(names[:5]) or 'nothing'}; this is no file of robomimic, "
            "choose another --source"
        )
    # By length first: demo_10 comes after demo_9.
    return sorted(demos, key=lambda name: (len(name), name))


def _check_lengths(demo: _Demo, where: str) -> None:
    """Refuses a demonstration whose data sets differ in length, or are empty."""
    steps = len(demo.rewards)
    named: Mapping[str, Any] = {
        schema.ACTIONS: demo.actions,
        _DONES: demo.dones,
        **{f"{_OBS}/{key}": member for key, member in demo.observed.items()},
        **{f"{_NEXT_OBS}/{key}": member for key, member in demo.following.items()},
    }
    counts = {name: len(member) for name, member in named.items()}
    if not steps or set(counts.values()) != {steps}:
        raise DataFormatError(
            f"{where}: expected at least one step, and of each data set as many rows "
            f"as of rewards, {steps}, got {counts}; write the file again"
        )


def _format_environment(env_args: str | None, where: str) -> str | None:
    """Formats the environment that made a file; None if the file names none."""
    if env_args is None:
        return None
    try:
        known = json_files.parse_object(env_args, where)
    except DataFormatError:
        return None  # The environment is only shown, so damage here stops nothing.
    if "env_name" not in known:
        return None
    more = {name: value for name, value in known.items() if name != "env_name"}
    shown = json.dumps(more, sort_keys=True)
    if len(shown) > _SHOWN_CHARACTERS:
        shown = f"{shown[:_SHOWN_CHARACTERS]}..."
    return f"{known['env_name']}, {shown}"
