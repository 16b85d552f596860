"""Reading a committed store: parts as one logical array, concurrently.

What a trainer imports. Knows neither Beam nor JAX, and never writes.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import shorten
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorstore as ts

from pipeline.store import arrays, files, manifest, manifest_json
from pipeline.store.errors import DataFormatError, UnfinishedStoreError
from pipeline.store.manifest import (
    DatasetManifest,
    PartManifest,
    Task,
)

Array = npt.NDArray[Any]

# Rows of one read request: large enough for throughput, small enough for progress.
_READ_ROWS = 1 << 17
# Characters of what TensorStore says of a fault; it adds all of its settings.
_SAID = 300


@dataclass(frozen=True)
class Episodes:
    """Episode table of one split, in rows of its logical arrays.

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

    Attributes:
        content: The manifest's file as it was read, for a commit to be conditional on.

    Raises:
        UnfinishedStoreError: If there is no ``dataset.json``.
        FormatVersionError: If it was written by a newer version.
        DataFormatError: If a manifest is damaged.
    """

    def __init__(self, root: str) -> None:
        self.root = str(root)
        where = os.path.join(self.root, manifest.DATASET_MANIFEST)
        self.content = content = files.read(self.root, manifest.DATASET_MANIFEST)
        if content.data is None:
            raise UnfinishedStoreError(
                f"{where}: expected the manifest of a finished store, found none. "
                "Check the path; if a pipeline run was interrupted here, repeat its "
                "command and it will finish the rest"
            )
        self.manifest: DatasetManifest = manifest_json.dataset_from_json(
            content.data, where=where
        )
        self._context = ts.Context()

    def rows(self, split: str = "train") -> int:
        """Rows of a split, last rows of episodes included."""
        return sum(part.rows for part in self.manifest.parts_of(split))

    def task(self, task: int) -> tuple[int, Task]:
        """Finds a task by its number.

        Args:
            task: Task number as OGBench counts, from 1.

        Returns:
            Its column in rewards, masks and returns, and its description.

        Raises:
            DataFormatError: If the store holds no such task.
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
        """Finds the return sums of a discount.

        Args:
            discount: In (0, 1].

        Returns:
            Field name to read.

        Raises:
            DataFormatError: If the store was made without this discount.
        """
        if discount in self.manifest.discounts:
            return manifest.returns_field(discount)
        raise DataFormatError(
            f"{self.root}: return sums for discount {discount} are not in this store, "
            f"which holds {list(self.manifest.discounts)}; set agent.discount to one "
            f"of these, or write the store with --discounts {discount}"
        )

    def episodes(self, split: str = "train") -> Episodes:
        """Reads the episode table of a split."""
        starts, lengths, offset = [], [], 0
        for part in self.manifest.parts_of(split):
            starts.append(self.read_rows(part, "episode_starts", 0, part.episodes))
            starts[-1] += offset
            lengths.append(self.episode_lengths(part))
            offset += part.rows
        if not starts:
            raise DataFormatError(
                f"{self.root}: split {split!r} is empty; this store holds "
                f"{sorted({part.split for part in self.manifest.parts})}"
            )
        return Episodes(np.concatenate(starts), np.concatenate(lengths))

    def read(
        self,
        field: str,
        *,
        split: str = "train",
        column: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Array:
        """Reads a whole field of a split into memory, parts concurrently.

        Args:
            field: Field name, such as ``"observations"`` or ``"returns/0.99"``.
            split: ``"train"`` or ``"val"``.
            column: Of a per-task field, the one task to read; all if None.
            progress: Called with the bytes of each request that arrived.

        Returns:
            ``[rows, ...]``, of the field's dtype; ``[rows]`` with a column.

        Raises:
            DataFormatError: If there is no such field, or bytes are missing.
        """
        if field not in self.manifest.fields:
            raise DataFormatError(
                f"{self.root}: expected one of the fields "
                f"{sorted(self.manifest.fields)}, got {field!r}"
            )
        spec = self.manifest.fields[field]
        shape = arrays.array_shape(
            spec, rows=self.rows(split), tasks=len(self.manifest.tasks)
        )
        if column is not None:
            shape = shape[:1]
        # Opened first: that there are so many rows is looked at before memory is taken.
        parts = [(p, self._open(p, field)) for p in self.manifest.parts_of(split)]
        out = np.empty(shape, spec.dtype)
        # One buffer for all parts, written by many requests at once: no copy to join.
        whole = ts.array(out, context=self._context, copy=False)
        offset, pending = 0, []
        for part, whole_array in parts:
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
        """Reads the rows of each episode of one part: ``i64[E]``.

        Raises:
            DataFormatError: If they are missing or damaged, or are not the part's.
        """
        lengths = self.read_rows(part, "episode_lengths", 0, part.episodes)
        if lengths.min() < 1 or lengths.sum() != part.rows:
            raise DataFormatError(
                f"{self.root}/{part.folder}/episode_lengths: expected rows from 1 that "
                f"sum to {part.rows}, got {lengths.min()} to {lengths.max()}, in all "
                f"{lengths.sum()}; run `python -m pipeline verify` on the store"
            )
        return lengths

    def row_bytes(self, *fields: str) -> int:
        """Bytes in memory of what one row of one task needs to be trained on.

        Args:
            *fields: Per-task fields besides rewards and masks, one column of each.
        """
        total = 0
        for name in ("observations", "actions"):
            spec = self.manifest.fields[name]
            total += np.dtype(spec.dtype).itemsize * math.prod(spec.shape)
        # Reward and mask as float32, and the number of the next solved row.
        columns = sum(np.dtype(self.manifest.fields[f].dtype).itemsize for f in fields)
        return total + columns + 12

    def empty(self, field: str, rows: int) -> Array:
        """An uninitialised array for rows of a field: ``[rows, ...]``."""
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
        """Reads rows of one part into arrays that are there already.

        Args:
            part: Where they are.
            arrays_by_field: By field, ``[n, ...]`` to fill, contiguous; ``[n]`` of a
                per-task field.
            first: First row within the part.
            column: Of per-task fields.

        Raises:
            DataFormatError: If bytes are missing.
        """
        pending = []
        for field, out in arrays_by_field.items():
            array = self._open(part, field)
            if self.manifest.fields[field].per == "row_and_task":
                array = array[:, column]
            target = ts.array(out, context=self._context, copy=False)
            pending.append((field, target.write(array[first : first + len(out)])))
        for field, request in pending:
            self._wait(request, part, field)

    def read_rows(self, part: PartManifest, field: str, first: int, last: int) -> Array:
        """Reads rows ``first`` to ``last`` (exclusive) of one part's field.

        Raises:
            DataFormatError: If bytes are missing or damaged.
        """
        array = self._open(part, field)[first:last]
        return np.asarray(self._wait(array.read(), part, field))

    def _wait(self, request: Any, part: PartManifest, field: str) -> Any:
        """What a request for rows of an array came to."""
        with self._faults(self.manifest.array_folder(part, field)):
            return request.result()

    @contextmanager
    def _faults(self, path: str) -> Iterator[None]:
        """The one place where what storage says of lost or damaged bytes becomes ours.

        Args:
            path: Folder of an array, relative to the store.
        """
        try:
            yield
        except (ValueError, OSError) as error:
            said = shorten(str(error), _SAID)
            raise DataFormatError(
                f"{self.root}/{path}: could not be read ({said}); run `python -m "
                "pipeline verify` on the store, then fetch or write it again"
            ) from error

    def _open(self, part: PartManifest, field: str) -> ts.TensorStore:
        path = self.manifest.array_folder(part, field)
        with self._faults(path):
            array = arrays.open_array(self.root, path, context=self._context)
        spec = self.manifest.fields.get(field)
        if spec is None:
            spec, rows = part.table[field], part.episodes
        else:
            rows = part.rows
        shape = arrays.array_shape(spec, rows=rows, tasks=len(self.manifest.tasks))
        found = array.dtype.name, tuple(array.shape)
        # Before memory is taken for what the manifest says.
        if found != (spec.dtype, shape):
            raise DataFormatError(
                f"{self.root}/{path}: expected {spec.dtype}{list(shape)}, as the "
                f"manifest says, got {found[0]}{list(found[1])}; run "
                "`python -m pipeline verify`"
            )
        return array


def read_part(root: str, folder: str) -> PartManifest | None:
    """Reads the manifest of a finished part, or None where it is not finished.

    Args:
        root: The store.
        folder: Folder of the part within it, or of labels that were written later.

    Returns:
        Its manifest.
    """
    name = f"{folder}/{manifest.PART_MANIFEST}"
    content = files.read(root, name)
    if content.data is None:
        return None
    return manifest_json.part_from_json(content.data, where=f"{root}/{name}")
