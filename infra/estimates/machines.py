"""Machines with accelerators: numbers of chips, and the names that clouds use.

Memory and speed of a chip are in ``trainer.costs.accelerators``.
"""

from dataclasses import dataclass
from typing import Literal

from infra.errors import LaunchError
from trainer.costs import accelerators


@dataclass(frozen=True)
class CloudAccelerator:
    """One kind of chip, as clouds offer it.

    Attributes:
        name: Name that users give, and key in
            ``trainer.costs.accelerators.ACCELERATORS``.
        kind: ``"gpu"`` or ``"tpu"``.
        selector: Value of GKE's node label for the chip.
        machine: Google's machine type, with ``{}`` for the number of chips.
        sizes: Numbers of chips of the machines that are used, in ascending order. More
            chips than the last number come from several machines of that size.
        sky: SkyPilot's name of the chip; None for TPUs, which SkyPilot is not used for.
    """

    name: str
    kind: Literal["gpu", "tpu"]
    selector: str
    machine: str
    sizes: tuple[int, ...]
    sky: str | None = None

    @property
    def chip(self) -> accelerators.Accelerator:
        """Memory and speed of one chip."""
        return accelerators.ACCELERATORS[self.name]


# Labels and machine types are from GKE's pages "Run GPUs" and "Plan TPUs". GKE's single
# machines of 8 v5e or v6e chips are not used: larger slices consist of machines of 4,
# and so does a slice of 8 here.
ACCELERATORS = {
    accelerator.name: accelerator
    for accelerator in (
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
    """Chips that train one run together.

    Attributes:
        accelerator: Kind of the chips.
        hosts: Number of machines; each runs one process.
        chips_per_host: Chips of each machine.
        topology: Shape of a TPU slice, such as ``4x4``; None for GPUs.
    """

    accelerator: CloudAccelerator
    hosts: int
    chips_per_host: int
    topology: str | None

    @property
    def chips(self) -> int:
        """Number of chips of all machines."""
        return self.hosts * self.chips_per_host

    @property
    def machine_type(self) -> str:
        """Google's machine type."""
        return self.accelerator.machine.format(self.chips_per_host)


def find_accelerator(name: str, kind: Literal["gpu", "tpu"]) -> CloudAccelerator:
    """Finds an accelerator by name.

    Args:
        name: Name of the accelerator.
        kind: Kind of chips that the target of the launch starts.

    Returns:
        The accelerator.

    Raises:
        LaunchError: If no accelerator has this name and kind.
    """
    known = [chip.name for chip in ACCELERATORS.values() if chip.kind == kind]
    if name not in known:
        raise LaunchError(
            f"--accelerator: expected one of {', '.join(known)} here, got {name!r}; "
            "choose one of these, or another --target"
        )
    return ACCELERATORS[name]


def make_slice(accelerator: CloudAccelerator, chips: int) -> Slice:
    """Arranges chips on machines.

    Args:
        accelerator: Kind of the chips.
        chips: Number of chips.

    Returns:
        The slice.

    Raises:
        LaunchError: If no machines have this number of chips.
    """
    # TPUs come in slices of fixed shapes. GPUs come in machines; several machines are
    # used at the largest size only. Every process then has as many devices as the
    # others, and as few links as possible lead out of a machine.
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
            f"--chips: {accelerator.name} comes in {choices}, got {chips}; choose one "
            "of these"
        )
    # A possible number below the largest size is one of `sizes`: one machine holds it.
    per_host = min(chips, largest)
    return Slice(
        accelerator=accelerator,
        hosts=chips // per_host,
        chips_per_host=per_host,
        topology=shapes[chips] if accelerator.kind == "tpu" else None,
    )
