"""What is in a checkpoint, and its parameters as a file for programs without JAX.

Looking needs no device that the checkpoint was written on: shapes are read from
Orbax's metadata, and arrays only to export them.

Dimensions: Q seeds.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors.numpy import save_file

from pipeline.store.errors import DataFormatError
from trainer.nn.networks import Params
from trainer.runs.checkpoints import ARRAY_ITEMS, CheckpointReader
from trainer.runs.choice import choose_seed, choose_step
from trainer.runs.folder import RunFolder
from trainer.runs.run import Run


@dataclass(frozen=True)
class SavedArray:
    """One array of a step.

    Attributes:
        path: Item and names within it, such as ``params/value/hidden_0/kernel``.
        shape: With the leading axis of seeds.
        dtype: Its name.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        """Of its values."""
        # jnp.dtype: NumPy has no bfloat16 of its own.
        return math.prod(self.shape) * int(jax.numpy.dtype(self.dtype).itemsize)


@dataclass(frozen=True)
class Inspection:
    """One step of a run.

    Attributes:
        steps: All committed ones, ascending.
        step: The one looked at.
        run: What it is of.
        arrays: By path.
    """

    steps: tuple[int, ...]
    step: int
    run: Run
    arrays: tuple[SavedArray, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
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
    """What of a run is in an exported file.

    Attributes:
        run: What was trained.
        step: Updates of the checkpoint.
        seeds: Training seeds whose parameters are in the file.
    """

    run: Run
    step: int
    seeds: tuple[int, ...]


def inspect(folder: RunFolder, *, step: int | None = None) -> Inspection:
    """Reads what a step holds, but none of its arrays.

    Args:
        folder: RUN.
        step: A committed step; the last one by default.

    Returns:
        The step.

    Raises:
        DataFormatError: If there is no such step.
    """
    with CheckpointReader(folder) as checkpoints:
        chosen = choose_step(checkpoints, step)
        return Inspection(
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
    """Writes a step's parameters to a safetensors file.

    Names are joined by points, such as ``value.hidden_0.kernel``; kernels are
    ``[inputs, outputs]``. The file's metadata hold ``step``, ``seeds`` and ``run``
    (JSON), which say what networks they are of. Actions are in [-1, 1]; where the run
    has an ``action_scale``, -1 and 1 are its ``low`` and ``high`` to the environment.

    Args:
        folder: RUN.
        file: To write, on disk; its folder must exist.
        step: A committed step; the last one by default.
        seed: Number of the one to export. All by default, on a leading axis ``Q``.

    Returns:
        What is in the file, and the number of arrays written.

    Raises:
        DataFormatError: If there is no such step or seed, or the file exists.
    """
    check_new(file)
    with CheckpointReader(folder) as checkpoints:
        chosen = choose_step(checkpoints, step)
        run = checkpoints.read_run(chosen)
        seeds = run.config.trainer.seed_range
        if seed is not None:
            choose_seed(checkpoints, seeds, seed)
        params = checkpoints.restore_params(chosen, run.agent(), seeds=len(seeds))
    held = tuple(seeds) if seed is None else (seed,)
    place = None if seed is None else seeds.index(seed)
    arrays = _flatten(params, place)
    save_file(
        arrays,
        file,
        metadata={
            "step": str(chosen),
            "seeds": json.dumps(held),
            "run": json.dumps(run.to_json()),
        },
    )
    return Exported(run, chosen, held), len(arrays)


def check_new(file: Path) -> None:
    """Refuses a file that is there, or whose folder is not.

    Raises:
        DataFormatError: If it cannot be written as a new one.
    """
    if file.exists():
        raise DataFormatError(f"{file}: exists; give another --out")
    if not file.parent.is_dir():
        raise DataFormatError(f"{file.parent}: no such folder; make it first")


def _flatten(params: Params, place: int | None) -> dict[str, np.ndarray[Any, Any]]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): np.ascontiguousarray(
            leaf if place is None else leaf[place]
        )
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
