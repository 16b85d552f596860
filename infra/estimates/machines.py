"""Accelerators: how many chips a machine has, and what Kubernetes calls them.

Figures of a chip are its maker's; they bound what a job can do and predict nothing.
"""

from dataclasses import dataclass
from typing import Literal

from infra.errors import LaunchError


@dataclass(frozen=True)
class Accelerator:
    """One kind of chip.

    Attributes:
        name: What we call it.
        kind: ``"gpu"`` or ``"tpu"``.
        selector: Value of GKE's node label for it.
        machine: Google's machine type, with ``{}`` for its chips.
        sizes: Chips a machine can have, in order; more come in machines of the last.
        memory_bytes: Of a chip.
        peak_flops: Of a chip, in the precision JAX multiplies float32 matrices in by
            default: TF32 on GPUs, one bfloat16 pass on TPUs; without sparsity.
        link_bytes_per_s: Between chips, both directions together.
        sky: SkyPilot's name; None where SkyPilot has no machines of it.
    """

    name: str
    kind: Literal["gpu", "tpu"]
    selector: str
    machine: str
    sizes: tuple[int, ...]
    memory_bytes: int
    peak_flops: float
    link_bytes_per_s: float
    sky: str | None = None


# Memory, arithmetic and links: NVIDIA's data sheets of A100, H100 and H200 SXM, and
# Google's pages "TPU v5e", "TPU v5p" and "TPU v6e". Labels and machine types: GKE's
# pages "Run GPUs" and "Plan TPUs".
ACCELERATORS = {
    each.name: each
    for each in (
        Accelerator(
            name="a100-80gb",
            kind="gpu",
            selector="nvidia-a100-80gb",
            machine="a2-ultragpu-{}g",
            sizes=(1, 2, 4, 8),
            memory_bytes=80 * 10**9,
            peak_flops=156e12,
            link_bytes_per_s=600e9,
            sky="A100-80GB",
        ),
        Accelerator(
            name="h100",
            kind="gpu",
            selector="nvidia-h100-80gb",
            machine="a3-highgpu-{}g",
            sizes=(1, 2, 4, 8),
            memory_bytes=80 * 10**9,
            peak_flops=494.5e12,
            link_bytes_per_s=900e9,
            sky="H100",
        ),
        Accelerator(
            name="h200",
            kind="gpu",
            selector="nvidia-h200-141gb",
            machine="a3-ultragpu-{}g",
            sizes=(8,),
            memory_bytes=141 * 10**9,
            peak_flops=494.5e12,
            link_bytes_per_s=900e9,
            sky="H200",
        ),
        Accelerator(
            name="v5e",
            kind="tpu",
            selector="tpu-v5-lite-podslice",
            machine="ct5lp-hightpu-{}t",
            sizes=(1, 4),
            memory_bytes=16 * 10**9,
            peak_flops=197e12,
            link_bytes_per_s=400e9,
        ),
        Accelerator(
            name="v5p",
            kind="tpu",
            selector="tpu-v5p-slice",
            machine="ct5p-hightpu-{}t",
            sizes=(4,),
            memory_bytes=95 * 10**9,
            peak_flops=459e12,
            link_bytes_per_s=1200e9,
        ),
        Accelerator(
            name="v6e",
            kind="tpu",
            selector="tpu-v6e-slice",
            machine="ct6e-standard-{}t",
            sizes=(1, 4),
            memory_bytes=32 * 10**9,
            peak_flops=918e12,
            link_bytes_per_s=800e9,
        ),
    )
}

# Shapes of slices by chips: v5e and v6e are flat tori, v5p a cube.
_FLAT = {
    1: "1x1",
    4: "2x2",
    8: "2x4",
    16: "4x4",
    32: "4x8",
    64: "8x8",
    128: "8x16",
    256: "16x16",
}
_CUBE = {
    4: "2x2x1",
    8: "2x2x2",
    16: "2x2x4",
    32: "2x4x4",
    64: "4x4x4",
    128: "4x4x8",
    256: "4x8x8",
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

    accelerator: Accelerator
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


def find_accelerator(name: str, kind: Literal["gpu", "tpu"]) -> Accelerator:
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


def make_slice(accelerator: Accelerator, chips: int) -> Slice:
    """Arranges chips on machines.

    Args:
        accelerator: What they are.
        chips: How many.

    Returns:
        The slice.

    Raises:
        LaunchError: If there are no such machines.
    """
    shapes = _CUBE if accelerator.name == "v5p" else _FLAT
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
