"""Which source reads an input: inferred from what is there, or named."""

import os
from collections.abc import Callable
from typing import get_args

from pipeline.domains.datasets import known_datasets
from pipeline.sources import files, hdf5, npz
from pipeline.sources.base import Source
from pipeline.sources.d4rl_hdf5 import D4rlHdf5
from pipeline.sources.minari import MAIN_FILE, Minari
from pipeline.sources.ogbench_npz import OgbenchNpz
from pipeline.sources.options import Kind
from pipeline.sources.rewarded_npz import OwnNpz
from pipeline.store import schema
from pipeline.store.errors import UsageError
from pipeline.store.manifest import Split

_READERS: dict[Kind, Callable[[str], Source]] = {
    "ogbench": OgbenchNpz,
    "npz": OwnNpz,
    "d4rl": D4rlHdf5,
    "minari": Minari,
}
_NPZ = (".npz",)


def find_sources(
    pattern: str, *, dataset: str, kind: Kind | None = None, val: str | None = None
) -> tuple[Kind, list[tuple[Split, Source]]]:
    """Finds the files of an input and what reads them.

    Args:
        pattern: A file, a folder or a glob, local or ``gs://``.
        dataset: Name of the data set: what OGBench knows is relabelled.
        kind: What reads it; inferred from names and content if None.
        val: Input of the validation split; by default the ``-val`` files among the
            others and beside them.

    Returns:
        The kind, and splits with their sources: ``train`` first, files in order.

    Raises:
        UsageError: If nothing is found, or the kind is none of those known.
        DataFormatError: If a file has to be looked into and is damaged.
    """
    if kind is not None and kind not in _READERS:
        raise UsageError(
            f"expected a source of {', '.join(get_args(Kind))}, got {kind!r}"
        )
    splits = files.split_of(_find(pattern, kind))
    if val is not None:
        splits["val"] = _find(val, kind)
    chosen = kind or _infer(splits["train"][0], dataset)
    found: list[tuple[Split, Source]] = [
        (split, _READERS[chosen](path))
        for split in ("train", "val")
        for path in splits.get(split, [])
    ]
    return chosen, found


def _find(pattern: str, kind: Kind | None) -> list[str]:
    folder = pattern.rstrip("/")
    if kind in (None, "minari"):
        for name in (MAIN_FILE, f"data/{MAIN_FILE}"):
            if files.is_file(f"{folder}/{name}"):
                return [f"{folder}/{name}"]
    suffixes: tuple[str, ...] = (*_NPZ, *hdf5.SUFFIXES)
    if kind is not None:
        suffixes = _NPZ if kind in ("ogbench", "npz") else hdf5.SUFFIXES
    return files.find(pattern, suffixes)


def _infer(path: str, dataset: str) -> Kind:
    """Looks at a name, and into the file where that does not tell."""
    if path.endswith(hdf5.SUFFIXES):
        with hdf5.opened(path) as file:
            return "minari" if "episode_0" in hdf5.names(file, path) else "d4rl"
    if dataset.removesuffix("-v0") in known_datasets():
        return "ogbench"
    has_rewards = os.path.splitext(path)[1] == ".npz" and npz.read_members(
        path, [schema.REWARDS]
    )
    return "npz" if has_rewards else "ogbench"
