"""Reads a committed store; all parts of a field are one logical array.

The trainer imports this module, so it needs neither Beam nor JAX. It never writes.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorstore as ts

from pipeline.store import arrays, files, manifest, manifest_json
from pipeline.store.errors import DataFormatError, UnfinishedStoreError
from pipeline.store.files import Content
from pipeline.store.manifest import (
    DatasetManifest,
    PartManifest,
    Task,
)

Array = npt.NDArray[Any]

# Rows of one read request: large enough for throughput, small enough for progress.
_READ_ROWS = 1 << 17
# Characters kept of a TensorStore error, which goes on with the whole array spec.
_ERROR_CHARACTERS = 300


@dataclass(frozen=True)
class Episodes:
    """The episode table of one split, in rows of the split's logical arrays.

    Attributes:
        starts: ``i64[E]``, first row of each episode.
        lengths: ``i64[E]``, rows of each episode, one more than its transitions.
    """

    starts: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]


class Store:
    """A committed store, opened for reading.

    Args:
        root: Local path or ``gs://bucket/path``.
        known: Manifest to read arrays by; None reads ``dataset.json``.

    Attributes:
        root: The same path.
        manifest: Decoded ``dataset.json``, or the known manifest.
        content: Bytes and generation of ``dataset.json``, on which a commit that
            changes the store is conditional; empty if the manifest was known.

    Raises:
        UnfinishedStoreError: If there is no ``dataset.json``.
        FormatVersionError: If a newer version of this project wrote the store.
        DataFormatError: If the manifest is damaged.
        OSError: If the disk or the bucket fails.
    """

    def __init__(self, root: str, known: DatasetManifest | None = None) -> None:
        self.root = str(root)
        self._context = ts.Context()
        if known is not None:
            self.manifest, self.content = known, Content(None, b"")
            return
        where = os.path.join(self.root, manifest.DATASET_MANIFEST)
        self.content = content = files.read(self.root, manifest.DATASET_MANIFEST)
        if content.data is None:
            if os.path.isfile(self.root):
                raise UnfinishedStoreError(
                    f"{self.root}: expected the folder of a store, got a file; make a "
                    "store of it with `python -m pipeline shard`"
                )
            raise UnfinishedStoreError(
                f"{where}: expected the manifest of a finished store, found none; "
                "check the path, or if a pipeline run was interrupted here, repeat its "
                "command, which then writes the missing parts"
            )
        self.manifest = manifest_json.dataset_from_json(content.data, where=where)

    def rows(self, split: str = "train") -> int:
        """Counts the rows of a split, last rows of episodes included."""
        return sum(part.rows for part in self.manifest.parts_of(split))

    def task(self, task: int) -> tuple[int, Task]:
        """Finds a task by its number.

        Args:
            task: Number of the task, from 1 as OGBench counts.

        Returns:
            The task's column in rewards, masks and returns, and its description.

        Raises:
            DataFormatError: If the store does not hold the task.
        """
        for column, description in enumerate(self.manifest.tasks):
            if description.task == task:
                return column, description
        raise DataFormatError(
            f"{self.root}: task {task} is not in this store, which holds tasks "
            f"{[held.task for held in self.manifest.tasks]} of "
            f"{self.manifest.dataset}; choose one of them"
        )

    def returns_field(self, discount: float) -> str:
        """Finds the field of a discount's return sums.

        Args:
            discount: Discount per step, in (0, 1].

        Returns:
            Name of the field.

        Raises:
            DataFormatError: If the store holds no return sums of this discount.
        """
        if discount in self.manifest.discounts:
            return manifest.returns_field(discount)
        raise DataFormatError(
            f"{self.root}: return sums for discount {discount} are not in this store, "
            f"which holds {list(self.manifest.discounts)}; set agent.discount to one "
            "of these, or add them by `python -m pipeline relabel "
            f"{self.root} --discounts {discount}`"
        )

    def episodes(self, split: str = "train") -> Episodes:
        """Reads the episode table of a split.

        Args:
            split: ``"train"`` or ``"val"``.

        Returns:
            First rows and lengths of all episodes.

        Raises:
            DataFormatError: If the split is empty, or bytes are missing or damaged.
        """
        parts = self.manifest.parts_of(split)
        if not parts:
            raise DataFormatError(
                f"{self.root}: split {split!r} is empty, and this store holds "
                f"{sorted({part.split for part in self.manifest.parts})}; choose one "
                "of these, or append data to the split"
            )
        starts, offset = self.read_tables(parts, "episode_starts"), 0
        for part, first_rows in zip(parts, starts, strict=True):
            first_rows += offset
            offset += part.rows
        lengths = self.lengths_of(parts)
        return Episodes(np.concatenate(starts), np.concatenate(lengths))

    def read(
        self,
        field: str,
        *,
        split: str = "train",
        column: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Array:
        """Reads a field of a split into memory, all parts concurrently.

        Args:
            field: Field name, such as ``"observations"`` or ``"returns/0.99"``.
            split: ``"train"`` or ``"val"``.
            column: Column of a per-task field, see ``task``; None reads all columns.
            progress: Called with the number of bytes of each completed request.

        Returns:
            ``[rows, ...]``, of the field's dtype; ``[rows]`` with a column.

        Raises:
            DataFormatError: If there is no such field, or bytes are missing or damaged.
        """
        if field not in self.manifest.fields:
            raise DataFormatError(
                f"{self.root}: expected one of the fields "
                f"{sorted(self.manifest.fields)}, got {field!r}; choose one of them"
            )
        spec = self.manifest.fields[field]
        shape = arrays.array_shape(
            spec, rows=self.rows(split), tasks=len(self.manifest.tasks)
        )
        if column is not None:
            shape = shape[:1]
        # All parts are opened before memory is allocated: opening compares each array
        # with the manifest, whose row counts may be damaged and ask for all memory.
        parts = self.manifest.parts_of(split)
        opened = self._open_all([(part, field) for part in parts])
        out = np.empty(shape, spec.dtype)
        # Every request writes into its rows of one buffer. Reading parts and joining
        # them would need twice the memory.
        whole = ts.array(out, context=self._context, copy=False)
        offset, pending = 0, []
        for part, whole_array in zip(parts, opened, strict=True):
            array = whole_array if column is None else whole_array[:, column]
            for first in range(0, part.rows, _READ_ROWS):
                last = min(first + _READ_ROWS, part.rows)
                target = whole[offset + first : offset + last]
                request = target.write(array[first:last])
                pending.append((request, part, last - first))
            offset += part.rows
        row_bytes = out.nbytes // max(1, len(out))
        for request, part, rows in pending:
            self._wait(request, part, field)
            if progress is not None:
                progress(rows * row_bytes)
        return out

    def episode_lengths(self, part: PartManifest) -> npt.NDArray[np.int64]:
        """Reads the episode lengths of one part.

        Args:
            part: Manifest of the part.

        Returns:
            ``i64[E]``, rows of each episode.

        Raises:
            DataFormatError: If the lengths are missing or damaged, or do not sum to the
                rows of the part.
        """
        return self.lengths_of([part])[0]

    def lengths_of(self, parts: Sequence[PartManifest]) -> list[npt.NDArray[np.int64]]:
        """Reads the episode lengths of many parts at once; see `episode_lengths`."""
        tables = self.read_tables(parts, "episode_lengths")
        for part, lengths in zip(parts, tables, strict=True):
            if lengths.min() < 1 or lengths.sum() != part.rows:
                raise DataFormatError(
                    f"{self.root}/{part.folder}/episode_lengths: expected lengths from "
                    f"1 row that sum to {part.rows}, got {lengths.min()} to "
                    f"{lengths.max()} with the sum {lengths.sum()}; run `python -m "
                    "pipeline verify` on the store"
                )
        return tables

    def read_tables(self, parts: Sequence[PartManifest], name: str) -> list[Array]:
        """Reads an array of the episode table of many parts at once.

        Args:
            parts: Manifests of the parts.
            name: Name of the array, such as ``"episode_digests"``.

        Returns:
            ``[E]`` for each part.

        Raises:
            DataFormatError: If bytes are missing or damaged.
        """
        opened = self._open_all([(part, name) for part in parts])
        requests = [array.read() for array in opened]
        return [
            np.asarray(self._wait(request, part, name))
            for part, request in zip(parts, requests, strict=True)
        ]

    def row_bytes(self, *fields: str) -> int:
        """Computes the memory that training on one task needs per row, in bytes.

        Args:
            *fields: Per-task fields besides rewards and masks, one column of each.

        Returns:
            Bytes of observations, actions, reward, mask, next solved row and fields.
        """
        total = 0
        for name in ("observations", "actions"):
            spec = self.manifest.fields[name]
            total += np.dtype(spec.dtype).itemsize * math.prod(spec.shape)
        columns = sum(np.dtype(self.manifest.fields[f].dtype).itemsize for f in fields)
        # 12 bytes: reward and mask as float32, and the next solved row as int32.
        return total + columns + 12

    def empty(self, field: str, rows: int) -> Array:
        """Allocates an uninitialised array for rows of a field: ``[rows, ...]``."""
        spec = self.manifest.fields[field]
        return np.empty((rows, *spec.shape), spec.dtype)

    def read_into(
        self,
        part: PartManifest,
        arrays_by_field: Mapping[str, Array],
        *,
        first: int,
        column: int,
    ) -> None:
        """Reads consecutive rows of one part into existing arrays.

        Args:
            part: Manifest of the part.
            arrays_by_field: Contiguous arrays to fill, by field name: ``[n, ...]``, or
                ``[n]`` for a per-task field.
            first: First row to read, counted within the part.
            column: Column to read of per-task fields, see ``task``.

        Raises:
            DataFormatError: If bytes are missing or damaged.
        """
        pending = []
        opened = self._open_all([(part, field) for field in arrays_by_field])
        for array, (field, out) in zip(opened, arrays_by_field.items(), strict=True):
            if self.manifest.fields[field].per == "row_and_task":
                array = array[:, column]
            target = ts.array(out, context=self._context, copy=False)
            pending.append((field, target.write(array[first : first + len(out)])))
        for field, request in pending:
            self._wait(request, part, field)

    def read_rows(self, part: PartManifest, field: str, first: int, last: int) -> Array:
        """Reads consecutive rows of one field of one part.

        Args:
            part: Manifest of the part.
            field: Field name, or the name of an array of the episode table.
            first: First row, counted within the part.
            last: End of the rows, exclusive.

        Returns:
            ``[last - first, ...]``, of the field's dtype.

        Raises:
            DataFormatError: If bytes are missing or damaged.
        """
        (array,) = self._open_all([(part, field)])
        return np.asarray(self._wait(array[first:last].read(), part, field))

    def _wait(self, request: Any, part: PartManifest, field: str) -> Any:
        """Waits for a request for rows of an array, and returns its result."""
        with self._faults(self.manifest.array_folder(part, field)):
            return request.result()

    @contextmanager
    def _faults(self, path: str) -> Iterator[None]:
        """Raises DataFormatError where TensorStore reports lost or damaged bytes.

        Args:
            path: Folder of an array, relative to the store.

        Raises:
            DataFormatError: If the block raised a ValueError or OSError.
        """
        try:
            yield
        except (ValueError, OSError) as error:
            reason = shorten(str(error), _ERROR_CHARACTERS)
            raise DataFormatError(
                f"{self.root}/{path}: could not be read ({reason}); run `python -m "
                "pipeline verify` on the store, then fetch or write it again"
            ) from error

    def _open_all(
        self, places: Iterable[tuple[PartManifest, str]]
    ) -> list[ts.TensorStore]:
        """Opens fields of parts; compares dtypes and shapes with the manifest."""
        # All are asked for before the first is waited for: a bucket takes tens of
        # milliseconds to answer, and a store has thousands of arrays.
        begun = []
        for part, field in places:
            path = self.manifest.array_folder(part, field)
            with self._faults(path):
                request = arrays.begin_opening(self.root, path, context=self._context)
            begun.append((part, field, request))
        return [self._check_opened(*opening) for opening in begun]

    def _check_opened(
        self, part: PartManifest, field: str, request: Any
    ) -> ts.TensorStore:
        """Waits for an array of a part, and compares it with the manifest."""
        path = self.manifest.array_folder(part, field)
        array: ts.TensorStore = self._wait(request, part, field)
        spec = self.manifest.fields.get(field)
        if spec is None:
            spec, rows = part.table[field], part.episodes
        else:
            rows = part.rows
        shape = arrays.array_shape(spec, rows=rows, tasks=len(self.manifest.tasks))
        stored_dtype, stored_shape = array.dtype.name, tuple(array.shape)
        if (stored_dtype, stored_shape) != (spec.dtype, shape):
            raise DataFormatError(
                f"{self.root}/{path}: expected {spec.dtype}{list(shape)}, as the "
                f"manifest says, got {stored_dtype}{list(stored_shape)}; run "
                "`python -m pipeline verify` on the store"
            )
        return array


def read_part(root: str, folder: str) -> PartManifest | None:
    """Reads the manifest of a part, if the part is finished.

    Args:
        root: Local path or ``gs://bucket/path`` of the store.
        folder: Folder of the part, or of labels that relabelling wrote, relative to
            the store.

    Returns:
        The manifest, or None if the part is not finished.

    Raises:
        DataFormatError: If the manifest is damaged.
        OSError: If the disk or the bucket fails.
    """
    name = f"{folder}/{manifest.PART_MANIFEST}"
    content = files.read(root, name)
    if content.data is None:
        return None
    return manifest_json.part_from_json(content.data, where=f"{root}/{name}")
