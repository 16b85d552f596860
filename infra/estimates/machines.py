"""Machines with accelerators: how many chips each has, and what clouds call them.

What a chip itself can do stands in ``trainer.costs.accelerators``.
"""

from dataclasses import dataclass
from typing import Literal

from infra.errors import LaunchError
from trainer.costs import accelerators


@dataclass(frozen=True)
class CloudAccelerator:
    """One kind of chip as clouds have it.

    Attributes:
        name: Its key in ``trainer.costs.accelerators.ACCELERATORS``.
        kind: ``"gpu"`` or ``"tpu"``.
        selector: Value of GKE's node label for it.
        machine: Google's machine type, with ``{}`` for its chips.
        sizes: Chips a machine can have, in order; more come in machines of the last.
        sky: SkyPilot's name; None where SkyPilot has no machines of it.
    """

    name: str
    kind: Literal["gpu", "tpu"]
    selector: str
    machine: str
    sizes: tuple[int, ...]
    sky: str | None = None

    @property
    def chip(self) -> accelerators.Accelerator:
        """What one chip can do."""
        return accelerators.ACCELERATORS[self.name]


# Labels and machine types: GKE's pages "Run GPUs" and "Plan TPUs".
ACCELERATORS = {
    each.name: each
    for each in (
        CloudAccelerator(
            name="a100-80gb",
            kind="gpu",
            selector="nvidia-a100-80gb",
            machine="a2-ultragpu-{}g",
            sizes=(1, 2, 4, 8),
            sky="A100-80GB",
        ),
        CloudAccelerator(
            name="h100",
            kind="gpu",
            selector="nvidia-h100-80gb",
            machine="a3-highgpu-{}g",
            sizes=(1, 2, 4, 8),
            sky="H100",
        ),
        CloudAccelerator(
            name="h200",
            kind="gpu",
            selector="nvidia-h200-141gb",
            machine="a3-ultragpu-{}g",
            sizes=(8,),
            sky="H200",
        ),
        CloudAccelerator(
            name="v5e",
            kind="tpu",
            selector="tpu-v5-lite-podslice",
            machine="ct5lp-hightpu-{}t",
            sizes=(1, 4),
        ),
        CloudAccelerator(
            name="v5p",
            kind="tpu",
            selector="tpu-v5p-slice",
            machine="ct5p-hightpu-{}t",
            sizes=(4,),
        ),
        CloudAccelerator(
            name="v6e",
            kind="tpu",
            selector="tpu-v6e-slice",
            machine="ct6e-standard-{}t",
            sizes=(1, 4),
        ),
    )
}


@dataclass(frozen=True)
class Slice:
    """Chips that train together.

    Attributes:
        accelerator: What they are.
        hosts: Machines, one process each.
        chips_per_host: Chips of each.
        topology: Shape of a TPU slice; None for GPUs.
    """

    accelerator: CloudAccelerator
    hosts: int
    chips_per_host: int
    topology: str | None

    @property
    def chips(self) -> int:
        """Chips in all."""
        return self.hosts * self.chips_per_host

    @property
    def machine_type(self) -> str:
        """Google's name of each machine."""
        return self.accelerator.machine.format(self.chips_per_host)


def find_accelerator(name: str, kind: Literal["gpu", "tpu"]) -> CloudAccelerator:
    """Looks an accelerator up.

    Args:
        name: As given.
        kind: What the target has.

    Returns:
        The accelerator.

    Raises:
        LaunchError: If there is none of this name and kind.
    """
    known = [each.name for each in ACCELERATORS.values() if each.kind == kind]
    if name not in known:
        raise LaunchError(
            f"--accelerator: expected one of {', '.join(known)} here, got {name!r}"
        )
    return ACCELERATORS[name]


def make_slice(accelerator: CloudAccelerator, chips: int) -> Slice:
    """Arranges chips on machines.

    Args:
        accelerator: What they are.
        chips: How many.

    Returns:
        The slice.

    Raises:
        LaunchError: If there are no such machines.
    """
    shapes = accelerator.chip.slices
    largest = accelerator.sizes[-1]
    if accelerator.kind == "tpu":
        possible = chips in shapes
        choices = ", ".join(str(size) for size in shapes)
    else:
        possible = chips in accelerator.sizes or (chips > 0 and chips % largest == 0)
        sizes = ", ".join(str(size) for size in accelerator.sizes)
        choices = f"{sizes}, or a multiple of {largest}"
    if not possible:
        raise LaunchError(
            f"--chips: {accelerator.name} comes in {choices}, got {chips}"
        )
    per_host = min(chips, largest)
    return Slice(
        accelerator=accelerator,
        hosts=chips // per_host,
        chips_per_host=per_host,
        topology=shapes[chips] if accelerator.kind == "tpu" else None,
    )
