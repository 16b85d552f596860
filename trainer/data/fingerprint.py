"""The fingerprint of training data: a digest of what a run reads, and of nothing else.

Tasks, discounts or validation data that are added to a store do not change the
fingerprint, so that runs can be resumed after `relabel`.
"""

import dataclasses
import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipeline.store.seals import digest

# The reader imports TensorStore, which programs that train on arrays in memory, such
# as the GPU benchmark, do without.
if TYPE_CHECKING:
    from pipeline.store.manifest import PartManifest
    from pipeline.store.reader import Store

Array = npt.NDArray[Any]

# Separates the fingerprint of rows from the window that they are read through.
WINDOW = "/resident/"

_PER_ROW = ("observations", "actions")
_EPISODES = "episode_lengths"
# Parts whose labels are read at once: 13 bytes a row, of a million rows each.
_READERS = 8


def fingerprint_rows(
    store: "Store", labels: Iterable[tuple[Array, ...]], *, split: str, task: int
) -> str:
    """Digests the rows of a split with the labels of one task.

    Observations, actions and episodes enter by their checksums in the manifest. The
    manifest's checksums of labels cover all tasks together, so the labels of this task
    are hashed themselves.

    Args:
        store: A committed store.
        labels: The task's column of rewards, masks and return sums, as stored, in
            pieces of any length.
        split: ``"train"`` or ``"val"``.
        task: Task number, from 1.

    Returns:
        64 hexadecimal digits, the split and the task, joined by slashes.
    """
    # A hash for each label, so that how the labels are cut into pieces does not matter.
    hashes = [hashlib.sha256() for _ in range(3)]
    for piece in labels:
        for label_hash, values in zip(hashes, piece, strict=True):
            label_hash.update(np.ascontiguousarray(values).data)
    manifest = store.manifest
    statistics = manifest.statistics.get("observations")
    scale = manifest.action_scale
    read = {
        "fields": [
            (manifest.fields[name].dtype, manifest.fields[name].shape)
            for name in _PER_ROW
        ],
        "parts": [
            (part.rows, *(part.checksums.get(n) for n in (*_PER_ROW, _EPISODES)))
            for part in manifest.parts_of(split)
        ],
        "labels": [label_hash.hexdigest() for label_hash in hashes],
        # Networks see observations scaled by the statistics, and their actions are
        # scaled by `action_scale`: other scales make another training problem of
        # equal rows.
        "statistics": statistics and dataclasses.asdict(statistics),
        "action_scale": scale and dataclasses.asdict(scale),
    }
    return f"{digest(read).removeprefix('sha256:')}/{split}/{task}"


def make_former_fingerprint(store: "Store", *, split: str, task: int) -> str:
    """Returns the fingerprint of earlier versions: of all that the store holds.

    A discount that was added for another run changed it. It is still computed, because
    runs of those versions resume only under the fingerprint that keyed their streams.
    """
    return f"{store.manifest.fingerprint()}/{split}/{task}"


def strip_window(fingerprint: str) -> str:
    """Strips a fingerprint of the window of blocks; that of the rows is left."""
    return fingerprint.partition(WINDOW)[0]


def read_labels(
    store: "Store", returns: str, column: int, *, split: str
) -> Iterator[tuple[Array, ...]]:
    """Reads the labels of one task a part at a time, because they may exceed memory.

    Args:
        store: A committed store.
        returns: Name of the field of the return sums.
        column: Column of the task.
        split: ``"train"`` or ``"val"``.

    Yields:
        Rewards, masks and return sums of a part, ``[rows]`` each.
    """

    def read(part: "PartManifest") -> tuple[Array, ...]:
        piece = {
            name: np.empty(part.rows, store.manifest.fields[name].dtype)
            for name in ("rewards", "masks", returns)
        }
        store.read_into(part, piece, first=0, column=column)
        return tuple(piece.values())

    # Some parts are read ahead, since a bucket answers late and hashing takes time.
    ahead: deque[Future[tuple[Array, ...]]] = deque()
    with ThreadPoolExecutor(_READERS) as pool:
        for part in store.manifest.parts_of(split):
            ahead.append(pool.submit(read, part))
            if len(ahead) > _READERS:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
