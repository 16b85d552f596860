"""Reads LeRobot's data sets of format versions 2 and 3: a folder of Parquet files.

A frame holds an observation and the action that followed, together with the reward,
``done`` and ``success`` of the next frame. The state in which an episode ends has no
frame. Videos and images are not read. Paths in the data set's own files are not
followed, because a data set may come from a stranger: the version tells where the files
are.
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
# Names of our splits by LeRobot's names.
_SPLITS: dict[str, Split] = {
    **{"train": "train"},
    **dict.fromkeys(("val", "valid", "validation"), "val"),
}
_RANGE = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")
_DATA_PATHS = {
    2: "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    3: "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
}
# Larger numbers are damage, and must not become names of files or amounts of memory.
_MAX_NUMBER = 10**9


@dataclass(frozen=True)
class _Place:
    """The rows of one episode.

    Attributes:
        episode: Number of the episode in the data set.
        file: File with the rows, relative to the data set.
        first: First row within the file.
        frames: Number of rows.
    """

    episode: int
    file: str
    first: int
    frames: int


class LeRobotReader(EpisodeReader):
    """Reads the episodes of a data set, or of one of its splits.

    Args:
        path: ``meta/info.json`` of the data set, local or ``gs://``.
        split: LeRobot's name of the split; empty for all episodes.
    """

    kind = "lerobot"

    def lengths(self) -> tuple[int, ...]:
        """Counts the transitions of each episode; see `close_episode`."""
        return self._contents.lengths

    def read(self, episodes: range) -> Iterator[Episode]:
        """Reads episodes, without images."""
        with contextlib.ExitStack() as stack:
            opened, table = "", None
            for index in episodes:
                place = self._places[index]
                # Episodes of a file follow one another, so each file is opened once.
                if table is None or place.file != opened:
                    stack.close()
                    opened = place.file
                    table = stack.enter_context(
                        parquet.opened(f"{self._root}/{place.file}")
                    )
                yield self._read_episode(table, place)

    def digest(self) -> str:
        """Digests the files with the episodes, and which episodes are read."""
        return self._contents.digest

    def name(self) -> str:
        """Names the folder and the split."""
        return self._root.rpartition("/")[2] + (f"[{self.split}]" if self.split else "")

    def ignored(self) -> tuple[str, ...]:
        """Names the features that are not read, mostly images."""
        return self._contents.ignored

    def notes(self) -> tuple[str, ...]:
        """Names the robot and unused splits, and says what rewards are made of."""
        robot = self._info.get("robot_type")
        named = _read_splits(self._info, self.path) if self.split else {}
        unused = sorted(named.keys() - _SPLITS.keys())
        return (
            *([f"recorded of {robot}"] if isinstance(robot, str) else []),
            *([f"splits not used: {', '.join(unused)}"] if unused else []),
            *self._contents.notes,
        )

    def warnings(self) -> tuple[str, ...]:
        """Warns if the end of an episode has to be taken for the end of its task."""
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
        """The episodes that are read, in the order of their numbers."""
        version = _read_version(self._info, self.path)
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
        first, last = _read_splits(self._info, self.path)[self.split]
        if last > len(places):
            raise DataFormatError(
                f"{self.path}: expected the split {self.split} within {len(places)} "
                f"episodes, got {first}:{last}; mend the file"
            )
        return places[first:last]

    def _list_version_2(self) -> list[_Place]:
        """Lists all episodes of version 2, where each episode is a file."""
        path = f"{self._root}/meta/episodes.jsonl"
        size = _read_count(self._info, "chunks_size", self.path)
        with files.open_file(path) as stream:
            lines = stream.read().splitlines()
        places = []
        for line in lines:
            known = json_files.parse_object(line, path)
            episode, frames = (
                _read_count(known, n, path) for n in (_EPISODE, "length")
            )
            file = f"data/chunk-{episode // size:03d}/episode_{episode:06d}.parquet"
            places.append(_Place(episode, file, 0, frames))
        return sorted(places, key=lambda place: place.episode)

    def _list_version_3(self) -> list[_Place]:
        """Lists all episodes of version 3, where a file holds many episodes."""
        records: list[tuple[int, int, int, int]] = []
        folder = f"{glob.escape(self._root)}/meta/episodes"
        for path in files.find(f"{folder}/chunk-*/file-*.parquet", (".parquet",)):
            with parquet.opened(path) as table:
                names = (_EPISODE, "data/chunk_index", "data/file_index", "length")
                columns = table.read(names, 0, table.rows)
            for values in zip(*(columns[name].tolist() for name in names), strict=True):
                row = dict(zip(names, values, strict=True))
                episode, chunk, file, frames = (
                    _read_count(row, n, path) for n in names
                )
                records.append((episode, chunk, file, frames))
        # Episodes lie in a file in the order of their numbers, so that the lengths
        # before one sum to its first row.
        places, ends = [], dict[str, int]()
        for episode, chunk, file, frames in sorted(records):
            name = f"data/chunk-{chunk:03d}/file-{file:03d}.parquet"
            places.append(_Place(episode, name, ends.get(name, 0), frames))
            ends[name] = places[-1].first + frames
        return places

    @functools.cached_property
    def _columns(self) -> dict[str, tuple[int | None, ...]]:
        """Numeric columns of the first file, which every other file must have too."""
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
        """Names of the columns that are read."""
        wanted = (_ACTION, _EPISODE, _REWARD, _DONE, _SUCCESS)
        return [n for n in self._columns if n in wanted or n.startswith(_OBSERVATION)]

    @functools.cached_property
    def _contents(self) -> "_Contents":
        """Reads the ends of all episodes, several files at once."""
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
                        _read_ends(
                            table.read(names, place.first, place.first + place.frames),
                            place,
                            path,
                        )[-1]
                    )
                    for place in by_file[file]
                ]
            return ended, files.digest(path)

        looked = files.map_concurrently(look, list(by_file))
        ended = dict(
            zip(
                (place for of_file in by_file.values() for place in of_file),
                (end for of_file, _ in looked for end in of_file),
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
        ended = _read_ends(rows, place, where)
        # Successes are booleans and may stand for rewards, which are numbers.
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
    """The episodes that are read; see `Description` for the fields."""

    lengths: tuple[int, ...]
    digest: str
    ignored: tuple[str, ...]
    notes: tuple[str, ...]


def find_splits(path: str) -> list[tuple[Split, str]]:
    """Finds the splits that the ``info.json`` of a data set names.

    Args:
        path: The ``info.json``.

    Returns:
        Pairs of our name and LeRobot's name. A data set without splits is one split
        ``train`` with an empty name.

    Raises:
        DataFormatError: If the file is damaged.
    """
    info = json_files.read_object(path)
    known = _read_splits(info, path)
    # LeRobot names all episodes `train` in a data set that was not split.
    if known.get("train") == (0, info.get("total_episodes")) or "train" not in known:
        return [("train", "")]
    return [(ours, theirs) for theirs, ours in _SPLITS.items() if theirs in known]


def _read_splits(info: Mapping[str, Any], where: str) -> dict[str, tuple[int, int]]:
    """Reads first episode and end of each split, by LeRobot's name."""
    named = info.get("splits", {})
    ranges = {}
    for name, span in named.items() if isinstance(named, Mapping) else ():
        match = _RANGE.fullmatch(span) if isinstance(span, str) else None
        if match is None or not int(match[1]) < int(match[2]):
            raise DataFormatError(
                f"{where}: expected the split {name} as FIRST:LAST, got {span!r}; mend "
                "the file"
            )
        ranges[name] = (int(match[1]), int(match[2]))
    # An episode in both splits would be validated on after it was trained on.
    spans = sorted(ranges[name] for name in _SPLITS if name in ranges)
    if any(former[1] > latter[0] for former, latter in itertools.pairwise(spans)):
        raise DataFormatError(
            f"{where}: expected each episode in one split, got {ranges}; mend the file"
        )
    return ranges


def _read_version(info: Mapping[str, Any], where: str) -> int:
    """Reads the version of the format, 2 or 3, and checks its layout of files."""
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


def _read_count(values: Mapping[str, Any], name: str, where: str) -> int:
    """Reads a whole number from 0; from 1 for lengths and the divisor of chunks."""
    value = values.get(name)
    least = int(name in ("length", "chunks_size"))
    if type(value) is not int or not least <= value < _MAX_NUMBER:
        raise DataFormatError(
            f"{where}: expected {name} as a number from {least} on, got {value!r}; "
            "fetch the data set again"
        )
    return value


def _read_ends(rows: Mapping[str, Any], place: _Place, where: str) -> Any:
    """Reads where the task ended, ``bool[frames]``; refuses rows of other episodes."""
    numbers = transitions.flat(_EPISODE, rows[_EPISODE], where=where)
    if not np.array_equal(numbers, np.full(place.frames, place.episode)):
        raise DataFormatError(
            f"{where}: expected episode {place.episode} in rows {place.first} to "
            f"{place.first + place.frames - 1}, as meta says, got others; fetch the "
            "data set again"
        )
    name = _SUCCESS if _SUCCESS in rows else _DONE
    return transitions.flags(rows[name], where=f"{where}: {name}")
