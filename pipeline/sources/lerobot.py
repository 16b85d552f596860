"""LeRobot's data sets, of its format versions 2 and 3: a folder of Parquet files.

A frame is an observation, the action that followed, and of the frame after it the
reward, whether it ended the episode and whether the task was solved. What an episode
ends in is no frame. Videos and images are not read, nor is any path that stands in a
file: where the files are is known from the version.
"""

import contextlib
import functools
import glob
import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.sources import files, json_files, parquet, transitions
from pipeline.sources.episode_reader import (
    TERMINALS,
    Episode,
    EpisodeReader,
    close_episode,
)
from pipeline.store import schema
from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import Split

INFO = "meta/info.json"
_OBSERVATION, _ACTION, _EPISODE = "observation.", "action", "episode_index"
_REWARD, _DONE, _SUCCESS = "next.reward", "next.done", "next.success"
# LeRobot's names of splits, and ours.
_SPLITS: dict[str, Split] = {
    **{"train": "train"},
    **dict.fromkeys(("val", "valid", "validation"), "val"),
}
_RANGE = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")
_DATA_PATHS = {
    2: "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    3: "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
}
_MAX_NUMBER = 10**9


@dataclass(frozen=True)
class _Place:
    """Where an episode is.

    Attributes:
        episode: Its number in the data set.
        file: Its file, relative to the data set.
        first: Its first row there.
        frames: How many rows it has.
    """

    episode: int
    file: str
    first: int
    frames: int


