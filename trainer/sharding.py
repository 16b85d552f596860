"""The mesh, and what lies where on it.

Axes: ``seed``, runs trained side by side; ``data``, rows of a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

SEED, DATA = "seed", "data"


@dataclass(frozen=True)
class MeshConfig:
    """Devices by what they hold; -1 takes what the other axis leaves.

    Attributes:
        seed: Devices the seeds are spread over.
        data: Devices each batch is split over.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    seed: int = 1
    data: int = -1


def make_mesh(
    config: MeshConfig,
    *,
    seeds: int,
    batch_size: int,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
    """Arranges devices.

    Args:
        config: Sizes of the axes, one of them -1 for what is left.
        seeds: Runs trained side by side.
        batch_size: B of each.
        devices: Which; all there are by default.

    Returns:
        A mesh with axes ``seed`` and ``data``.

    Raises:
        ValueError: If the sizes do not multiply to the number of devices, or seeds
            or batch cannot be split evenly.
    """
    devices = jax.devices() if devices is None else devices
    sizes = [config.seed, config.data]
    if sizes.count(-1) == 1:
        known = -sizes[0] * sizes[1]
        sizes[sizes.index(-1)] = max(1, len(devices) // max(1, known))
    if min(sizes) < 1 or sizes[0] * sizes[1] != len(devices):
        raise ValueError(
            f"mesh: expected seed * data to be the {len(devices)} devices here, got "
            f"seed={config.seed}, data={config.data}; set one of them to -1"
        )
    for name, total, axis in (
        ("trainer.seeds", seeds, sizes[0]),
        ("trainer.batch_size", batch_size, sizes[1]),
    ):
        if total % axis:
            raise ValueError(
                f"{name} is {total}, which {axis} devices cannot share evenly; make "
                "it a multiple, or set the mesh axis to 1"
            )
    grid = np.asarray(devices).reshape(sizes)
    return Mesh(grid, (SEED, DATA), axis_types=(AxisType.Auto, AxisType.Auto))


def state_sharding(mesh: Mesh) -> NamedSharding:
    """State ``[Q, ...]``: seeds spread, each one's state whole on its devices."""
    return NamedSharding(mesh, PartitionSpec(SEED))


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Batches ``[M, Q, B, ...]``: seeds and rows spread."""
    return NamedSharding(mesh, PartitionSpec(None, SEED, DATA))


def replicated(mesh: Mesh) -> NamedSharding:
    """Values every device holds whole."""
    return NamedSharding(mesh, PartitionSpec())
