"""The contents of a checkpoint, and its parameters as a file for other programs.

Inspecting works on any machine: shapes are read from Orbax's metadata. Arrays are read
only to export them.

Dimensions: Q seeds.
"""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from pipeline.store.errors import DataFormatError
from trainer.nn.networks import Params
from trainer.runs.checkpoints import ARRAY_ITEMS, CheckpointReader
from trainer.runs.choice import choose_seed, choose_step
from trainer.runs.folder import RunFolder
from trainer.runs.run import Run


@dataclass(frozen=True)
class SavedArray:
    """One array of a checkpoint.

    Attributes:
        path: Item and path within it, such as ``params/value/hidden_0/kernel``.
        shape: Shape, with the leading axis of seeds.
        dtype: Name of the dtype.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        """Bytes of the array's values."""
        # By JAX's dtype, because NumPy has no bfloat16 of its own.
        return math.prod(self.shape) * int(jax.numpy.dtype(self.dtype).itemsize)


@dataclass(frozen=True)
class CheckpointContents:
    """The contents of one checkpoint of a run.

    Attributes:
        steps: All committed steps, ascending.
        step: Step of the checkpoint.
        run: Description of the run.
        arrays: Arrays of the checkpoint, sorted by item.
    """

    steps: tuple[int, ...]
    step: int
    run: Run
    arrays: tuple[SavedArray, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns plain values."""
        return {
            "steps": list(self.steps),
            "step": self.step,
            "run": self.run.to_json(),
            "arrays": [
                {
                    "path": array.path,
                    "shape": list(array.shape),
                    "dtype": array.dtype,
                    "size_bytes": array.size_bytes,
                }
                for array in self.arrays
            ],
            "size_bytes": sum(array.size_bytes for array in self.arrays),
        }


@dataclass(frozen=True)
class Exported:
    """The contents of an exported file.

    Attributes:
        run: Description of the run.
        step: Step of the checkpoint.
        seeds: Training seeds whose parameters are in the file.
    """

    run: Run
    step: int
    seeds: tuple[int, ...]


def inspect(folder: RunFolder, *, step: int | None = None) -> CheckpointContents:
    """Inspects a checkpoint without reading its arrays.

    Args:
        folder: Folder of the run, RUN.
        step: A committed step; None for the last one.

    Returns:
        The contents of the checkpoint.

    Raises:
        DataFormatError: If there is no such step.
    """
    with CheckpointReader(folder) as checkpoints:
        chosen = choose_step(checkpoints, step)
        return CheckpointContents(
            steps=tuple(checkpoints.steps()),
            step=chosen,
            run=checkpoints.read_run(chosen),
            arrays=tuple(
                SavedArray(
                    path=f"{item}/{name}",
                    shape=tuple(leaf.shape),
                    dtype=jax.numpy.dtype(leaf.dtype).name,
                )
                for item in ARRAY_ITEMS
                for name, leaf in checkpoints.read_shapes(chosen, item).items()
            ),
        )


def export(
    folder: RunFolder, file: Path, *, step: int | None = None, seed: int | None = None
) -> tuple[Exported, int]:
    """Writes the parameters of a checkpoint to a safetensors file.

    Names are joined by points, such as ``value.hidden_0.kernel``; kernels are
    ``[inputs, outputs]``. The file's metadata hold ``step``, ``seeds`` and ``run``
    (JSON), which describe the networks. Actions are in [-1, 1]; where the run has an
    ``action_scale``, -1 and 1 stand for its ``low`` and ``high`` in the environment.

    Args:
        folder: Folder of the run, RUN.
        file: File to write, on disk; its folder must exist.
        step: A committed step; None for the last one.
        seed: Training seed to export; None for all of them, on a leading axis ``Q``.

    Returns:
        The contents of the file, and the number of arrays written.

    Raises:
        DataFormatError: If there is no such step or seed, or the file exists.
        OSError: If the file cannot be written.
    """
    # Refused before parameters are restored, which may take minutes.
    check_new(file)
    with CheckpointReader(folder) as checkpoints:
        chosen = choose_step(checkpoints, step)
        run = checkpoints.read_run(chosen)
        seeds = run.config.trainer.seed_range
        if seed is not None:
            choose_seed(checkpoints, seeds, seed)
        params = checkpoints.restore_params(chosen, run.agent(), seeds=len(seeds))
    exported_seeds = tuple(seeds) if seed is None else (seed,)
    place = None if seed is None else seeds.index(seed)
    arrays = _flatten(params, place)
    with write_whole(file) as partial:
        save_file(
            arrays,
            partial,
            metadata={
                "step": str(chosen),
                "seeds": json.dumps(exported_seeds),
                "run": json.dumps(run.to_json()),
            },
        )
    return Exported(run, chosen, exported_seeds), len(arrays)


@contextmanager
def write_whole(file: Path) -> Iterator[Path]:
    """Lends a name to write a file under, which gets its own name when it is whole.

    Args:
        file: The file, which does not exist.

    Yields:
        Path to write to, in the same folder.

    Raises:
        OSError: If the file cannot be written; nothing is left of it.
    """
    # Half a file would look like an export, and keep the command from being repeated.
    partial = file.with_name(f"{file.name}.partial")
    try:
        yield partial
        partial.replace(file)
    # safetensors raises its own class, also for a full disk.
    except (OSError, SafetensorError) as error:
        raise OSError(
            f"{file}: could not be written ({error}); check the folder and its space"
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def check_new(file: Path) -> None:
    """Refuses a file that exists already, or whose folder does not exist.

    Raises:
        DataFormatError: If the file cannot be written as a new one.
    """
    if file.exists():
        raise DataFormatError(
            f"{file}: expected a new file, but it exists; give another --out"
        )
    if not file.parent.is_dir():
        raise DataFormatError(
            f"{file.parent}: expected a folder, found none; make it first"
        )


def _flatten(params: Params, place: int | None) -> dict[str, np.ndarray[Any, Any]]:
    # safetensors writes an array's memory as it lies, so a slice has to be copied.
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): np.ascontiguousarray(
            leaf if place is None else leaf[place]
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
