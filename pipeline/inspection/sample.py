"""An even sample of a store's episodes, read in bounded memory."""

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
# Upper bounds of the rows that are read: of all sampled episodes together (at least one
# episode is read), and of one episode.
_MAX_ROWS = 2_000_000
_EPISODE_ROWS = 500_000
# Threads hide the latency of a bucket, where each request takes tens of milliseconds.
_READERS = 8


class Episode(NamedTuple):
    """One recorded episode.

    Attributes:
        number: Number of the episode within its split, from 0.
        split: ``"train"`` or ``"val"``.
        part: Part that holds the episode.
        first: First row of the episode, counted within the part.
        length: Rows of the episode, one more than its transitions.
        read: Rows that were read; fewer than ``length`` if the episode is very long.
        rewards: ``f64[tasks]``, sum of the rewards of the steps that were read.
        returns: ``f64[discounts, tasks]``, discounted returns at the first row.
        stretches: ``i64[n]`` for each task, rows of each unbroken solved stretch.
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
    """The episodes that were read.

    Attributes:
        episodes: Sampled episodes in the order of the store, training split first.
        total: Number of episodes in the store.
        lengths: ``i64[total]``, rows of every episode.
    """

    episodes: list[Episode]
    total: int
    lengths: npt.NDArray[np.int64]


def draw_sample(store: Store, *, most: int = MAX_EPISODES) -> Sample:
    """Reads episodes at even distances, from the first of the store to the last.

    Args:
        store: The store.
        most: Upper bound on the number of episodes. Fewer are read if episodes are
            long, to stay below two million rows.

    Returns:
        The sample.

    Raises:
        DataFormatError: If bytes are missing or damaged.
    """
    parts = [
        part for split in ("train", "val") for part in store.manifest.parts_of(split)
    ]
    lengths = np.concatenate(store.lengths_of(parts))
    ends = np.cumsum([part.episodes for part in parts])
    training = sum(part.episodes for part in parts if part.split == "train")
    # An expected number is enough: the limit bounds time and memory only roughly.
    fits = max(1, int(_MAX_ROWS / lengths.mean()))
    count = min(most, fits, len(lengths))
    # Episodes are numbered through all parts; a part counts its rows from 0.
    wanted = np.unique(np.linspace(0, len(lengths) - 1, count).round().astype(int))
    places = []
    for number in wanted.tolist():
        index = int(np.searchsorted(ends, number, side="right"))
        part = parts[index]
        before = int(ends[index]) - part.episodes
        first = int(lengths[before:number].sum())
        own = number if part.split == "train" else number - training
        places.append((own, part, first, int(lengths[number])))
    # map keeps the order of the episodes.
    with ThreadPoolExecutor(_READERS) as pool:
        episodes = list(pool.map(lambda place: _read_episode(store, *place), places))
    return Sample(episodes, len(lengths), lengths)


def read_places(store: Store, episodes: Sequence[Episode]) -> Iterator[Floats]:
    """Reads x and y of each sampled episode of a maze, ``f32[rows, 2]``."""
    for episode in episodes:
        last = episode.first + episode.read
        yield store.read_rows(episode.part, "qpos", episode.first, last)[:, :2]


def _read_episode(
    store: Store, number: int, part: PartManifest, first: int, length: int
) -> Episode:
    manifest = store.manifest
    read = min(length, _EPISODE_ROWS)
    rewards, masks = (
        store.read_rows(part, field, first, first + read)
        for field in (schema.REWARDS, schema.MASKS)
    )
    # The return of the first row covers the whole episode, so no other row is read.
    returns = [
        store.read_rows(part, store.returns_field(discount), first, first + 1)[0]
        for discount in manifest.discounts
    ]
    return Episode(
        number,
        part.split,
        part,
        first,
        length,
        read,
        # An episode's last row is the state after the last step, so it has no reward.
        rewards[: length - 1].sum(axis=0, dtype=np.float64),
        np.reshape(np.array(returns, np.float64), (-1, len(manifest.tasks))),
        # A mask of 0 marks a solved row.
        tuple(measure_stretches(column == 0) for column in masks.T),
    )


def measure_stretches(solved: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Measures the unbroken stretches of solved rows, in order.

    Example:
        >>> measure_stretches(np.array([True, False, True, True])).tolist()
        [1, 2]
    """
    edges = np.flatnonzero(np.diff(np.r_[False, solved, False].astype(np.int8)))
    return np.diff(edges)[::2].astype(np.int64)
