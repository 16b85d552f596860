"""Reads Parquet files as rows of numbers, and refuses unreadable ones early.

All calls of pyarrow are here. The row count that a file declares is compared with its
size before anything is read. The module knows nothing of what the columns mean.
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

# Rows that one byte of a file can hold at most: deflate's bound. Parquet's run-length
# encoding exceeds it for single columns, but not for all columns of real rows.
_MAX_COMPRESSION = 1032
# Exceptions that pyarrow raises for damaged bytes, besides its own classes.
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
    """An open Parquet file.

    Args:
        file: A ``pyarrow.parquet.ParquetFile``.
        path: Path of the file, for errors.

    Attributes:
        rows: Number of rows.
        columns: Shape of a row of each numeric column: ``()`` for one number, or
            ``(width,)``, where width is None if the schema does not give it.
        others: Names of all other columns.
    """

    def __init__(self, file: Any, path: str) -> None:
        self._file, self._path = file, path
        with explain_damage(path):
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
        """Reads consecutive rows of some columns.

        Args:
            names: Names of numeric columns.
            first: First row.
            last: End of the rows, exclusive.

        Returns:
            ``[last - first]`` or ``[last - first, width]`` for each column.

        Raises:
            DataFormatError: If there are no such rows or columns of numbers, or bytes
                are damaged.
        """
        if not_there := [name for name in names if name not in self.columns]:
            raise DataFormatError(
                f"{self._path}: expected columns of numbers {', '.join(names)}, got "
                f"none called {', '.join(not_there)}; fetch the file again"
            )
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
        with explain_damage(self._path):
            return {
                name: np.concatenate([piece[name] for piece in pieces])[
                    skipped : skipped + last - first
                ]
                for name in names
            }

    def _read_group(self, group: int, names: tuple[str, ...]) -> dict[str, Array]:
        """Reads columns of a row group, and keeps them until another is read.

        Parquet decodes whole groups, and several episodes lie in one.
        """
        if self._kept is None or self._kept[0] != (group, names):
            rows = int(self._ends[group + 1] - self._ends[group])
            with explain_damage(self._path):
                table = self._file.read_row_group(
                    group, columns=list(names), use_threads=False
                )
                columns = {name: _to_numpy(table.column(name)) for name in names}
            for name, values in columns.items():
                if len(values) != rows or values.ndim != 1 + len(self.columns[name]):
                    raise DataFormatError(
                        f"{self._path}: {name}: expected {rows} rows of as many "
                        f"numbers each, and none missing, got {list(values.shape)}; "
                        "write the file again"
                    )
            self._kept = (group, names), columns
        return self._kept[1]


@contextlib.contextmanager
def opened(path: str) -> Iterator[Table]:
    """Opens a Parquet file, on disk or gs://.

    Args:
        path: The file.

    Yields:
        The open file.

    Raises:
        MissingPackageError: If pyarrow is not installed.
        UsageError: If there is no such file.
        DataFormatError: If the file is cut short or not Parquet.
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
            # A local file is opened by its path: pyarrow then reads it in C++, without
            # calling back into a Python stream.
            target = stream if is_remote(path) else path
            file = pyarrow.parquet.ParquetFile(target)
        except (*_DAMAGE, pyarrow.ArrowException) as error:
            raise DataFormatError(
                f"{path}: expected a whole Parquet file, got {files.size(path):,} "
                f"bytes that are none ({_one_line(error)}). It was cut short or is of "
                "another kind; compare its size with the original and fetch it again"
            ) from error
        with file:
            yield Table(file, path)


@contextlib.contextmanager
def explain_damage(where: str) -> Iterator[None]:
    """Turns pyarrow's exceptions into one line with advice.

    Args:
        where: File that the block reads, for the error.

    Raises:
        DataFormatError: If the block raised an exception that damaged bytes cause.
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
    """Returns the shape of a row, see `Table.columns`; None if it is not numeric."""
    import pyarrow.types as types

    width: tuple[int | None, ...] = ()
    if types.is_fixed_size_list(kind):
        width, kind = (int(kind.list_size),), kind.value_type
    elif types.is_list(kind) or types.is_large_list(kind):
        width, kind = (None,), kind.value_type
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return width if number and width != (0,) else None


def _to_numpy(column: Any) -> Array:
    """Converts a column to an array.

    Returns:
        ``[rows]`` or ``[rows, width]``; an empty array of three axes, which no caller
        accepts, if rows differ in width or numbers are missing.
    """
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
