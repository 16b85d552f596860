"""Which data a run is trained on: a digest of what it reads, and of nothing else.

More tasks, discounts or validation data in a store leave it as it is, so that runs go
on after `relabel`.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pipeline.store.seals import digest

if TYPE_CHECKING:  # It brings TensorStore, which updating on arrays does without.
    from pipeline.store.reader import Store

Array = npt.NDArray[Any]

_PER_ROW = ("observations", "actions")
_EPISODES = "episode_lengths"


def fingerprint_rows(
    store: "Store", labels: Iterable[tuple[Array, ...]], *, split: str, task: int
) -> str:
    """Digest of the rows of a split with the labels of one task.

    Observations, actions and episodes are known by their checksums in the manifest.
    Those of labels are of all tasks together, so these are looked at themselves.

    Args:
        store: A committed store.
        labels: The task's column of rewards, masks and return sums, as stored, in
            pieces of any length.
        split: ``"train"`` or ``"val"``.
        task: Task number, from 1.

    Returns:
        64 hexadecimal digits, split and task.
    """
    sums = [hashlib.sha256() for _ in range(3)]
    for piece in labels:
        for total, values in zip(sums, piece, strict=True):
            total.update(np.ascontiguousarray(values).data)
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
        "labels": [total.hexdigest() for total in sums],
        # What networks see is scaled by them, and what they act with by it.
        "statistics": statistics and dataclasses.asdict(statistics),
        "action_scale": scale and dataclasses.asdict(scale),
    }
    return f"{digest(read).removeprefix('sha256:')}/{split}/{task}"


def former_fingerprint(store: "Store", *, split: str, task: int) -> str:
    """What earlier versions called the data: by everything that the store holds."""
    return f"{store.manifest.fingerprint()}/{split}/{task}"


def read_labels(
    store: "Store", returns: str, column: int, *, split: str
) -> Iterator[tuple[Array, ...]]:
    """Reads the labels of one task a part at a time: the data may exceed memory.

    Args:
        store: A committed store.
        returns: Field of the return sums.
        column: Of the task.
        split: ``"train"`` or ``"val"``.

    Yields:
        ``[rows]`` of rewards, masks and return sums of a part.
    """
    for part in store.manifest.parts_of(split):
        piece = {
            name: np.empty(part.rows, store.manifest.fields[name].dtype)
            for name in ("rewards", "masks", returns)
        }
        store.read_into(part, piece, first=0, column=column)
        yield tuple(piece.values())
