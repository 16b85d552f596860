"""Episodes of a store, one by one: a sample drawn evenly, in bounded memory."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeline.store import schema
from pipeline.store.manifest import PartManifest
from pipeline.store.reader import Store

Floats = npt.NDArray[np.floating]

MAX_EPISODES = 400
# Of all sampled episodes together, where there are several; and of one of them.
_MAX_ROWS = 2_000_000
_EPISODE_ROWS = 500_000
# Requests to a bucket wait for each other otherwise.
_READERS = 8


class Episode(NamedTuple):
    """One recorded episode.

    Attributes:
        number: Within its split, from 0.
        split: ``"train"`` or ``"val"``.
        part: That holds it.
        first: Its first row, counted within the part.
        length: Rows, one more than its transitions.
        read: Rows that were read: all but those of a very long episode.
        rewards: ``f64[tasks]``, sums over the steps of the rows read.
        returns: ``f64[discounts, tasks]``, at its first row.
        stretches: Lengths in rows of the solved stretches, for each task.
    """

    number: int
    split: str
    part: PartManifest
    first: int
    length: int
    read: int
    rewards: Floats
    returns: Floats
    stretches: tuple[npt.NDArray[np.int64], ...]


class Sample(NamedTuple):
    """Episodes that were looked at.

    Attributes:
        episodes: In the order of the store, training split first.
        total: Episodes of the store.
        lengths: ``i64[total]``, rows of every episode.
    """

    episodes: list[Episode]
    total: int
    lengths: npt.NDArray[np.int64]


def draw_sample(store: Store, *, most: int = MAX_EPISODES) -> Sample:
    """Looks at episodes at even distances, from the first to the last.

    Args:
        store: The store.
        most: Episodes at most; fewer where they are long, so that two million rows or
            one episode are read.

    Returns:
        The episodes.

    Raises:
        DataFormatError: If bytes are missing or damaged.
    """
    parts = [
        part for split in ("train", "val") for part in store.manifest.parts_of(split)
    ]
    lengths = np.concatenate([store.episode_lengths(part) for part in parts])
    ends = np.cumsum([part.episodes for part in parts])
    training = sum(part.episodes for part in parts if part.split == "train")
    fits = max(1, int(_MAX_ROWS / lengths.mean()))
    count = min(most, fits, len(lengths))
    # An episode number names its part and its first row within that.
    wanted = np.unique(np.linspace(0, len(lengths) - 1, count).round().astype(int))
    places = []
    for number in wanted.tolist():
        index = int(np.searchsorted(ends, number, side="right"))
        part = parts[index]
        before = int(ends[index]) - part.episodes
        first = int(lengths[before:number].sum())
        own = number if part.split == "train" else number - training
        places.append((own, part, first, int(lengths[number])))
    with ThreadPoolExecutor(_READERS) as pool:
        found = list(pool.map(lambda place: _look(store, *place), places))
    return Sample(found, len(lengths), lengths)


def read_places(store: Store, episodes: Sequence[Episode]) -> Iterator[Floats]:
    """Reads where on a maze's floor sampled episodes are: ``f32[rows, 2]`` of each."""
    for each in episodes:
        last = each.first + each.read
        yield store.read_rows(each.part, "qpos", each.first, last)[:, :2]


def _look(
    store: Store, number: int, part: PartManifest, first: int, length: int
) -> Episode:
    manifest = store.manifest
    read = min(length, _EPISODE_ROWS)
    rewards, masks = (
        store.read_rows(part, field, first, first + read)
        for field in (schema.REWARDS, schema.MASKS)
    )
    returns = [
        store.read_rows(part, store.returns_field(each), first, first + 1)[0]
        for each in manifest.discounts
    ]
    return Episode(
        number,
        part.split,
        part,
        first,
        length,
        read,
        # The last row has no step.
        rewards[: length - 1].sum(axis=0, dtype=np.float64),
        np.reshape(np.array(returns, np.float64), (-1, len(manifest.tasks))),
        tuple(measure_stretches(column == 0) for column in masks.T),
    )


def measure_stretches(solved: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Lengths of the runs of solved rows, in order.

    Example:
        >>> measure_stretches(np.array([True, False, True, True])).tolist()
        [1, 2]
    """
    edges = np.flatnonzero(np.diff(np.r_[False, solved, False].astype(np.int8)))
    return np.diff(edges)[::2].astype(np.int64)
