"""Episodes by their content: whether a store holds what is about to be appended.

An episode is known by 8 bytes of a digest of its observations and actions, whatever its
file is called, in whichever order and kind of file it comes. Parts keep them as
``episode_digests``; of older parts they are made from the rows, a block at a time. In
memory are 8 bytes an episode. That any two of a million unlike episodes have the same
has a probability of 3e-8.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.assembly.plan import BLOCK_ROWS
from pipeline.sources.episodes import EpisodeRange, cut
from pipeline.store import schema
from pipeline.store.manifest import EPISODE_DIGESTS, PartManifest
from pipeline.store.reader import Store

Digests = npt.NDArray[np.uint64]

_OF_A_ROW = (schema.OBSERVATIONS, schema.ACTIONS)


@dataclass(frozen=True)
class KnownEpisode:
    """An episode that a store holds already.

    Attributes:
        name: Input of the new part that holds it again.
        part: The part that holds it.
        episode: Its number within that part.
        known: Episodes of new parts of this input that the store holds.
        episodes: Episodes of new parts of this input.
    """

    name: str
    part: PartManifest
    episode: int
    known: int
    episodes: int


def digest_episodes(
    columns: Mapping[str, npt.NDArray[Any]], lengths: npt.NDArray[np.int64]
) -> Digests:
    """Digests of whole episodes.

    Args:
        columns: ``[n, ...]`` for each field, as stored; ``observations`` and
            ``actions`` are looked at.
        lengths: ``i64[E]``, rows of each episode; they sum to n.

    Returns:
        ``u64[E]``.
    """
    rows = [np.ascontiguousarray(columns[name]) for name in _OF_A_ROW]
    ends = np.cumsum(lengths).tolist()
    digests = np.empty(len(lengths), np.uint64)
    for index, (last, length) in enumerate(zip(ends, lengths.tolist(), strict=True)):
        digest = hashlib.sha256()
        for values in rows:
            digest.update(values[last - length : last].data)
        digests[index] = int.from_bytes(digest.digest()[:8], "little")
    return digests


def read_digests(store: Store, part: PartManifest) -> Digests:
    """Digests of the episodes of a part: as it keeps them, or made from its rows.

    Args:
        store: The store.
        part: Any part in its folder, committed or not.

    Returns:
        ``u64[E]``, in order.

    Raises:
        DataFormatError: If bytes are missing or damaged.
    """
    if EPISODE_DIGESTS in part.checksums:
        kept = store.read_rows(part, EPISODE_DIGESTS, 0, part.episodes)
        return kept.astype(np.uint64, copy=False)
    return np.concatenate(list(_make_digests(store, part)))


def _make_digests(store: Store, part: PartManifest) -> Iterator[Digests]:
    lengths = store.episode_lengths(part)
    for block in cut(EpisodeRange(0, 0, tuple(lengths.tolist())), BLOCK_ROWS):
        first, last = block.first_row, block.first_row + block.rows
        rows = {name: store.read_rows(part, name, first, last) for name in _OF_A_ROW}
        yield digest_episodes(rows, np.asarray(block.lengths, np.int64))


def find_known(store: Store, new: Sequence[PartManifest]) -> KnownEpisode | None:
    """Looks for episodes of new parts among those of a store, of any split.

    Args:
        store: The store.
        new: Parts that are written there and not committed.

    Returns:
        The first that is there; None if none is.

    Raises:
        DataFormatError: If bytes of the store are missing or damaged.
    """
    held = [(part, read_digests(store, part)) for part in store.manifest.parts]
    everything = np.concatenate([digests for _, digests in held])
    for name in dict.fromkeys(part.origin.name for part in new):
        parts = [part for part in new if part.origin.name == name]
        digests = np.concatenate([read_digests(store, part) for part in parts])
        known = np.isin(digests, everything)
        if not known.any():
            continue
        first = digests[int(np.argmax(known))]
        for part, theirs in held:
            if (theirs == first).any():
                episode = int(np.argmax(theirs == first))
                return KnownEpisode(name, part, episode, int(known.sum()), len(digests))
    return None
