"""Parquet files as rows of numbers, and refusing early what cannot be read from them.

Every call of pyarrow stands here. What a file declares is held against the bytes that
it has before anything is read. Knows nothing of what the columns mean.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.sources import files
from pipeline.store.errors import DataFormatError, MissingPackageError
from pipeline.store.files import is_remote

Array = npt.NDArray[Any]

# The most that is made of one byte: as of deflate, which Parquet's own encodings of
# runs exceed, but not over all columns of a row that is counted.
_MAX_COMPRESSION = 1032
# What pyarrow raises of damaged bytes, besides its own exceptions.
_DAMAGE = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    RuntimeError,
    OverflowError,
    MemoryError,
)


class Table:
    """An open file.

    Args:
        file: A ``pyarrow.parquet.ParquetFile``.
        path: Its path, for errors.

    Attributes:
        rows: How many there are.
        columns: What a row of each column of numbers is: ``()`` for one number, or
            ``(width,)``, where width is None if only values tell.
        others: Names of columns of anything else.
    """

    def __init__(self, file: Any, path: str) -> None:
        self._file, self._path = file, path
        with damage(path):
            self.rows = int(file.metadata.num_rows)
            counts = [
                int(file.metadata.row_group(group).num_rows)
                for group in range(file.num_row_groups)
            ]
            kinds = {field.name: _row_of(field.type) for field in file.schema_arrow}
        self._ends = np.cumsum([0, *counts])
        self._kept: tuple[tuple[int, tuple[str, ...]], dict[str, Array]] | None = None
        self.columns = {name: row for name, row in kinds.items() if row is not None}
        self.others = tuple(sorted(kinds.keys() - self.columns.keys()))
        size = files.size(path)
        if self._ends[-1] != self.rows or not 0 <= self.rows <= size * _MAX_COMPRESSION:
            raise DataFormatError(
                f"{path}: expected as many rows as {size:,} bytes can hold, got "
                f"{self.rows:,} declared; the file is damaged, fetch it again"
            )

    def read(self, names: Sequence[str], first: int, last: int) -> dict[str, Array]:
        """Reads rows of some columns; neighbours of one group are read once.

        Args:
            names: Columns of numbers.
            first: First row.
            last: The row after the last.

        Returns:
            ``[last - first]`` or ``[last - first, width]`` of each.

        Raises:
            DataFormatError: If there are no such rows, or bytes are damaged.
        """
        if not 0 <= first < last <= self.rows:
            raise DataFormatError(
                f"{self._path}: expected rows {first} to {last - 1}, got {self.rows} "
                "rows; the data set is incomplete, fetch it again"
            )
        groups = [
            group
            for group, (start, end) in enumerate(
                zip(self._ends[:-1], self._ends[1:], strict=True)
            )
            if start < last and first < end
        ]
        pieces = [self._read_group(group, tuple(names)) for group in groups]
        skipped = first - int(self._ends[groups[0]])
        with damage(self._path):
            return {
                name: np.concatenate([piece[name] for piece in pieces])[
                    skipped : skipped + last - first
                ]
                for name in names
            }

    def _read_group(self, group: int, names: tuple[str, ...]) -> dict[str, Array]:
        if self._kept is None or self._kept[0] != (group, names):
            rows = int(self._ends[group + 1] - self._ends[group])
            with damage(self._path):
                table = self._file.read_row_group(
                    group, columns=list(names), use_threads=False
                )
                found = {name: _to_numpy(table.column(name)) for name in names}
            for name, values in found.items():
                if len(values) != rows or values.ndim != 1 + len(self.columns[name]):
                    raise DataFormatError(
                        f"{self._path}: {name}: expected {rows} rows of as many "
                        f"numbers each, and none missing, got {list(values.shape)}; "
                        "write the file again"
                    )
            self._kept = (group, names), found
        return self._kept[1]


@contextlib.contextmanager
def opened(path: str) -> Iterator[Table]:
    """Opens a file for reading, on disk or gs://.

    Args:
        path: The file.

    Yields:
        The file.

    Raises:
        MissingPackageError: If pyarrow is not installed.
        UsageError: If there is no such file.
        DataFormatError: If it is cut short or no Parquet.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise MissingPackageError(
            f"{path}: reading Parquet needs pyarrow ({error}); install it with "
            "`pip install 'vast-rl[pipeline]'`"
        ) from error
    with files.open_file(path) as stream:
        try:
            # By its path where it has one: it is read without Python then.
            there = stream if is_remote(path) else path
            file = pyarrow.parquet.ParquetFile(there)
        except (*_DAMAGE, pyarrow.ArrowException) as error:
            raise DataFormatError(
                f"{path}: expected a whole Parquet file, got {files.size(path):,} "
                f"bytes that are none ({_one_line(error)}). It was cut short or is of "
                "another kind; compare its size with the original and fetch it again"
            ) from error
        with file:
            yield Table(file, path)


@contextlib.contextmanager
def damage(where: str) -> Iterator[None]:
    """Says in one line what pyarrow could not read.

    Raises:
        DataFormatError: For whatever it raises of damaged bytes.
    """
    import pyarrow

    try:
        yield
    except (*_DAMAGE, pyarrow.ArrowException) as error:
        raise DataFormatError(
            f"{where}: cannot be read ({_one_line(error)}); the file is damaged, fetch "
            "it again"
        ) from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _row_of(kind: Any) -> tuple[int | None, ...] | None:
    """What a row of a column is, as of `Table.columns`; None if it is no numbers."""
    import pyarrow.types as types

    width: tuple[int | None, ...] = ()
    if types.is_fixed_size_list(kind):
        width, kind = (int(kind.list_size),), kind.value_type
    elif types.is_list(kind) or types.is_large_list(kind):
        width, kind = (None,), kind.value_type
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return width if number and width != (0,) else None


def _to_numpy(column: Any) -> Array:
    """Values of a column; flat if its rows are of unlike width, or some are missing."""
    import pyarrow as pa

    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else array.chunk(0)
    if array.null_count:
        return np.empty((0, 0, 0))
    if not hasattr(array, "flatten") or _row_of(array.type) == ():
        return np.asarray(array.to_numpy(zero_copy_only=False))
    flat = array.flatten()
    if flat.null_count or not len(array) or len(flat) % len(array):
        return np.empty((0, 0, 0))
    width = len(flat) // len(array)
    lengths = np.diff(array.offsets.to_numpy()) if hasattr(array, "offsets") else width
    if not np.all(lengths == width):
        return np.empty((0, 0, 0))
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(len(array), width)
