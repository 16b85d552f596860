"""Writing one part, a block of whole episodes at a time, in bounded memory.

``part.json`` comes last: a part without it is not there. Whoever writes the same part
again, or at the same time, writes the same bytes to the same objects, each in one
atomic step, and nothing is deleted: a writer that was stopped, given up and goes on
years later does no harm to the part that another one finished.
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
    """Appends rows to the per-row arrays of one folder.

    Holds at most two shards of each field: one being filled, one being written.

    Args:
        root: The store.
        folder: Folder of the arrays within it; nobody writes other arrays there.
        fields: Every array, by name.
        rows: Most rows that will come.
        tasks: Tasks of the store.
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
            DataFormatError: If a field is missing, unknown, or of another dtype,
                shape or length than the others.
        """
        if block.keys() != self._columns.keys():
            raise DataFormatError(
                f"{self.folder}: expected fields {sorted(self._columns)}, got "
                f"{sorted(block)}; every row needs them all"
            )
        lengths = {name: len(values) for name, values in block.items()}
        if len(set(lengths.values())) != 1:
            raise DataFormatError(
                f"{self.folder}: fields differ in length: {lengths}; every field "
                "needs one value per row"
            )
        for name, values in block.items():
            self._columns[name].append(values, f"{self.folder}/{name}")

    def finish_columns(self, rows: int) -> dict[str, str]:
        """Writes what is left.

        Args:
            rows: Rows that have come; arrays announced longer are cut to it.

        Returns:
            Checksums by field name, for the part's manifest.

        Raises:
            DataFormatError: If fewer or more rows came.
        """
        checksums = {n: column.finish(rows) for n, column in self._columns.items()}
        for name, column in self._columns.items():
            if column.rows != rows:
                raise _miscounted(f"{self.folder}/{name}", rows, column.rows)
        return checksums

    def commit(self, part: PartManifest) -> None:
        """Writes ``part.json``: from now on these arrays are there."""
        name = f"{self.folder}/{manifest.PART_MANIFEST}"
        files.write(self._root, name, manifest_json.to_json(part).encode())


class PartWriter(ColumnsWriter):
    """Appends rows to the arrays of one part, and writes its episode table."""

    def finish(
        self,
        lengths: npt.NDArray[np.int64],
        digests: npt.NDArray[np.uint64] | None = None,
    ) -> dict[str, str]:
        """Writes what is left and the episode table.

        Args:
            lengths: ``i64[E]``, rows of each episode, in order. Episodes that were
                announced and left out make the arrays shorter.
            digests: ``u64[E]``, by which each episode is known; parts of version 1
                have none.

        Returns:
            Checksums by field name, for the part's manifest.

        Raises:
            DataFormatError: If fewer or more rows came than these episodes have.
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


def _miscounted(where: str, announced: int, rows: int) -> DataFormatError:
    return DataFormatError(
        f"{where}: {announced} rows were announced and {rows} came; the input changed "
        "while it was read"
    )


class _Column:
    """One array being written: whole shards only, one write in flight."""

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
        if values.dtype != self._dtype or values.shape[1:] != self._array.shape[1:]:
            raise DataFormatError(
                f"{where}: expected {self._dtype}{list(self._array.shape[1:])} a row, "
                f"got {values.dtype}{list(values.shape[1:])}"
            )
        if self.rows + len(values) > self._array.shape[0]:
            raise _miscounted(where, self._array.shape[0], self.rows + len(values))
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
        self._flush(self.rows % self._shard_rows)
        self._wait()
        arrays.finish(self._root, self._path, self._field, rows=rows, tasks=self._tasks)
        return f"sha256:{self._digest.hexdigest()}"

    def _empty(self) -> Array:
        shape = (min(self._shard_rows, self._array.shape[0]), *self._array.shape[1:])
        return np.empty(shape, self._dtype)

    def _flush(self, rows: int) -> None:
        self._wait()
        first = self.rows - rows
        if rows:
            target = self._array[first : self.rows]
            # Not copied: the buffer is handed over and never written again.
            self._pending = target.write(
                self._buffer[:rows], can_reference_source_data_indefinitely=True
            )

    def _wait(self) -> None:
        if self._pending is not None:
            with files.storage_errors(f"{self._root}/{self._path}"):
                self._pending.result()
            self._pending = None
