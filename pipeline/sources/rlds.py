"""Reads RLDS's data sets as TensorFlow Datasets writes them: a record for each episode.

An episode is a sequence of steps. The last step has the state that the episode ends in,
and its action and reward mean nothing. ``features.json`` describes a step; the classes
that it names are not imported. Only numeric features are read: no images, no texts.
"""

import dataclasses
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
# Names of our splits by TFDS's names.
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
# A feature with three or more axes is an image, or as large as one, and is not read.
_IMAGE_DIMENSIONS = 3
_MAX_DEPTH = 16


@dataclass(frozen=True)
class _Shard:
    """A file of a split.

    Attributes:
        path: Path of the file.
        form: Format of the file, one of `records.FORMATS`.
        declared: Records of the file, as ``dataset_info.json`` says; None if unknown.
    """

    path: str
    form: str
    declared: int | None = None


class RldsReader(EpisodeReader):
    """Reads the episodes of a data set, or of one of its splits.

    Args:
        path: ``features.json`` of the data set, local or ``gs://``.
        split: TFDS's name of the split; empty for all episodes.
    """

    kind = "rlds"

    def lengths(self) -> tuple[int, ...]:
        """Counts the transitions of each episode.

        The format keeps no lengths of episodes apart, so all records are read.
        """

        def count(shard: _Shard) -> list[int]:
            record_count = records.count_records(shard.path, shard.form)
            return [
                self._count_steps(tf_example.parse(record, where), where) - 1
                for where, record in self._records(shard, 0, record_count)
            ]

        counts = files.map_concurrently(count, self._shards)
        lengths = [length for of_shard in counts for length in of_shard]
        # All of a split is compared, too: files may be others than those declared.
        total = sum(
            sum(declared)
            for split, declared in self._declared.items()
            if split == self.split or not self.split
        )
        if total not in (0, len(lengths)):
            raise DataFormatError(
                f"{self._root}: expected {total} episodes, as {_INFO} says, "
                f"got {len(lengths)}; fetch the data set again"
            )
        for shard, of_shard in zip(self._shards, counts, strict=True):
            if shard.declared not in (None, len(of_shard)):
                raise DataFormatError(
                    f"{shard.path}: expected {shard.declared} episodes, as {_INFO} "
                    f"says, got {len(of_shard)}; fetch the data set again"
                )
        return tuple(lengths)

    def read(self, episodes: range) -> Iterator[Episode]:
        """Reads the numeric features of episodes."""
        first = 0
        for shard in self._shards:
            if first >= episodes.stop:
                return
            # Counting seeks through all of a file, and every worker would do that for
            # all files before its own.
            count = shard.declared
            if count is None:
                count = records.count_records(shard.path, shard.form)
            start = max(0, episodes.start - first)
            stop = min(count, episodes.stop - first)
            for where, record in self._records(shard, start, stop):
                yield self._to_episode(tf_example.parse(record, where), where)
            first += count

    def digest(self) -> str:
        """Digests the files that are read, and ``features.json``."""
        paths = [self.path, *(shard.path for shard in self._shards)]
        text = " ".join(files.map_concurrently(files.digest, paths))
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def name(self) -> str:
        """Names the folders of data set and version, and the split."""
        name = "/".join(self._root.split("/")[-2:])
        return name + (f"[{self.split}]" if self.split else "")

    def ignored(self) -> tuple[str, ...]:
        """Names the features of a step that are not read, mostly images."""
        return tuple(sorted(self._features[1] - {_LAST, _TERMINAL}))

    def notes(self) -> tuple[str, ...]:
        """Names the splits that are not used."""
        unused = _find_shards(self._root).keys() - _SPLITS.keys() if self.split else ()
        return (f"splits not used: {', '.join(sorted(unused))}",) if unused else ()

    @functools.cached_property
    def _root(self) -> str:
        return self.path.removesuffix(FEATURES).rstrip("/") or "."

    @functools.cached_property
    def _shards(self) -> list[_Shard]:
        declared = self._declared
        return [
            dataclasses.replace(shard, declared=count)
            for split, shards in _find_shards(self._root).items()
            if split == self.split or not self.split
            for shard, count in zip(
                shards,
                # Lengths of another number of files say nothing of these.
                declared[split]
                if len(declared.get(split, ())) == len(shards)
                else [None] * len(shards),
                strict=True,
            )
        ]

    @functools.cached_property
    def _declared(self) -> dict[str, list[int]]:
        """Episodes of each file by split, if ``dataset_info.json`` says all of them."""
        path = f"{self._root}/{_INFO}"
        if not files.is_file(path):
            return {}
        named = json_files.read_object(path).get("splits")
        declared = {}
        for split in named if isinstance(named, list) else ():
            lengths = split.get("shardLengths") if isinstance(split, Mapping) else None
            if not isinstance(lengths, list) or not all(
                isinstance(length, str) and re.fullmatch("[0-9]{1,12}", length)
                for length in lengths
            ):
                return {}
            declared[str(split.get("name"))] = list(map(int, lengths))
        return declared

    @functools.cached_property
    def _features(self) -> tuple[dict[str, tuple[int, ...]], frozenset[str]]:
        """Shapes of the features that are read, and names of all others."""
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
        """Yields records, with file and number of each for errors."""
        read = records.read_records(shard.path, shard.form, first, stop - first)
        for index, record in enumerate(read, first):
            yield f"{shard.path}, record {index}", record

    def _count_steps(self, values: Mapping[str, Array], where: str) -> int:
        """Counts the steps of an episode, of which there must be one at least."""
        steps = len(values.get(_STEPS + _TERMINAL, ()))
        if not steps:
            raise DataFormatError(
                f"{where}: expected at least one step, got none; write the data set "
                "again"
            )
        return steps

    def _to_episode(self, values: Mapping[str, Array], where: str) -> Episode:
        """Converts the flat values of a record to an episode."""
        steps = self._count_steps(values, where)
        columns = {}
        for name, shape in self._features[0].items():
            flat = values.get(_STEPS + name, np.empty(0))
            if len(flat) != steps * math.prod(shape):
                raise DataFormatError(
                    f"{where}: expected {name} of {steps} steps, {list(shape)} each, "
                    f"got {len(flat)} numbers; write the data set again"
                )
            columns[name] = flat.reshape(steps, *shape)
        return {
            schema.OBSERVATIONS: columns[_OBSERVATION]
            if _OBSERVATION in columns
            else {
                name.partition("/")[2]: column
                for name, column in columns.items()
                if name.startswith(f"{_OBSERVATION}/")
            },
            schema.ACTIONS: columns[_ACTION][:-1],
            schema.REWARDS: columns[_REWARD][:-1],
            # RLDS flags the step whose state is terminal. A transition is flagged if
            # the state that it leads to, that of the next step, is terminal.
            TERMINALS: columns[_TERMINAL][1:],
        }


