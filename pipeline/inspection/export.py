"""Writes a store back as OGBench's npz files, in bounded memory."""

import os
import zipfile
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from pipeline.sources.files import val_path
from pipeline.sources.ogbench_npz import TERMINALS
from pipeline.store import arrays, schema
from pipeline.store.errors import UsageError
from pipeline.store.manifest import FieldSpec
from pipeline.store.reader import Store


def export_npz(store: Store, path: str) -> list[str]:
    """Writes each split of a store as an npz that OGBench's loader reads.

    Members are not compressed, because the noise of floats hardly compresses. Rewards
    and masks are exported only if they came with the data; otherwise OGBench computes
    them from the physics state. Scaled actions get their original bounds back. A file
    appears whole or not at all.

    Args:
        store: The store.
        path: File of the ``train`` split, ending in ``.npz``; the ``val`` split is
            written beside it, as ``...-val.npz``.

    Returns:
        Paths of the files written.

    Raises:
        UsageError: If the path does not end in ``.npz``.
        DataFormatError: If the store cannot be read.
        OSError: If a file cannot be written.
    """
    check_path(path)
    written = []
    for split in sorted({part.split for part in store.manifest.parts}):
        target = path if split == "train" else val_path(path)
        _write_split(store, split, target)
        written.append(target)
    return written


def check_path(path: str) -> None:
    """Raises a UsageError if a path does not end in ``.npz``."""
    if not path.endswith(".npz"):
        raise UsageError(f"--npz: expected a file name ending in .npz, got {path}")


def _write_split(store: Store, split: str, path: str) -> None:
    partial = f"{path}.partial"
    names = [
        name
        for name in (schema.OBSERVATIONS, schema.ACTIONS, TERMINALS, *schema.PHYSICS)
        if name == TERMINALS or name in store.manifest.fields
    ]
    if {task.recipe for task in store.manifest.tasks} == {"stored"}:
        names += [schema.REWARDS, schema.MASKS]
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        # The file gets its name when it is complete: a reader never sees half of it.
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
            for name in names:
                _write_member(archive, store, split, name)
        os.replace(partial, path)
    except OSError as error:
        raise OSError(
            f"{path}: could not be written ({error}); check the folder and its space"
        ) from error
    finally:
        if os.path.exists(partial):
            os.remove(partial)


def _write_member(
    archive: zipfile.ZipFile, store: Store, split: str, name: str
) -> None:
    field = FieldSpec("bool", ()) if name == TERMINALS else store.manifest.fields[name]
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(field.dtype)),
        "fortran_order": False,
        "shape": (store.rows(split), *field.shape, *_task_axis(store, field)),
    }
    # ZipInfo dates a member 1980, as NumPy does, so that equal stores give equal files.
    info = zipfile.ZipInfo(f"{name}.npy")
    # The header is written before the size is known, and members may exceed 4 GiB.
    with archive.open(info, "w", force_zip64=True) as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for values in _read_blocks(store, split, name):
            stream.write(np.ascontiguousarray(values).data.cast("B"))


def _read_blocks(
    store: Store, split: str, name: str
) -> Iterator[npt.NDArray[np.generic]]:
    """Reads one member, a shard at a time."""
    if name == TERMINALS:
        # OGBench sets terminals in the last row of an episode, whatever ended it.
        episodes = store.episodes(split)
        terminals = np.zeros(store.rows(split), np.bool_)
        terminals[episodes.starts + episodes.lengths - 1] = True
        yield terminals
        return
    field = store.manifest.fields[name]
    per_task = field.per == "row_and_task"
    # Whole shards, so that no chunk is decompressed twice.
    step = arrays.shard_rows(field)
    for part in store.manifest.parts_of(split):
        for first in range(0, part.rows, step):
            rows = store.read_rows(part, name, first, min(first + step, part.rows))
            if name == schema.ACTIONS and store.manifest.action_scale is not None:
                rows = store.manifest.action_scale.from_unit(rows)
            yield (
                rows.reshape(len(rows), *_task_axis(store, field)) if per_task else rows
            )


def _task_axis(store: Store, field: FieldSpec) -> tuple[int, ...]:
    """Returns the shape of a member's axis of tasks; OGBench's single task has none."""
    tasks = len(store.manifest.tasks)
    return (tasks,) if field.per == "row_and_task" and tasks > 1 else ()
