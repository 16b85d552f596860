"""Finds the files of an input and chooses the source that reads them.

A user may name the kind of input; otherwise names of files and their content tell it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.domains.datasets import format_nearest, known_datasets
from pipeline.sources import files, hdf5, npz, robomimic
from pipeline.sources.base import Block, Description, Source
from pipeline.sources.episodes import EpisodeRange
from pipeline.sources.kinds import KINDS, NPZ
from pipeline.sources.minari import EPISODE
from pipeline.sources.own import UserSource, is_own
from pipeline.store import schema
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.manifest import Split

_OF_HDF5 = ("d4rl", "minari", "robomimic")
# Array names that an error lists at most: enough to recognise a layout.
_SHOWN = 8
_SPLITS: tuple[Split, ...] = ("train", "val")


@dataclass(frozen=True)
class _Damaged:
    """Stands for a file whose splits cannot be read, and raises when it is described.

    Raising when files are found would be too early: with ``--on-bad-file skip`` the
    planner leaves such a file out.
    """

    path: str
    message: str

    def describe(self) -> Description:
        """Raises the error of the file."""
        raise DataFormatError(self.message)

    def read(self, ranges: Sequence[EpisodeRange]) -> Iterator[Block]:
        """Raises the error of the file."""
        raise DataFormatError(self.message)


def find_sources(
    pattern: str, *, dataset: str, kind: str | None = None, val: str | None = None
) -> tuple[str, list[tuple[Split, Source]]]:
    """Finds the files of an input and the sources that read them.

    Args:
        pattern: A file, a folder or a glob, local or ``gs://``; for a reader class of
            the user's own, whatever text that class takes.
        dataset: Name of the data set. Data sets that OGBench publishes are read as kind
            ``ogbench``, and so get the rewards of their domain's tasks.
        kind: One of `KINDS` or ``module:Class``; None infers it from names and content.
        val: Input of the validation split. None takes the splits that the input itself
            names, or the ``-val`` files among and beside the others.

    Returns:
        The kind, and the sources with their splits: ``train`` first, files in order.

    Raises:
        UsageError: If no file is found, files are of several kinds, or the kind is
            unknown.
        DataFormatError: If the kind has to be inferred from a file that is damaged or
            of an unknown layout.
    """
    if kind is not None and is_own(kind):
        own: list[tuple[Split, Source]] = [("train", UserSource(kind, pattern))]
        if val is not None:
            own.append(("val", UserSource(kind, val)))
        return kind, own
    if kind is not None and kind not in KINDS:
        raise UsageError(
            f"--source: expected one of {', '.join(KINDS)}, or module:Class, got "
            f"{kind!r}; run `python -m pipeline inputs` for a description of each"
        )
    splits = files.group_by_split(_find(pattern, kind))
    if val is not None:
        splits["val"] = _find(val, kind)
    chosen = kind or _infer_first(splits["train"], dataset)
    sources = [
        source
        for split in _SPLITS
        for path in splits.get(split, [])
        for source in _open(chosen, split, path, whole=val is not None)
    ]
    # A plan numbers the parts of one split before those of the other. The sort is
    # stable, so that files of a split stay in order.
    return chosen, sorted(sources, key=lambda source: _SPLITS.index(source[0]))


def _open(
    kind: str, split: Split, path: str, *, whole: bool
) -> list[tuple[Split, Source]]:
    """Makes the sources of a file: one for each of its own splits, or one for all.

    Args:
        kind: One of `KINDS`.
        split: Split that the file belongs to by its name.
        path: The file.
        whole: Whether to ignore splits that the file itself names.
    """
    find_splits = KINDS[kind].find_splits
    if find_splits is not None and split == "train" and not whole:
        try:
            return find_splits(path)
        except DataFormatError as error:
            return [(split, _Damaged(path, str(error)))]
    return [(split, KINDS[kind].open(path))]


def _find(pattern: str, kind: str | None) -> list[str]:
    """Finds the files of a pattern, or the marker file of a folder of known layout."""
    kinds = list(KINDS.values()) if kind is None else [KINDS[kind]]
    folder = pattern.rstrip("/")
    for marker in (marker for known in kinds for marker in known.markers):
        if files.is_file(f"{folder}/{marker}"):
            return [f"{folder}/{marker}"]
    suffixes = tuple(dict.fromkeys(end for known in kinds for end in known.suffixes))
    if not suffixes and not files.is_file(pattern):
        raise UsageError(
            f"{pattern}: expected a folder with {' or '.join(kinds[0].markers)}, found "
            f"{files.describe_path(pattern)}; check the path"
        )
    markers = tuple(marker for known in kinds for marker in known.markers)
    return files.find(pattern, suffixes, others=markers)


def _infer_first(paths: list[str], dataset: str) -> str:
    """Infers the kind from the first undamaged file; all others must share its format.

    Opening every file to infer its kind would cost a request to a bucket for each.
    """
    first: DataFormatError | None = None
    for path in paths:
        try:
            kind = _infer(path, dataset)
        except DataFormatError as error:
            # The planner decides later whether damaged files are left out or refused.
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


def _infer(path: str, dataset: str) -> str:
    """Infers the kind of a file from its name, or else from the arrays in it."""
    for kind in KINDS.values():
        if not kind.suffixes and f"/{path}".endswith(
            tuple(f"/{marker}" for marker in kind.markers)
        ):
            return kind.name
    if _is_hdf5(path):
        with hdf5.open_hdf5(path) as file:
            names = hdf5.list_names(file, path)
        if any(EPISODE.fullmatch(name) for name in names):
            return "minari"
        if robomimic.DATA in names:
            return "robomimic"
        if schema.OBSERVATIONS in names:
            return "d4rl"
        raise _unknown_kind_error(path, names)
    # Data sets that OGBench publishes are relabelled from the physics state, even if a
    # file has rewards. So the name of the data set decides before the content.
    if dataset.removesuffix("-v0") in known_datasets():
        return "ogbench"
    names = npz.list_members(path)
    if schema.OBSERVATIONS not in names:
        raise _unknown_kind_error(path, names)
    if schema.REWARDS not in names:
        near = format_nearest(dataset, known_datasets())
        raise DataFormatError(
            f"{path}: expected {schema.REWARDS}, one number a row, got "
            f"{', '.join(names[:_SHOWN])}; add them. Only files of OGBench's data sets "
            f"need none: if this is one, correct the name of the data set, {dataset!r}"
            + (f" ({near})" if near else "")
        )
    return "npz"


def _is_hdf5(path: str) -> bool:
    """Tells by suffix, or else by its first bytes, whether a file is HDF5."""
    if path.endswith((*hdf5.SUFFIXES, *NPZ)):
        return path.endswith(hdf5.SUFFIXES)
    with files.open_file(path) as stream:
        return stream.read(len(hdf5.SIGNATURE)) == hdf5.SIGNATURE


def _unknown_kind_error(path: str, names: list[str]) -> DataFormatError:
    """Builds the error for a file whose arrays match no known layout."""
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return DataFormatError(
        f"{path}: expected "
        + ("groups episode_N, as minari has, or data, " if _is_hdf5(path) else "")
        + ("as robomimic has, or " if _is_hdf5(path) else "")
        + "observations, actions and terminals, as "
        + ("d4rl has" if _is_hdf5(path) else "ogbench and npz have")
        + f", got {shown or 'nothing'}; it is of none of the kinds "
        f"{', '.join(KINDS)}; convert it to one of them, or read it by a class of your "
        "own, --source module:Class"
    )