def find_splits(path: str) -> list[tuple[Split, str]]:
    """Finds the splits of a data set by the names of its files.

    Args:
        path: The ``features.json``.

    Returns:
        Pairs of our name and TFDS's name. A data set without a split ``train`` is one
        split ``train`` with an empty name.

    Raises:
        DataFormatError: If files are missing.
    """
    by_split = _find_shards(path.removesuffix(FEATURES).rstrip("/") or ".")
    if "train" not in by_split:
        return [("train", "")]
    return [(ours, theirs) for theirs, ours in _SPLITS.items() if theirs in by_split]


def _find_shards(root: str) -> dict[str, list[_Shard]]:
    """Finds the files of each split, in order, and refuses a split that lacks some."""
    by_split: dict[str, dict[int, _Shard]] = {}
    for path in files.find(f"{glob.escape(root)}/*-of-*", ("",)):
        match = _SHARD.fullmatch(path.rpartition("/")[2])
        if match is None:
            continue
        shards = by_split.setdefault(match["split"], {})
        shards[int(match["shard"])] = _Shard(path, match["form"])
        # Key -1 marks that the last file of the split is present.
        if int(match["shard"]) == int(match["shards"]) - 1:
            shards[-1] = shards[int(match["shard"])]
    for split, shards in by_split.items():
        last = shards.pop(-1, None)
        if last is None or sorted(shards) != list(range(len(shards))):
            raise DataFormatError(
                f"{root}: expected all files of the split {split}, got those of "
                f"{', '.join(map(str, sorted(shards)[:8]))}; fetch the data set again"
            )
    if not by_split:
        raise DataFormatError(
            f"{root}: expected files NAME-SPLIT.tfrecord-00000-of-00001 or "
            f".array_record-... beside {FEATURES}, got none; fetch the data set again"
        )
    return {
        split: [shards[number] for number in sorted(shards)]
        for split, shards in sorted(by_split.items())
    }


def _inner(described: Any, name: str) -> Any:
    """Returns a feature of a described dictionary of features, or None."""
    known = described.get("featuresDict") if isinstance(described, Mapping) else None
    features = known.get("features") if isinstance(known, Mapping) else None
    return features.get(name) if isinstance(features, Mapping) else None


def _tensors(
    described: Any, path: str, depth: int
) -> Iterator[tuple[str, tuple[int, ...] | None]]:
    """Yields path and shape of all features; the shape is None if not numeric."""
    known = described.get("featuresDict") if isinstance(described, Mapping) else None
    features = known.get("features") if isinstance(known, Mapping) else None
    if isinstance(features, Mapping) and depth < _MAX_DEPTH:
        for name, inner in features.items():
            yield from _tensors(inner, f"{path}/{name}" if path else name, depth + 1)
        return
    yield path, _shape_of(described)


def _shape_of(described: Any) -> tuple[int, ...] | None:
    """Returns the shape of a described numeric tensor; None for anything else."""
    tensor = described.get("tensor") if isinstance(described, Mapping) else None
    if not isinstance(tensor, Mapping) or tensor.get("encoding", "none") != "none":
        return None
    shape = tensor.get("shape", {})
    sizes = shape.get("dimensions", []) if isinstance(shape, Mapping) else None
    if not isinstance(sizes, list) or not all(
        isinstance(size, str) and re.fullmatch("[1-9][0-9]{0,8}", size)
        for size in sizes
    ):
        return None
    if not re.fullmatch("bool|u?int[0-9]+|b?float[0-9]+", str(tensor.get("dtype"))):
        return None
    return tuple(map(int, sizes))
