"""Writes one part, a block of whole episodes at a time, in bounded memory.

``part.json`` is written last, and a part without it counts as unwritten. A worker that
writes the same part again, or at the same time as another, writes the same bytes to the
same objects, each in one atomic step, and deletes nothing. So a worker that was
suspended and given up may go on at any time, even after another worker has finished the
part, and does no harm.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorstore as ts

from pipeline.store import arrays, files, manifest, manifest_json
from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import EPISODE_DIGESTS, TABLE, FieldSpec, PartManifest

Array = npt.NDArray[Any]


class ColumnsWriter:
    """Appends rows to the arrays of one folder.

    A writer holds at most two shards of each field in memory: one that is being filled
    and one that is being written.

    Args:
        root: Local path or ``gs://bucket/path`` of the store.
        folder: Folder of the arrays relative to the store; every other writer of this
            folder must write the same arrays.
        fields: Dtype and shape of every array, by name.
        rows: Upper bound on the number of rows.
        tasks: Number of tasks of the store.
    """

    def __init__(
        self,
        root: str,
        folder: str,
        fields: Mapping[str, FieldSpec],
        *,
        rows: int,
        tasks: int,
    ) -> None:
        self.folder = folder
        self._root = root
        self._columns = {
            name: _Column(root, f"{folder}/{name}", field, rows=rows, tasks=tasks)
            for name, field in fields.items()
        }

    def append(self, block: Mapping[str, Array]) -> None:
        """Appends rows to every field.

        Args:
            block: ``[n, ...]`` for each field of the part, of the field's dtype.

        Raises:
            DataFormatError: If a field is missing or unknown, if its dtype or shape
                differs from the announced, or if fields differ in length.
            OSError: If the disk or the bucket fails.
        """
        if block.keys() != self._columns.keys():
            raise DataFormatError(
                f"{self.folder}: expected fields {sorted(self._columns)}, got "
                f"{sorted(block)}; give every row all of these fields and no other"
            )
        lengths = {name: len(values) for name, values in block.items()}
        if len(set(lengths.values())) != 1:
            raise DataFormatError(
                f"{self.folder}: expected fields of one length, got {lengths} rows; "
                "give every field one value per row"
            )
        for name, values in block.items():
            self._columns[name].append(values, f"{self.folder}/{name}")

    def finish_columns(self, rows: int) -> dict[str, str]:
        """Writes the buffered rows and the metadata of every array.

        Args:
            rows: Number of rows that were appended; it becomes the arrays' length.

        Returns:
            Checksums by field name, for the part's manifest.

        Raises:
            DataFormatError: If another number of rows was appended.
            OSError: If the disk or the bucket fails.
        """
        checksums = {n: column.finish(rows) for n, column in self._columns.items()}
        for name, column in self._columns.items():
            if column.rows != rows:
                raise _row_count_error(f"{self.folder}/{name}", rows, column.rows)
        return checksums

    def commit(self, part: PartManifest) -> None:
        """Writes ``part.json``, which makes the part count as written."""
        name = f"{self.folder}/{manifest.PART_MANIFEST}"
        files.write(self._root, name, manifest_json.to_json(part).encode())


class PartWriter(ColumnsWriter):
    """Appends rows to the arrays of one part, and writes the part's episode table."""

    def finish(
        self,
        lengths: npt.NDArray[np.int64],
        digests: npt.NDArray[np.uint64] | None = None,
    ) -> dict[str, str]:
        """Writes the buffered rows and the episode table.

        Args:
            lengths: ``i64[E]``, rows of each episode that was appended, in order. Their
                sum may be below the announced rows, because bad episodes are dropped.
            digests: ``u64[E]``, digest of each episode's rows, by which ``append``
                recognises episodes; None for parts of version 1.

        Returns:
            Checksums by field name, for the part's manifest.

        Raises:
            DataFormatError: If the appended rows are not the sum of the lengths.
            OSError: If the disk or the bucket fails.
        """
        checksums = self.finish_columns(int(lengths.sum()))
        starts = np.cumsum(lengths) - lengths
        table: dict[str, Array] = {"episode_starts": starts, "episode_lengths": lengths}
        if digests is not None:
            table[EPISODE_DIGESTS] = digests
        for name, values in table.items():
            path, rows, field = f"{self.folder}/{name}", len(lengths), TABLE[name]
            column = _Column(self._root, path, field, rows=rows, tasks=0)
            column.append(values.astype(field.dtype, copy=False), path)
            checksums[name] = column.finish(rows)
        return checksums


def _row_count_error(where: str, announced: int, rows: int) -> DataFormatError:
    """Builds the error for an input whose row count differs from the planned one."""
    return DataFormatError(
        f"{where}: expected {announced} rows as planned, got {rows}; the input changed "
        "while it was read, repeat the command when nobody writes it"
    )


class _Column:
    """Writes one array in whole shards, with one write in flight.

    A shard that is written in pieces would be read, decompressed and written again for
    every piece.
    """

    def __init__(
        self, root: str, path: str, field: FieldSpec, *, rows: int, tasks: int
    ) -> None:
        self.rows = 0
        self._root, self._path, self._field, self._tasks = root, path, field, tasks
        self._array = arrays.create(root, path, field, rows=rows, tasks=tasks)
        self._dtype = self._array.dtype.numpy_dtype
        self._shard_rows = arrays.shard_rows(field)
        self._buffer = self._empty()
        self._digest = hashlib.sha256()
        self._pending: ts.WriteFutures | None = None

    def append(self, values: Array, where: str) -> None:
        """Copies rows into the buffer, and starts a write for every full shard."""
        if values.dtype != self._dtype or values.shape[1:] != self._array.shape[1:]:
            raise DataFormatError(
                f"{where}: expected {self._dtype}{list(self._array.shape[1:])} a row, "
                f"got {values.dtype}{list(values.shape[1:])}; the input changed since "
                "it was planned, repeat the command"
            )
        if self.rows + len(values) > self._array.shape[0]:
            raise _row_count_error(where, self._array.shape[0], self.rows + len(values))
        values = np.ascontiguousarray(values)
        self._digest.update(values.data)
        while len(values):
            filled = self.rows % self._shard_rows
            taken = min(len(values), self._shard_rows - filled)
            self._buffer[filled : filled + taken] = values[:taken]
            self.rows += taken
            if filled + taken == self._shard_rows:
                self._flush(self._shard_rows)
                self._buffer = self._empty()
            values = values[taken:]

    def finish(self, rows: int) -> str:
        """Writes the last shard and the metadata; returns the checksum of all rows."""
        self._flush(self.rows % self._shard_rows)
        self._wait()
        arrays.finish(self._root, self._path, self._field, rows=rows, tasks=self._tasks)
        return f"sha256:{self._digest.hexdigest()}"

    def _empty(self) -> Array:
        """Allocates a buffer for one shard."""
        shape = (min(self._shard_rows, self._array.shape[0]), *self._array.shape[1:])
        return np.empty(shape, self._dtype)

    def _flush(self, rows: int) -> None:
        """Starts writing the first rows of the buffer, once the last write is done."""
        self._wait()
        first = self.rows - rows
        if rows:
            target = self._array[first : self.rows]
            # TensorStore may read the buffer later instead of copying it now, because
            # the buffer is never written to again: `append` allocates a new one.
            self._pending = target.write(
                self._buffer[:rows], can_reference_source_data_indefinitely=True
            )

    def _wait(self) -> None:
        """Waits for the write in flight, and raises its error."""
        if self._pending is not None:
            with files.storage_errors(f"{self._root}/{self._path}"):
                self._pending.result()
            self._pending = None
