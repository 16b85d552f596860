"""Which source reads an input: inferred from what is there, or named."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.domains.datasets import known_datasets
from pipeline.sources import files, hdf5, npz, robomimic
from pipeline.sources.base import Block, Facts, Source
from pipeline.sources.episodes import EpisodeRange
from pipeline.sources.kinds import KINDS, NPZ
from pipeline.sources.minari import EPISODE
from pipeline.sources.own import OwnSource, is_own
from pipeline.store import schema
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.manifest import Split

_OF_HDF5 = ("d4rl", "minari", "robomimic")
# Of what a file holds, so many names tell what it is.
_SHOWN = 8
_SPLITS: tuple[Split, ...] = ("train", "val")


@dataclass(frozen=True)
class _Damaged:
    """A file whose splits cannot be read: whether it is left out is asked later."""

    path: str
    message: str

    def describe(self) -> Facts:
        """Says what is wrong with it."""
        raise DataFormatError(self.message)

    def read(self, ranges: Sequence[EpisodeRange]) -> Iterator[Block]:
        """Says what is wrong with it."""
        raise DataFormatError(self.message)


def find_sources(
    pattern: str, *, dataset: str, kind: str | None = None, val: str | None = None
) -> tuple[str, list[tuple[Split, Source]]]:
    """Finds the files of an input and what reads them.

    Args:
        pattern: A file, a folder or a glob, local or ``gs://``; for a reader of the
            user's, whatever it takes.
        dataset: Name of the data set: what OGBench knows is relabelled.
        kind: What reads it, one of `KINDS` or ``module:Class``; inferred from names
            and content if None.
        val: Input of the validation split; by default what the input itself says, or
            the ``-val`` files among the others and beside them.

    Returns:
        The kind, and splits with their sources: ``train`` first, files in order.

    Raises:
        UsageError: If nothing is found, files are of several kinds, or the kind is
            none of those known.
        DataFormatError: If a file has to be looked into and is damaged, or of no kind.
    """
    if kind is not None and is_own(kind):
        own: list[tuple[Split, Source]] = [("train", OwnSource(kind, pattern))]
        if val is not None:
            own.append(("val", OwnSource(kind, val)))
        return kind, own
    if kind is not None and kind not in KINDS:
        raise UsageError(
            f"expected a source of {', '.join(KINDS)}, or module:Class, got {kind!r}; "
            "`python -m pipeline inputs` tells what they are"
        )
    splits = files.split_of(_find(pattern, kind))
    if val is not None:
        splits["val"] = _find(val, kind)
    chosen = kind or _infer_first(splits["train"], dataset)
    found = [
        each
        for split in _SPLITS
        for path in splits.get(split, [])
        for each in _open(chosen, split, path, whole=val is not None)
    ]
    # As a plan has them: all of one split, then all of the other.
    return chosen, sorted(found, key=lambda each: _SPLITS.index(each[0]))


def _open(
    kind: str, split: Split, path: str, *, whole: bool
) -> list[tuple[Split, Source]]:
    """Sources of a file, of its own splits unless all of it is to be of one."""
    find_splits = KINDS[kind].find_splits
    if find_splits is not None and split == "train" and not whole:
        try:
            return find_splits(path)
        except DataFormatError as error:
            return [(split, _Damaged(path, str(error)))]
    return [(split, KINDS[kind].open(path))]


def _find(pattern: str, kind: str | None) -> list[str]:
    kinds = list(KINDS.values()) if kind is None else [KINDS[kind]]
    folder = pattern.rstrip("/")
    for marker in (marker for each in kinds for marker in each.markers):
        if files.is_file(f"{folder}/{marker}"):
            return [f"{folder}/{marker}"]
    suffixes = tuple(dict.fromkeys(end for each in kinds for end in each.suffixes))
    if not suffixes and not files.is_file(pattern):
        raise UsageError(
            f"{pattern}: expected a folder with {' or '.join(kinds[0].markers)}, found "
            "none; check the path"
        )
    return files.find(pattern, suffixes)


def _infer_first(paths: list[str], dataset: str) -> str:
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


def _infer(path: str, dataset: str) -> str:
    """Looks at a name, and into the file where that does not tell."""
    for kind in KINDS.values():
        if not kind.suffixes and f"/{path}".endswith(
            tuple(f"/{marker}" for marker in kind.markers)
        ):
            return kind.name
    if _is_hdf5(path):
        with hdf5.opened(path) as file:
            there = hdf5.names(file, path)
        if any(EPISODE.fullmatch(name) for name in there):
            return "minari"
        if robomimic.DATA in there:
            return "robomimic"
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
    if path.endswith((*hdf5.SUFFIXES, *NPZ)):
        return path.endswith(hdf5.SUFFIXES)
    with files.open_file(path) as stream:
        return stream.read(len(hdf5.SIGNATURE)) == hdf5.SIGNATURE


def _of_no_kind(path: str, there: list[str]) -> DataFormatError:
    shown = ", ".join(there[:_SHOWN]) + (", ..." if len(there) > _SHOWN else "")
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
