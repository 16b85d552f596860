"""Finds data sets of HDF5 files, virtual ones included.

A virtual data set takes its rows from files beside its own. This module resolves and
reads those files itself. The HDF5 library would also search other folders for them, and
read rows of files that it does not find as zeros.
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
    """Rows of a virtual data set that come from consecutive rows of another file.

    Attributes:
        first: First row within the virtual data set.
        count: Number of rows.
        path: Path of the other file.
        name: Name of the data set in the other file.
        source_first: First row within that data set.
    """

    first: int
    count: int
    path: str
    name: str
    source_first: int


@dataclass(frozen=True)
class VirtualRows:
    """A virtual data set whose source files have all been checked.

    Attributes:
        name: Name of the data set.
        dtype: Dtype of its values.
        shape: Shape of the data set, rows first.
        pieces: Pieces in the order of rows, which together are all rows.
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
            with hdf5.open_hdf5(piece.path) as file:
                source = hdf5.find_dataset(file, piece.name, piece.path)
                hdf5.check_stored(source, f"{piece.path}: {piece.name}")
                values[start - first : stop - first] = hdf5.read(
                    source, start + shift, stop + shift, piece.path
                )
        return values


def find_rows(group: Any, name: str, where: str) -> Any:
    """Finds a data set of numbers, one row per step, and checks that all rows exist.

    Args:
        group: An ``h5py`` group.
        name: Name of a data set in it.
        where: File and group, for the error.

    Returns:
        The ``h5py`` data set, or a `VirtualRows` over files beside it; not read.

    Raises:
        DataFormatError: If the data set is missing, holds no rows of numbers, or
            declares values that neither its file nor a file beside it stores.
    """
    member = hdf5.find_dataset(group, name, where)
    with hdf5.explain_damage(f"{where}: {name}"):
        is_virtual = member.is_virtual
    if is_virtual:
        return _resolve(member, f"{where}: {name}")
    hdf5.check_stored(member, f"{where}: {name}")
    return member


def find_leaves(parent: Any, name: str, where: str) -> dict[str, Any]:
    """Finds a data set, or all data sets in a group and its groups.

    Args:
        parent: An ``h5py`` group.
        name: Name of a data set or group in it.
        where: File and group, for the error.

    Returns:
        Results of `dataset`, by their path within the group; the path is empty if
        ``name`` is a data set itself.

    Raises:
        DataFormatError: As `dataset` does, or if groups are nested too deeply.
    """
    import h5py

    members = {}
    waiting = [(name, 0)]
    while waiting:
        path, depth = waiting.pop()
        node = hdf5.follow(parent, path, where)
        if not isinstance(node, h5py.Group):
            members[path[len(name) + 1 :]] = find_rows(parent, path, where)
            continue
        # A soft link to an enclosing group makes the tree endless.
        if depth == hdf5.MAX_LINKS or len(waiting) > _MAX_LEAVES:
            raise DataFormatError(
                f"{where}: {path} lies {depth} groups deep among {len(waiting)} "
                "others, more than observations have; write the file again"
            )
        waiting += [
            (f"{path}/{child}", depth + 1) for child in hdf5.list_names(node, where)
        ]
    if not members:
        raise DataFormatError(
            f"{where}: expected data sets in {name}, got none; write the file again"
        )
    return members


def find_virtual(members: Iterable[Any]) -> list[VirtualRows]:
    """Selects the virtual data sets."""
    return [member for member in members if isinstance(member, VirtualRows)]


def digest(path: str, members: Iterable[Any]) -> str:
    """Computes a digest of a file and of the files that its virtual data sets read.

    Args:
        path: The file.
        members: Data sets of the file, from `find_rows`.

    Returns:
        ``sha256:...``.
    """
    others = {p.path for member in find_virtual(members) for p in member.pieces}
    if not others:
        return files.digest(path)
    digests = [files.digest(path), *sorted(files.digest(other) for other in others)]
    return f"sha256:{hashlib.sha256(' '.join(digests).encode()).hexdigest()}"


