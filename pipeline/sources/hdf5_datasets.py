"""Data sets of HDF5 files, in the file itself or, virtual, in files beside it.

What a virtual data set is put together from is looked at here, source by source, and
read here: HDF5 itself would look for sources in other places too, and give zeros for
those that it does not find.
"""

import hashlib
import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.sources import files, hdf5
from pipeline.store.errors import DataFormatError

_MAX_LEAVES = 1_000


@dataclass(frozen=True)
class _Piece:
    """Rows of a virtual data set, and the rows of another file that they are.

    Attributes:
        first: Among the rows of the virtual data set.
        count: How many.
        path: The other file.
        name: Of the data set in it.
        source_first: Among its rows.
    """

    first: int
    count: int
    path: str
    name: str
    source_first: int


@dataclass(frozen=True)
class VirtualRows:
    """A virtual data set whose sources have all been looked at.

    Attributes:
        name: Of the data set.
        dtype: Of its values.
        shape: Rows first.
        pieces: In order; together all rows.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: tuple[_Piece, ...]

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        first, last, _ = rows.indices(len(self))
        values = np.empty((max(0, last - first), *self.shape[1:]), self.dtype)
        for piece in self.pieces:
            start = max(first, piece.first)
            stop = min(last, piece.first + piece.count)
            if start >= stop:
                continue
            shift = piece.source_first - piece.first
            with hdf5.opened(piece.path) as file:
                found = hdf5.find_dataset(file, piece.name, piece.path)
                hdf5.check_stored(found, f"{piece.path}: {piece.name}")
                values[start - first : stop - first] = hdf5.read(
                    found, start + shift, stop + shift, piece.path
                )
        return values


def dataset(group: Any, name: str, where: str) -> Any:
    """Finds a data set of numbers, one row per step, all of them there.

    They are in the file, or it is a virtual data set over files beside it.

    Args:
        group: An ``h5py`` group.
        name: Of the data set in it.
        where: File and group, for the error.

    Returns:
        The ``h5py`` data set, or a `VirtualRows`, not read.

    Raises:
        DataFormatError: If it is missing, holds anything but numbers, or if its
            values are not, or cannot all be, where it says.
    """
    found = hdf5.find_dataset(group, name, where)
    with hdf5.damage(f"{where}: {name}"):
        is_virtual = found.is_virtual
    if is_virtual:
        return _virtual(found, f"{where}: {name}")
    hdf5.check_stored(found, f"{where}: {name}")
    return found


def leaves(parent: Any, name: str, where: str) -> dict[str, Any]:
    """Finds a data set, or all those in a group.

    Args:
        parent: An ``h5py`` group.
        name: Of the data set or group in it.
        where: File and group, for the error.

    Returns:
        ``h5py`` data sets by their path within the group, which is empty for a data
        set, as of `dataset`.

    Raises:
        DataFormatError: As of `dataset`; or if groups are nested too deeply.
    """
    import h5py

    found = {}
    waiting = [(name, 0)]
    while waiting:
        path, depth = waiting.pop()
        there = hdf5.follow(parent, path, where)
        if not isinstance(there, h5py.Group):
            found[path[len(name) + 1 :]] = dataset(parent, path, where)
            continue
        # Soft links to groups that they are in would lead round for ever.
        if depth == hdf5.MAX_LINKS or len(waiting) > _MAX_LEAVES:
            raise DataFormatError(
                f"{where}: {path} lies {depth} groups deep among {len(waiting)} "
                "others, more than observations have; write the file again"
            )
        waiting += [(f"{path}/{each}", depth + 1) for each in hdf5.names(there, where)]
    if not found:
        raise DataFormatError(
            f"{where}: expected data sets in {name}, got none; write the file again"
        )
    return found


def find_virtual(members: Iterable[Any]) -> list[VirtualRows]:
    """Those of some data sets that are virtual."""
    return [member for member in members if isinstance(member, VirtualRows)]


def digest(path: str, members: Iterable[Any]) -> str:
    """Identifies the content of a file, and of the files its data sets are in.

    Args:
        path: The file.
        members: Its data sets, from `dataset`.

    Returns:
        ``sha256:...``.
    """
    others = {p.path for each in find_virtual(members) for p in each.pieces}
    if not others:
        return files.digest(path)
    digests = [files.digest(path), *sorted(files.digest(other) for other in others)]
    return f"sha256:{hashlib.sha256(' '.join(digests).encode()).hexdigest()}"


def _virtual(found: Any, where: str) -> VirtualRows:
    """Looks at every source of a virtual data set."""
    with hdf5.damage(where):
        main, sources = str(found.file.filename), found.virtual_sources()
        shape, dtype = tuple(found.shape), found.dtype
    if not os.path.isfile(main):
        raise DataFormatError(
            f"{where} is a virtual data set, which is read from local files only; "
            "download them all, or copy its values in with `h5repack -l CONTI`"
        )
    pieces = []
    for source in sources:
        with hdf5.damage(where):
            first, count = _whole_rows(source.vspace, shape, where)
            path = _beside(main, source.file_name, where)
        with hdf5.opened(path) as file:
            inner = f"{where}: {source.file_name}"
            there = hdf5.find_dataset(file, source.dset_name, inner)
            if (there.dtype, there.shape[1:]) != (dtype, shape[1:]):
                raise DataFormatError(
                    f"{inner}: expected {source.dset_name} as {dtype}"
                    f"{['rows', *shape[1:]]}, got {there.dtype}"
                    f"{['rows', *there.shape[1:]]}; write the virtual data set again"
                )
            hdf5.check_stored(there, inner)
            with hdf5.damage(inner):
                source_first, source_count = _whole_rows(
                    source.src_space, there.shape, inner
                )
        if source_count != count:
            raise DataFormatError(
                f"{inner}: expected {count:,} rows of {source.dset_name}, got "
                f"{source_count:,}; write the virtual data set again"
            )
        pieces.append(_Piece(first, count, path, source.dset_name, source_first))
    pieces.sort(key=lambda piece: piece.first)
    ends = [0, *(piece.first + piece.count for piece in pieces)]
    starts = [*(piece.first for piece in pieces), shape[0]]
    if starts != ends or _overlap(pieces):
        raise DataFormatError(
            f"{where} is a virtual data set of {shape[0]:,} rows: expected each to be "
            "one row of one file, got rows that are none, or several that are one; "
            "write it again"
        )
    return VirtualRows(str(found.name), dtype, shape, tuple(pieces))


def _beside(main: str, name: str, where: str) -> str:
    """A source of a virtual data set, which has to lie beside or below its file."""
    folder = os.path.dirname(os.path.realpath(main))
    path = os.path.realpath(main if name == "." else os.path.join(folder, name))
    if "%" in name or os.path.commonpath([folder, path]) != folder:
        raise DataFormatError(
            f"{where} takes values from {name}, and only files beside or below its own "
            "are read; move them there, or copy the values in"
        )
    if not os.path.isfile(path):
        raise DataFormatError(
            f"{where} takes values from {name}, which is not there; fetch that file as "
            "well, or copy its values in"
        )
    return path


def _whole_rows(space: Any, shape: tuple[int, ...], where: str) -> tuple[int, int]:
    """First row and number of rows that a selection is, of rows of some shape."""
    import h5py

    if space.get_select_type() == h5py.h5s.SEL_ALL:
        return 0, shape[0]
    if space.is_regular_hyperslab() and len(space.shape) == len(shape):
        slab = list(zip(*space.get_regular_hyperslab(), strict=True))
        first, sizes = slab[0][0], [count * block for _, _, count, block in slab]
        # Blocks that touch are one.
        touch = all(stride == block or count == 1 for _, stride, count, block in slab)
        full = all(each[0] == 0 for each in slab[1:]) and tuple(sizes[1:]) == shape[1:]
        if touch and full and 0 < sizes[0] <= shape[0] - first:
            return int(first), int(sizes[0])
    raise DataFormatError(
        f"{where} is a virtual data set of other pieces than whole rows, one after "
        "another; copy its values in, such as with `h5repack -l CONTI`"
    )


def _overlap(pieces: Iterable[_Piece]) -> bool:
    """Whether rows of a source are taken twice, so that few bytes are any size."""
    taken = sorted((p.path, p.name, p.source_first, p.count) for p in pieces)
    return any(
        one[:2] == other[:2] and one[2] + one[3] > other[2]
        for one, other in itertools.pairwise(taken)
    )