class LeRobotReader(EpisodeReader):
    """Reads the episodes of a data set, or those of one of its splits.

    Args:
        path: Its ``meta/info.json``, local or ``gs://``.
        split: LeRobot's name of the split; empty for all episodes.
    """

    kind = "lerobot"

    def lengths(self) -> tuple[int, ...]:
        """Transitions of each episode: a state after the last is known of few."""
        return self._contents.lengths

    def read(self, episodes: range) -> Iterator[Episode]:
        """Reads episodes, images left out."""
        with contextlib.ExitStack() as stack:
            opened, table = "", None
            for index in episodes:
                place = self._places[index]
                if table is None or place.file != opened:
                    stack.close()
                    opened = place.file
                    table = stack.enter_context(
                        parquet.opened(f"{self._root}/{place.file}")
                    )
                yield self._read_episode(table, place)

    def digest(self) -> str:
        """Digest of the files the episodes are in, and of which are read."""
        return self._contents.digest

    def name(self) -> str:
        """Name of the folder, with the split."""
        return self._root.rpartition("/")[2] + (f"[{self.split}]" if self.split else "")

    def ignored(self) -> tuple[str, ...]:
        """Names of features that are not read, images above all."""
        return self._contents.ignored

    def notes(self) -> tuple[str, ...]:
        """The robot, and what rewards and masks are made of."""
        robot = self._info.get("robot_type")
        return (
            *([f"recorded of {robot}"] if isinstance(robot, str) else []),
            *self._contents.notes,
        )

    def warnings(self) -> tuple[str, ...]:
        """Says if the end of an episode has to be taken for that of its task."""
        if _SUCCESS in self._columns:
            return ()
        return (
            f"{self.name()}: there is no {_SUCCESS}, so {_DONE} is taken for the end "
            "of the task; where it marks time limits as well, add that feature",
        )

    @functools.cached_property
    def _root(self) -> str:
        return self.path.removesuffix(INFO).rstrip("/") or "."

    @functools.cached_property
    def _info(self) -> dict[str, Any]:
        return json_files.read_object(self.path)

    @functools.cached_property
    def _places(self) -> list[_Place]:
        """Where the episodes that are read are, in the order of their numbers."""
        version = _version(self._info, self.path)
        places = self._list_version_2() if version == 2 else self._list_version_3()
        total = self._info.get("total_episodes")
        if [place.episode for place in places] != list(range(len(places))) or (
            total != len(places) or not places
        ):
            raise DataFormatError(
                f"{self._root}/meta: expected episodes 0, 1 and so on, {total} in all, "
                f"got {len(places)}; fetch the data set again"
            )
        if not self.split:
            return places
        first, last = _splits(self._info, self.path)[self.split]
        if last > len(places):
            raise DataFormatError(
                f"{self.path}: expected the split {self.split} within {len(places)} "
                f"episodes, got {first}:{last}; mend the file"
            )
        return places[first:last]

    def _list_version_2(self) -> list[_Place]:
        path = f"{self._root}/meta/episodes.jsonl"
        size = _count(self._info, "chunks_size", self.path)
        with files.open_file(path) as stream:
            lines = stream.read().splitlines()
        places = []
        for line in lines:
            known = json_files.parse_object(line, path)
            episode, frames = (_count(known, n, path) for n in (_EPISODE, "length"))
            file = f"data/chunk-{episode // size:03d}/episode_{episode:06d}.parquet"
            places.append(_Place(episode, file, 0, frames))
        return sorted(places, key=lambda place: place.episode)

    def _list_version_3(self) -> list[_Place]:
        found: list[tuple[int, int, int, int]] = []
        folder = f"{glob.escape(self._root)}/meta/episodes"
        for path in files.find(f"{folder}/chunk-*/file-*.parquet", (".parquet",)):
            with parquet.opened(path) as table:
                names = (_EPISODE, "data/chunk_index", "data/file_index", "length")
                columns = table.read(names, 0, table.rows)
            for values in zip(*(columns[name].tolist() for name in names), strict=True):
                row = dict(zip(names, values, strict=True))
                episode, chunk, file, frames = (_count(row, n, path) for n in names)
                found.append((episode, chunk, file, frames))
        places, ends = [], dict[str, int]()
        for episode, chunk, file, frames in sorted(found):
            name = f"data/chunk-{chunk:03d}/file-{file:03d}.parquet"
            places.append(_Place(episode, name, ends.get(name, 0), frames))
            ends[name] = places[-1].first + frames
        return places

    @functools.cached_property
    def _columns(self) -> dict[str, tuple[int | None, ...]]:
        """Columns of numbers of the first file, which the others are to have too."""
        return self._first_columns[0]

    @functools.cached_property
    def _first_columns(
        self,
    ) -> tuple[dict[str, tuple[int | None, ...]], tuple[str, ...]]:
        path = f"{self._root}/{self._places[0].file}"
        with parquet.opened(path) as table:
            columns, others = table.columns, table.others
        rewarded = {_REWARD, _SUCCESS} & columns.keys()
        ended = {_DONE, _SUCCESS} & columns.keys()
        observed = [name for name in columns if name.startswith(_OBSERVATION)]
        if not (
            rewarded and ended and observed and {_ACTION, _EPISODE} <= set(columns)
        ):
            raise DataFormatError(
                f"{path}: expected {_OBSERVATION}* of numbers, {_ACTION}, {_EPISODE}, "
                f"{_REWARD} or {_SUCCESS}, and {_DONE} or {_SUCCESS}, got "
                f"{', '.join(columns) or 'nothing'}; add the features, such as with "
                "LeRobot's dataset_tools.add_features, or read the data by a class of "
                "your own"
            )
        return columns, others

    @functools.cached_property
    def _names(self) -> list[str]:
        """Columns that are read."""
        wanted = (_ACTION, _EPISODE, _REWARD, _DONE, _SUCCESS)
        return [n for n in self._columns if n in wanted or n.startswith(_OBSERVATION)]

    @functools.cached_property
    def _contents(self) -> "_Contents":
        places = self._places
        by_file: dict[str, list[_Place]] = {}
        for place in places:
            by_file.setdefault(place.file, []).append(place)
        names = [n for n in (_EPISODE, _DONE, _SUCCESS) if n in self._columns]

        def look(file: str) -> tuple[list[bool], str]:
            path = f"{self._root}/{file}"
            with parquet.opened(path) as table:
                ended = [
                    bool(
                        _ends(
                            table.read(names, each.first, each.first + each.frames),
                            each,
                            path,
                        )[-1]
                    )
                    for each in by_file[file]
                ]
            return ended, files.digest(path)

        looked = files.side_by_side(look, list(by_file))
        ended = dict(
            zip(
                (place for of_file in by_file.values() for place in of_file),
                (each for of_file, _ in looked for each in of_file),
                strict=True,
            )
        )
        chosen = [f"{place.episode}:{place.frames}" for place in places]
        text = " ".join([*(digest for _, digest in looked), *chosen])
        ignored = {*self._first_columns[1]}
        features = self._info.get("features")
        if isinstance(features, Mapping):
            ignored |= {name for name in features if name not in self._columns}
        notes = []
        if _REWARD not in self._columns:
            notes.append(
                f"there is no {_REWARD}: rewards are 1 where {_SUCCESS}, else 0"
            )
        return _Contents(
            tuple(place.frames - (not ended[place]) for place in places),
            f"sha256:{hashlib.sha256(text.encode()).hexdigest()}",
            tuple(sorted(ignored)),
            tuple(notes),
        )

    def _read_episode(self, table: parquet.Table, place: _Place) -> Episode:
        where = f"{self._root}/{place.file}"
        rows = table.read(self._names, place.first, place.first + place.frames)
        ended = _ends(rows, place, where)
        rewards = rows[_REWARD if _REWARD in rows else _SUCCESS]
        return close_episode(
            {
                schema.OBSERVATIONS: {
                    name.removeprefix(_OBSERVATION): values
                    for name, values in rows.items()
                    if name.startswith(_OBSERVATION)
                },
                schema.ACTIONS: rows[_ACTION],
                schema.REWARDS: transitions.flat(
                    _REWARD,
                    rewards.astype(np.result_type(rewards, np.float32)),
                    where=where,
                ),
                TERMINALS: ended,
            }
        )