def _resolve(member: Any, where: str) -> VirtualRows:
    """Checks every source of a virtual data set, and lists its rows as pieces."""
    with hdf5.explain_damage(where):
        main, sources = str(member.file.filename), member.virtual_sources()
        shape, dtype = tuple(member.shape), member.dtype
    if not os.path.isfile(main):
        raise DataFormatError(
            f"{where} is a virtual data set, which is read from local files only; "
            "download them all, or copy its values in with `h5repack -l CONTI`"
        )
    pieces = []
    for source in sources:
        with hdf5.explain_damage(where):
            first, count = _whole_rows(source.vspace, shape, where)
            path = _find_beside(main, source.file_name, where)
        with hdf5.open_hdf5(path) as file:
            inner = f"{where}: {source.file_name}"
            rows = hdf5.find_dataset(file, source.dset_name, inner)
            if (rows.dtype, rows.shape[1:]) != (dtype, shape[1:]):
                raise DataFormatError(
                    f"{inner}: expected {source.dset_name} as {dtype}"
                    f"{['rows', *shape[1:]]}, got {rows.dtype}"
                    f"{['rows', *rows.shape[1:]]}; write the virtual data set again"
                )
            hdf5.check_stored(rows, inner)
            with hdf5.explain_damage(inner):
                source_first, source_count = _whole_rows(
                    source.src_space, rows.shape, inner
                )
        if source_count != count:
            raise DataFormatError(
                f"{inner}: expected {count:,} rows of {source.dset_name}, got "
                f"{source_count:,}; write the virtual data set again"
            )
        pieces.append(_Piece(first, count, path, source.dset_name, source_first))
    pieces.sort(key=lambda piece: piece.first)
    # Every row must come from exactly one source row. Gaps would be unwritten memory,
    # and repeated rows let a tiny file declare any number of them.
    ends = [0, *(piece.first + piece.count for piece in pieces)]
    starts = [*(piece.first for piece in pieces), shape[0]]
    if starts != ends or _overlap(pieces):
        raise DataFormatError(
            f"{where} is a virtual data set of {shape[0]:,} rows: expected each to be "
            "one row of one file, got rows that are none, or several that are one; "
            "write it again"
        )
    return VirtualRows(str(member.name), dtype, shape, tuple(pieces))


def _find_beside(main: str, name: str, where: str) -> str:
    """Resolves a source file, which has to lie beside or below the main file."""
    # A stranger's file must not be able to name any file of this machine, so links are
    # resolved before folders are compared.
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
    """Returns first row and number of rows of a selection of whole, adjacent rows.

    Args:
        space: A dataspace of ``h5py``, with a selection.
        shape: Shape of the data set that the selection is of.
        where: File and data set, for the error.

    Raises:
        DataFormatError: If anything but consecutive whole rows is selected.
    """
    import h5py

    if space.get_select_type() == h5py.h5s.SEL_ALL:
        return 0, shape[0]
    if space.is_regular_hyperslab() and len(space.shape) == len(shape):
        slab = list(zip(*space.get_regular_hyperslab(), strict=True))
        first, sizes = slab[0][0], [count * block for _, _, count, block in slab]
        # A hyperslab is a number of blocks per axis; blocks that touch are one block.
        touch = all(stride == block or count == 1 for _, stride, count, block in slab)
        full = all(axis[0] == 0 for axis in slab[1:]) and tuple(sizes[1:]) == shape[1:]
        if touch and full and 0 < sizes[0] <= shape[0] - first:
            return int(first), int(sizes[0])
    raise DataFormatError(
        f"{where} is a virtual data set of other pieces than whole rows, one after "
        "another; copy its values in, such as with `h5repack -l CONTI`"
    )


def _overlap(pieces: Iterable[_Piece]) -> bool:
    """Tells whether two pieces take the same rows of a source."""
    taken = sorted((p.path, p.name, p.source_first, p.count) for p in pieces)
    return any(
        piece[:2] == after[:2] and piece[2] + piece[3] > after[2]
        for piece, after in itertools.pairwise(taken)
    )
