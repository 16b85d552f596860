"""The mesh by numbers: its axes, and whether work can be shared evenly on them.

Nothing here needs JAX or devices, so that a mesh can be refused where a run is launched
from, in the words in which training would refuse it.
"""

import math
from dataclasses import dataclass

from pipeline.store.errors import UsageError

SEED, DATA, FSDP, TENSOR = AXES = ("seed", "data", "fsdp", "tensor")


@dataclass(frozen=True)
class MeshConfig:
    """Devices by what they hold; one axis of -1 takes what the others leave.

    Attributes:
        seed: Devices the seeds are spread over.
        data: Devices each batch is split over, the state copied to each.
        fsdp: Devices each batch and the state are split over.
        tensor: Devices every layer but the first is split over; keep it within one
            host.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    seed: int = 1
    data: int = -1
    fsdp: int = 1
    tensor: int = 1


def mesh_sizes(
    config: MeshConfig,
    *,
    seeds: int,
    batch_size: int,
    microbatches: int = 1,
    width: int | None = None,
    devices: int,
) -> dict[str, int]:
    """Works out the sizes of the axes, and that they share the work evenly.

    Args:
        config: Sizes of the axes, at most one of them -1 for what is left.
        seeds: Runs trained side by side.
        batch_size: B of each.
        microbatches: Parts of a batch that are computed one after another.
        width: Of the agent's layers; None if no network is split.
        devices: How many there are, on all hosts.

    Returns:
        Sizes by axis, all at least 1.

    Raises:
        UsageError: If the sizes do not multiply to the number of devices, or seeds,
            parts of a batch or layers cannot be split evenly.
    """
    sizes = {axis: getattr(config, axis) for axis in AXES}
    free = [axis for axis, size in sizes.items() if size == -1]
    if len(free) == 1:
        known = -math.prod(sizes.values())
        sizes[free[0]] = max(1, devices // max(1, known))
    if min(sizes.values()) < 1 or math.prod(sizes.values()) != devices:
        asked = ", ".join(f"{axis}={getattr(config, axis)}" for axis in AXES)
        raise UsageError(
            f"mesh: expected seed * data * fsdp * tensor to be the {devices} "
            f"devices there are, got {asked}; set one of them to -1"
        )
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
                f"{' * '.join(axes)}) cannot share evenly; make it a multiple, or "
                "the mesh axis smaller"
            )
    return sizes