@dataclass(frozen=True)
class _Contents:
    """What describes the episodes that are read."""

    lengths: tuple[int, ...]
    digest: str
    ignored: tuple[str, ...]
    notes: tuple[str, ...]


def find_splits(path: str) -> list[tuple[Split, str]]:
    """Splits of a data set, by those that its ``info.json`` names.

    Args:
        path: The ``info.json``.

    Returns:
        Our names and LeRobot's; all of it is to train on if it is not split.

    Raises:
        DataFormatError: If the file is damaged.
    """
    info = json_files.read_object(path)
    known = _splits(info, path)
    if known.get("train") == (0, info.get("total_episodes")) or "train" not in known:
        return [("train", "")]
    return [(ours, theirs) for theirs, ours in _SPLITS.items() if theirs in known]


def _splits(info: Mapping[str, Any], where: str) -> dict[str, tuple[int, int]]:
    """First episode, and the one after the last, of each split by LeRobot's name."""
    named = info.get("splits", {})
    found = {}
    for name, span in named.items() if isinstance(named, Mapping) else ():
        match = _RANGE.fullmatch(span) if isinstance(span, str) else None
        if match is None or not int(match[1]) < int(match[2]):
            raise DataFormatError(
                f"{where}: expected the split {name} as FIRST:LAST, got {span!r}; mend "
                "the file"
            )
        found[name] = (int(match[1]), int(match[2]))
    spans = sorted(found[name] for name in _SPLITS if name in found)
    if any(one[1] > other[0] for one, other in itertools.pairwise(spans)):
        raise DataFormatError(
            f"{where}: expected each episode in one split, got {found}; mend the file"
        )
    return found


def _version(info: Mapping[str, Any], where: str) -> int:
    named = info.get("codebase_version")
    for version, path in _DATA_PATHS.items():
        if isinstance(named, str) and named.startswith(f"v{version}."):
            if info.get("data_path") != path:
                raise DataFormatError(
                    f"{where}: expected files at {path}, as version {named} has them, "
                    f"got {info.get('data_path')!r}; convert the data set with LeRobot"
                )
            return version
    raise DataFormatError(
        f"{where}: expected a LeRobot data set of version v2.x or v3.x, got "
        f"{named!r}; convert it with LeRobot"
    )


def _count(values: Mapping[str, Any], name: str, where: str) -> int:
    """A whole number, at least 0 or, of what is divided by or counted, 1."""
    value = values.get(name)
    least = int(name in ("length", "chunks_size"))
    if type(value) is not int or not least <= value < _MAX_NUMBER:
        raise DataFormatError(
            f"{where}: expected {name} as a number from {least} on, got {value!r}; "
            "fetch the data set again"
        )
    return value


def _ends(rows: Mapping[str, Any], place: _Place, where: str) -> Any:
    """Where the task ended, ``bool[frames]``; refuses frames of other episodes."""
    numbers = transitions.flat(_EPISODE, rows[_EPISODE], where=where)
    if not np.array_equal(numbers, np.full(place.frames, place.episode)):
        raise DataFormatError(
            f"{where}: expected episode {place.episode} in rows {place.first} to "
            f"{place.first + place.frames - 1}, as meta says, got others; fetch the "
            "data set again"
        )
    name = _SUCCESS if _SUCCESS in rows else _DONE
    return transitions.flags(rows[name], where=f"{where}: {name}")
