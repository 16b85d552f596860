"""RLDS's data sets, as TensorFlow Datasets writes them: a record an episode.

An episode is a sequence of steps. The last step has the state that the episode ends in,
and its action and reward mean nothing. ``features.json`` says what a step is of; the
classes it names are not imported. Images, texts and whatever else is no number are not
read.
"""

import functools
import glob
import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.sources import files, json_files, records, tf_example
from pipeline.sources.episode_reader import TERMINALS, Episode, EpisodeReader
from pipeline.store import schema
from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import Split

Array = npt.NDArray[Any]

FEATURES = "features.json"
_INFO = "dataset_info.json"
# TFDS's names of splits, and ours.
_SPLITS: dict[str, Split] = {
    **{"train": "train"},
    **dict.fromkeys(("val", "valid", "validation"), "val"),
}
_SHARD = re.compile(
    rf".*-(?P<split>[^-]+)\.(?P<form>{'|'.join(records.FORMATS)})"
    r"-(?P<shard>[0-9]{5,9})-of-(?P<shards>[0-9]{5,9})"
)
_STEPS = "steps/"
_OBSERVATION, _ACTION, _REWARD = "observation", "action", "reward"
_LAST, _TERMINAL = "is_last", "is_terminal"
# An observation of so many dimensions is an image, or as large as one.
_IMAGE_DIMENSIONS = 3
_MAX_DEPTH = 16


@dataclass(frozen=True)
class _Shard:
    """A file of a split.

    Attributes:
        path: Of the file.
        form: What kind of file of records.
    """

    path: str
    form: str


class RldsReader(EpisodeReader):
    """Reads the episodes of a data set, or those of one of its splits.

    Args:
        path: Its ``features.json``, local or ``gs://``.
        split: TFDS's name of the split; empty for all episodes.
    """

    kind = "rlds"

    def lengths(self) -> tuple[int, ...]:
        """Transitions of each episode, which all records are read for."""

        def count(shard: _Shard) -> list[int]:
            records_there = records.count_records(shard.path, shard.form)
            return [
                self._count_steps(tf_example.parse(record, where), where) - 1
                for where, record in self._records(shard, 0, records_there)
            ]

        counts = files.side_by_side(count, self._shards)
        found = [length for of_shard in counts for length in of_shard]
        if self._declared not in (None, len(found)):
            raise DataFormatError(
                f"{self._root}: expected {self._declared} episodes, as {_INFO} says, "
                f"got {len(found)}; fetch the data set again"
            )
        return tuple(found)

    def read(self, episodes: range) -> Iterator[Episode]:
        """Reads episodes, without what is no number."""
        first = 0
        for shard in self._shards:
            if first >= episodes.stop:
                return
            count = records.count_records(shard.path, shard.form)
            start = max(0, episodes.start - first)
            stop = min(count, episodes.stop - first)
            for where, record in self._records(shard, start, stop):
                yield self._to_episode(tf_example.parse(record, where), where)
            first += count

    def digest(self) -> str:
        """Digest of the files that are read, and of what describes them."""
        paths = [self.path, *(shard.path for shard in self._shards)]
        text = " ".join(files.side_by_side(files.digest, paths))
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def name(self) -> str:
        """Names of the folders of data set and version, with the split."""
        name = "/".join(self._root.split("/")[-2:])
        return name + (f"[{self.split}]" if self.split else "")

    def ignored(self) -> tuple[str, ...]:
        """Names of what a step has besides, images above all."""
        return tuple(sorted(self._features[1] - {_LAST, _TERMINAL}))

    @functools.cached_property
    def _root(self) -> str:
        return self.path.removesuffix(FEATURES).rstrip("/") or "."

    @functools.cached_property
    def _shards(self) -> list[_Shard]:
        return [
            shard
            for split, shards in _find_shards(self._root).items()
            for shard in shards
            if split == self.split or not self.split
        ]

    @functools.cached_property
    def _declared(self) -> int | None:
        """How many episodes there should be, if anything says so."""
        path = f"{self._root}/{_INFO}"
        if not files.is_file(path):
            return None
        named = json_files.read_object(path).get("splits")
        total = 0
        for split in named if isinstance(named, list) else ():
            lengths = split.get("shardLengths") if isinstance(split, Mapping) else None
            if not isinstance(lengths, list) or not all(
                isinstance(each, str) and re.fullmatch("[0-9]{1,12}", each)
                for each in lengths
            ):
                return None
            if not self.split or split.get("name") == self.split:
                total += sum(map(int, lengths))
        return total or None

    @functools.cached_property
    def _features(self) -> tuple[dict[str, tuple[int, ...]], frozenset[str]]:
        """What a step of each feature that is read is, and names of the others."""
        described = json_files.read_object(self.path)
        steps = _inner(described, "steps")
        inner = steps.get("sequence") if isinstance(steps, Mapping) else None
        step = inner.get("feature") if isinstance(inner, Mapping) else None
        numbers: dict[str, tuple[int, ...]] = {}
        others: set[str] = set()
        for name, shape in _tensors(step, "", 0):
            wanted = name.partition("/")[0] == _OBSERVATION or name in (
                *(_ACTION, _REWARD, _LAST, _TERMINAL),
            )
            if wanted and shape is not None and len(shape) < _IMAGE_DIMENSIONS:
                numbers[name] = shape
            elif name:
                others.add(name)
        missing = [n for n in (_ACTION, _REWARD, _TERMINAL) if n not in numbers]
        if not any(name.partition("/")[0] == _OBSERVATION for name in numbers):
            missing.append(_OBSERVATION)
        if missing:
            raise DataFormatError(
                f"{self.path}: expected steps with {_OBSERVATION}, {_ACTION}, "
                f"{_REWARD} and {_TERMINAL} of numbers, got "
                f"{', '.join(sorted(numbers)) or 'none'} (besides "
                f"{', '.join(sorted(others)[:8]) or 'nothing'}); read the data by "
                "a class of your own, --source module:Class"
            )
        return numbers, frozenset(others)

    def _records(
        self, shard: _Shard, first: int, stop: int
    ) -> Iterator[tuple[str, bytes]]:
        """Records, and where each is."""
        found = records.read_records(shard.path, shard.form, first, stop - first)
        for index, record in enumerate(found, first):
            yield f"{shard.path}, record {index}", record

    def _count_steps(self, values: Mapping[str, Array], where: str) -> int:
        """Steps of an episode, at least one."""
        steps = len(values.get(_STEPS + _TERMINAL, ()))
        if not steps:
            raise DataFormatError(
                f"{where}: expected at least one step, got none; write the data set "
                "again"
            )
        return steps

    def _to_episode(self, values: Mapping[str, Array], where: str) -> Episode:
        steps = self._count_steps(values, where)
        columns = {}
        for name, shape in self._features[0].items():
            found = values.get(_STEPS + name, np.empty(0))
            if len(found) != steps * math.prod(shape):
                raise DataFormatError(
                    f"{where}: expected {name} of {steps} steps, {list(shape)} each, "
                    f"got {len(found)} numbers; write the data set again"
                )
            columns[name] = found.reshape(steps, *shape)
        return {
            schema.OBSERVATIONS: columns[_OBSERVATION]
            if _OBSERVATION in columns
            else {
                name.partition("/")[2]: each
                for name, each in columns.items()
                if name.startswith(f"{_OBSERVATION}/")
            },
            schema.ACTIONS: columns[_ACTION][:-1],
            schema.REWARDS: columns[_REWARD][:-1],
            # Of a step they say that its state is terminal: here, of what led to it.
            TERMINALS: columns[_TERMINAL][1:],
        }


