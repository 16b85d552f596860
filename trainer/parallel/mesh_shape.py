"""The sizes of the mesh: its axes, and a check that they share the work evenly.

This module needs neither JAX nor devices, so that launching a run refuses a mesh in the
same words as training it.
"""

import math
from dataclasses import dataclass

from pipeline.store.errors import UsageError

SEED, DATA, FSDP, TENSOR = AXES = ("seed", "data", "fsdp", "tensor")


@dataclass(frozen=True)
class MeshConfig:
    """Sizes of the mesh axes; one of them may be -1 and takes the remaining devices.

    Attributes:
        seed: Devices that the seeds are sharded over.
        data: Devices that each batch is sharded over, each with a copy of the state.
        fsdp: Devices that each batch and the state are sharded over.
        tensor: Devices that every layer but the first is sharded over; keep this axis
            within one host, because every second layer sends activations over it.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    seed: int = 1
    data: int = -1
    fsdp: int = 1
    tensor: int = 1


def compute_mesh_sizes(
    config: MeshConfig,
    *,
    seeds: int,
    batch_size: int,
    microbatches: int = 1,
    width: int | None = None,
    devices: int,
) -> dict[str, int]:
    """Computes the sizes of the axes, and checks that they share the work evenly.

    Args:
        config: Sizes of the axes; at most one is -1 and takes the remaining devices.
        seeds: Number of runs that are trained side by side.
        batch_size: Rows of each seed's batch.
        microbatches: Parts of a batch that are computed one after another.
        width: Width of the agent's layers; None if no network is sharded.
        devices: Number of devices on all hosts.

    Returns:
        Sizes by axis, all at least 1.

    Raises:
        UsageError: If the product of the sizes is not the number of devices, or seeds,
            rows or layers cannot be shared evenly.
    """
    sizes = {axis: getattr(config, axis) for axis in AXES}
    free = [axis for axis, size in sizes.items() if size == -1]
    if len(free) == 1:
        # The product includes the free axis's -1. Sizes that do not divide the number
        # of devices, or are below 1, are refused below.
        known = -math.prod(sizes.values())
        sizes[free[0]] = max(1, devices // max(1, known))
    if min(sizes.values()) < 1 or math.prod(sizes.values()) != devices:
        asked = ", ".join(f"{axis}={getattr(config, axis)}" for axis in AXES)
        remedy = (
            f"give the others a product that divides {devices}"
            if free
            else "set one of them to -1"
        )
        raise UsageError(
            f"mesh: expected seed * data * fsdp * tensor to be the {devices} "
            f"devices there are, got {asked}; {remedy}"
        )
    # Uneven shards would leave devices idle, and JAX refuses them with an error that
    # names no setting.
    rows = "trainer.batch_size" + (
        " / trainer.microbatches" if microbatches > 1 else ""
    )
    for name, total, axes in (
        ("trainer.seeds", seeds, (SEED,)),
        (rows, batch_size // microbatches, (DATA, FSDP)),
        ("agent.width", width or 0, (TENSOR, FSDP)),
    ):
        shards = math.prod(sizes[axis] for axis in axes)
        if total % shards:
            raise UsageError(
                f"{name} is {total}, which {shards} devices (mesh "
                f"{' * '.join(axes)}) cannot share evenly; make it a multiple of "
                f"{shards}, or choose smaller mesh axes"
            )
    return sizes
