"""Which source reads an input: inferred from what is there, or named."""

from collections.abc import Callable
from typing import get_args

from pipeline.domains.datasets import known_datasets
from pipeline.sources import files, hdf5, npz
from pipeline.sources.base import Source
from pipeline.sources.d4rl_hdf5 import D4rlHdf5
from pipeline.sources.minari import EPISODE, MAIN_FILE, Minari
from pipeline.sources.ogbench_npz import OgbenchNpz
from pipeline.sources.options import Kind
from pipeline.sources.rewarded_npz import OwnNpz
from pipeline.store import schema
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.manifest import Split

_READERS: dict[Kind, Callable[[str], Source]] = {
    "ogbench": OgbenchNpz,
    "npz": OwnNpz,
    "d4rl": D4rlHdf5,
    "minari": Minari,
}
_NPZ = (".npz",)
_OF_HDF5: tuple[Kind, ...] = ("d4rl", "minari")
# Of what a file holds, so many names tell what it is.
_SHOWN = 8


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
        UsageError: If nothing is found, files are of several kinds, or the kind is
            none of those known.
        DataFormatError: If a file has to be looked into and is damaged, or of no kind.
    """
    if kind is not None and kind not in _READERS:
        raise UsageError(
            f"expected a source of {', '.join(get_args(Kind))}, got {kind!r}"
        )
    splits = files.split_of(_find(pattern, kind))
    if val is not None:
        splits["val"] = _find(val, kind)
    chosen = kind or _infer_first(splits["train"], dataset)
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


def _infer_first(paths: list[str], dataset: str) -> Kind:
    """The kind of the first file that tells; all others have to be of its format."""
    first: DataFormatError | None = None
    for path in paths:
        try:
            kind = _infer(path, dataset)
        except DataFormatError as error:  # Whether it is left out is asked later.
            first = first or error
            continue
        for other in paths:
            if _is_hdf5(other) != (kind in _OF_HDF5):
                raise UsageError(
                    f"{other}: expected files of one kind, got {path} of kind {kind} "
                    "beside it; one store holds data of one kind, choose by a glob"
                )
        return kind
    assert first is not None
    raise first


def _infer(path: str, dataset: str) -> Kind:
    """Looks at a name, and into the file where that does not tell."""
    if _is_hdf5(path):
        with hdf5.opened(path) as file:
            there = hdf5.names(file, path)
        if any(EPISODE.fullmatch(name) for name in there):
            return "minari"
        if schema.OBSERVATIONS in there:
            return "d4rl"
        raise _of_no_kind(path, there)
    if dataset.removesuffix("-v0") in known_datasets():
        return "ogbench"
    there = npz.member_names(path)
    if schema.OBSERVATIONS not in there:
        raise _of_no_kind(path, there)
    return "npz" if schema.REWARDS in there else "ogbench"


def _is_hdf5(path: str) -> bool:
    if path.endswith((*hdf5.SUFFIXES, *_NPZ)):
        return path.endswith(hdf5.SUFFIXES)
    with files.open_file(path) as stream:
        return stream.read(len(hdf5.SIGNATURE)) == hdf5.SIGNATURE


def _of_no_kind(path: str, there: list[str]) -> DataFormatError:
    shown = ", ".join(there[:_SHOWN]) + (", ..." if len(there) > _SHOWN else "")
    return DataFormatError(
        f"{path}: expected "
        + ("groups episode_N, as minari has, or " if _is_hdf5(path) else "")
        + "observations, actions and terminals, as "
        + ("d4rl has" if _is_hdf5(path) else "ogbench and npz have")
        + f", got {shown or 'nothing'}; it is of none of the kinds "
        f"{', '.join(get_args(Kind))}, convert it to one of them"
    )