def find_splits(path: str) -> list[tuple[Split, str]]:
    """Splits of a data set, by the names of its files.

    Args:
        path: The ``features.json``.

    Returns:
        Our names and TFDS's; all of it is to train on if none is called ``train``.

    Raises:
        DataFormatError: If files are missing.
    """
    there = _find_shards(path.removesuffix(FEATURES).rstrip("/") or ".")
    if "train" not in there:
        return [("train", "")]
    return [(ours, theirs) for theirs, ours in _SPLITS.items() if theirs in there]


def _find_shards(root: str) -> dict[str, list[_Shard]]:
    """Files of each split, in order."""
    found: dict[str, dict[int, _Shard]] = {}
    for path in files.find(f"{glob.escape(root)}/*-of-*", ("",)):
        match = _SHARD.fullmatch(path.rpartition("/")[2])
        if match is None:
            continue
        shards = found.setdefault(match["split"], {})
        shards[int(match["shard"])] = _Shard(path, match["form"])
        if int(match["shard"]) == int(match["shards"]) - 1:
            shards[-1] = shards[int(match["shard"])]
    for split, shards in found.items():
        last = shards.pop(-1, None)
        if last is None or sorted(shards) != list(range(len(shards))):
            raise DataFormatError(
                f"{root}: expected all files of the split {split}, got those of "
                f"{', '.join(map(str, sorted(shards)[:8]))}; fetch the data set again"
            )
    if not found:
        raise DataFormatError(
            f"{root}: expected files NAME-SPLIT.tfrecord-00000-of-00001 or "
            f".array_record-... beside {FEATURES}, got none; fetch the data set again"
        )
    return {
        split: [shards[number] for number in sorted(shards)]
        for split, shards in sorted(found.items())
    }


def _inner(described: Any, name: str) -> Any:
    """A feature of a dictionary of features; None if there is none."""
    known = described.get("featuresDict") if isinstance(described, Mapping) else None
    features = known.get("features") if isinstance(known, Mapping) else None
    return features.get(name) if isinstance(features, Mapping) else None


def _tensors(
    described: Any, path: str, depth: int
) -> Iterator[tuple[str, tuple[int, ...] | None]]:
    """Names and shapes of the features below one; None for what is no numbers."""
    known = described.get("featuresDict") if isinstance(described, Mapping) else None
    features = known.get("features") if isinstance(known, Mapping) else None
    if isinstance(features, Mapping) and depth < _MAX_DEPTH:
        for name, each in features.items():
            yield from _tensors(each, f"{path}/{name}" if path else name, depth + 1)
        return
    yield path, _shape_of(described)


def _shape_of(described: Any) -> tuple[int, ...] | None:
    tensor = described.get("tensor") if isinstance(described, Mapping) else None
    if not isinstance(tensor, Mapping) or tensor.get("encoding", "none") != "none":
        return None
    shape = tensor.get("shape", {})
    sizes = shape.get("dimensions", []) if isinstance(shape, Mapping) else None
    if not isinstance(sizes, list) or not all(
        isinstance(each, str) and re.fullmatch("[1-9][0-9]{0,8}", each)
        for each in sizes
    ):
        return None
    if not re.fullmatch("bool|u?int[0-9]+|b?float[0-9]+", str(tensor.get("dtype"))):
        return None
    return tuple(map(int, sizes))
