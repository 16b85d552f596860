"""Recognises episodes that a store already holds, by their content.

The digest of an episode is 8 bytes of the SHA-256 of its observations and actions. It
does not depend on the file that the episode comes from, nor on its place there. Parts
store the digests as ``episode_digests``; for parts of version 1 they are computed from
the rows, a block at a time. Eight bytes an episode fit memory, and the probability that
any two of a million different episodes have the same digest is 3e-8.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.assembly.blocks import cut_part
from pipeline.store import schema
from pipeline.store.manifest import EPISODE_DIGESTS, PartManifest
from pipeline.store.reader import Store

Digests = npt.NDArray[np.uint64]

# Rewards do not enter: the same episode may come with the labels of other tasks.
_OF_A_ROW = (schema.OBSERVATIONS, schema.ACTIONS)


@dataclass(frozen=True)
class KnownEpisode:
    """An episode of a new input that a store already holds.

    Attributes:
        name: Name of the new input.
        part: Part of the store that holds the episode.
        episode: Number of the episode within that part.
        known: Number of episodes of the new input that the store already holds.
        episodes: Number of episodes of the new input.
    """

    name: str
    part: PartManifest
    episode: int
    known: int
    episodes: int


def digest_episodes(
    columns: Mapping[str, npt.NDArray[Any]], lengths: npt.NDArray[np.int64]
) -> Digests:
    """Computes the digests of whole episodes.

    Args:
        columns: ``[n, ...]`` for each field, in the dtypes of the store; only
            ``observations`` and ``actions`` are read.
        lengths: ``i64[E]``, rows of each episode; their sum is n.

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
    """Reads the digests of a part's episodes, or computes them for an older part.

    Args:
        store: The store.
        part: A part in the store's folder, committed or not.

    Returns:
        ``u64[E]``, in the order of the episodes.

    Raises:
        DataFormatError: If bytes are missing or damaged.
    """
    return read_all_digests(store, [part])[0]


def read_all_digests(store: Store, parts: Sequence[PartManifest]) -> list[Digests]:
    """Reads or computes the digests of many parts at once; see `read_digests`."""
    stored = [part for part in parts if EPISODE_DIGESTS in part.checksums]
    kept = iter(store.read_tables(stored, EPISODE_DIGESTS))
    return [
        next(kept).astype(np.uint64, copy=False)
        if EPISODE_DIGESTS in part.checksums
        else np.concatenate(list(_make_digests(store, part)))
        for part in parts
    ]


def _make_digests(store: Store, part: PartManifest) -> Iterator[Digests]:
    """Computes digests from the rows of a part, a block of episodes at a time."""
    lengths = store.episode_lengths(part)
    fields = {name: store.manifest.fields[name] for name in _OF_A_ROW}
    for block in cut_part(lengths, fields):
        first, last = block.first_row, block.first_row + block.rows
        rows = {name: store.read_rows(part, name, first, last) for name in _OF_A_ROW}
        yield digest_episodes(rows, np.asarray(block.lengths, np.int64))


def find_known(store: Store, new: Sequence[PartManifest]) -> KnownEpisode | None:
    """Searches a store, all splits of it, for the episodes of new parts.

    Args:
        store: The store.
        new: Parts that are written into the store's folder and not committed.

    Returns:
        The first episode that the store already holds; None if there is none.

    Raises:
        DataFormatError: If bytes of the store are missing or damaged.
    """
    old = store.manifest.parts
    held = list(zip(old, read_all_digests(store, old), strict=True))
    by_name: dict[str, list[Digests]] = {}
    for part, digests in zip(new, read_all_digests(store, new), strict=True):
        by_name.setdefault(part.origin.name, []).append(digests)
    # All inputs are searched at once: each search sorts the digests of the whole store.
    everything = np.concatenate([digests for _, digests in held])
    added = [np.concatenate(pieces) for pieces in by_name.values()]
    found = np.isin(np.concatenate(added), everything)
    ends = np.cumsum([len(digests) for digests in added])[:-1]
    # One input after another, so that the error can say how much of it is known.
    for name, digests, known in zip(by_name, added, np.split(found, ends), strict=True):
        if not known.any():
            continue
        first = digests[int(np.argmax(known))]
        for part, theirs in held:
            if (theirs == first).any():
                episode = int(np.argmax(theirs == first))
                return KnownEpisode(name, part, episode, int(known.sum()), len(digests))
    return None
