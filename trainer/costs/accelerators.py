"""The one table of accelerators, with the figures of their makers.

The figures are bounds and no forecast: no program reaches all of them. Clouds' machines
and their names are in ``infra.estimates.machines``. Nothing here needs JAX, so that a
machine which only launches can read the table.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

# Share of a GPU's memory that JAX reserves by default, and never exceeds.
_RESERVED_SHARE = 0.75


@dataclass(frozen=True)
class Accelerator:
    """One kind of chip.

    Attributes:
        name: Name as the maker writes it.
        device: Regular expression for JAX's name of the chip.
        source: Document that the figures are from.
        peaks: Dense matrix operations per second, by the precision of the products.
        bandwidth: Bytes per second between the chip and its memory.
        memory_bytes: Bytes of the chip's memory.
        link_bytes_per_s: Bytes per second to and from other chips, both directions
            together; None if chips have no links of their own.
        slices: Shapes in which chips are wired together, by the number of chips; empty
            if machines can be joined in any number.
    """

    name: str
    device: str
    source: str
    peaks: dict[str, float]
    bandwidth: float
    memory_bytes: int
    link_bytes_per_s: float | None
    slices: Mapping[int, str] = field(default_factory=dict)

    @property
    def default_peak(self) -> float:
        """Operations per second on float32 matrices, at JAX's default precision.

        At this precision GPUs round the factors to TensorFloat-32, TPUs to bfloat16.
        """
        return self.peaks.get("tensorfloat32", self.peaks["bfloat16"])

    @property
    def usable_share(self) -> float:
        """Share of the memory that JAX uses: all of a TPU's, 0.75 of a GPU's.

        ``XLA_PYTHON_CLIENT_MEM_FRACTION`` sets another share on a machine with GPUs.
        """
        return 1.0 if self.rounds_to_bfloat16 else _RESERVED_SHARE

    @property
    def rounds_to_bfloat16(self) -> bool:
        """Whether float32 factors of products are rounded to bfloat16, as on TPUs."""
        return "tensorfloat32" not in self.peaks


# Google, "TPU v5e" and "TPU v6e", shapes of slices: flat tori.
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
# Google, "TPU v4" and "TPU v5p": cubes; sizes above 256 chips are left out.
_CUBE = {
    4: "2x2x1",
    8: "2x2x2",
    16: "2x2x4",
    32: "2x4x4",
    64: "4x4x4",
    128: "4x4x8",
    256: "4x8x8",
}

_NVIDIA = "NVIDIA {} data sheet, tensor figures halved for dense matrices"
_GOOGLE = "Google Cloud's page on {}"

# NVIDIA's tensor figures of Hopper and Ada are for sparse matrices, and are halved here
# for dense ones (1,979 becomes 989.5). Ampere's data sheet has both. Google gives one
# peak, in bfloat16, because TPUs have no wider matrix unit.
ACCELERATORS = {
    # NVIDIA A100 40GB SXM: the 80GB's arithmetic, 1,555 GB/s. It stands before the
    # 80GB, whose pattern matches its name too; `find_accelerator` takes the first one.
    "a100-40gb": Accelerator(
        name="A100 40GB SXM",
        device="A100.*40GB",
        source=_NVIDIA.format("A100"),
        peaks={"bfloat16": 312e12, "tensorfloat32": 156e12, "float32": 19.5e12},
        bandwidth=1.555e12,
        memory_bytes=40 * 10**9,
        link_bytes_per_s=600e9,
    ),
    # NVIDIA A100 80GB SXM: 312 and 156 TFLOPS, 2,039 GB/s, NVLink 600 GB/s.
    "a100-80gb": Accelerator(
        name="A100 80GB SXM",
        device="A100",
        source=_NVIDIA.format("A100"),
        peaks={"bfloat16": 312e12, "tensorfloat32": 156e12, "float32": 19.5e12},
        bandwidth=2.039e12,
        memory_bytes=80 * 10**9,
        link_bytes_per_s=600e9,
    ),
    # NVIDIA H100 PCIe: 1,513 and 756 TFLOPS with sparsity, 2 TB/s, NVLink 600 GB/s.
    # It stands before the SXM, whose pattern matches its name too.
    "h100-pcie": Accelerator(
        name="H100 PCIe",
        device="H100 PCIe",
        source=_NVIDIA.format("H100"),
        peaks={"bfloat16": 756.5e12, "tensorfloat32": 378e12, "float32": 51e12},
        bandwidth=2e12,
        memory_bytes=80 * 10**9,
        link_bytes_per_s=600e9,
    ),
    # NVIDIA H100 SXM: 1,979 and 989 TFLOPS with sparsity, 3.35 TB/s, NVLink 900 GB/s.
    "h100": Accelerator(
        name="H100 SXM",
        device="H100",
        source=_NVIDIA.format("H100"),
        peaks={"bfloat16": 989.5e12, "tensorfloat32": 494.5e12, "float32": 67e12},
        bandwidth=3.35e12,
        memory_bytes=80 * 10**9,
        link_bytes_per_s=900e9,
    ),
    # NVIDIA H200 SXM: the H100's arithmetic, 141 GB at 4.8 TB/s, NVLink 900 GB/s. A
    # GH200 computes as fast, with other memory.
    "h200": Accelerator(
        name="H200 SXM",
        device="H200",
        source=_NVIDIA.format("H200"),
        peaks={"bfloat16": 989.5e12, "tensorfloat32": 494.5e12, "float32": 67e12},
        bandwidth=4.8e12,
        memory_bytes=141 * 10**9,
        link_bytes_per_s=900e9,
    ),
    # NVIDIA L4: 242 and 120 TFLOPS with sparsity, 24 GB at 300 GB/s, PCIe only.
    "l4": Accelerator(
        name="L4",
        device="L4$",
        source=_NVIDIA.format("L4"),
        peaks={"bfloat16": 121e12, "tensorfloat32": 60e12, "float32": 30.3e12},
        bandwidth=300e9,
        memory_bytes=24 * 10**9,
        link_bytes_per_s=None,
    ),
    # Google, "TPU v6e": 918 TFLOPS, 32 GB at 1,600 GB/s, links of 800 GB/s.
    "v6e": Accelerator(
        name="TPU v6e",
        device="TPU v6",
        source=_GOOGLE.format("TPU v6e"),
        peaks={"bfloat16": 918e12},
        bandwidth=1.6e12,
        memory_bytes=32 * 10**9,
        link_bytes_per_s=800e9,
        slices=_FLAT,
    ),
    # Google, "TPU v5e": 197 TFLOPS, 16 GB at 800 GB/s, links of 400 GB/s.
    "v5e": Accelerator(
        name="TPU v5e",
        device="TPU v5 lite|TPU v5e",
        source=_GOOGLE.format("TPU v5e"),
        peaks={"bfloat16": 197e12},
        bandwidth=800e9,
        memory_bytes=16 * 10**9,
        link_bytes_per_s=400e9,
        slices=_FLAT,
    ),
    # Google, "TPU v5p": 459 TFLOPS, 95 GB at 2,765 GB/s, links of 1,200 GB/s. It stands
    # after the v5e: JAX's name "TPU v5" is also the beginning of the v5e's.
    "v5p": Accelerator(
        name="TPU v5p",
        device="TPU v5",
        source=_GOOGLE.format("TPU v5p"),
        peaks={"bfloat16": 459e12},
        bandwidth=2.765e12,
        memory_bytes=95 * 10**9,
        link_bytes_per_s=1200e9,
        slices=_CUBE,
    ),
    # Google, "TPU v4": 275 TFLOPS, 32 GiB at 1,200 GB/s; Jouppi et al. (2023), *TPU
    # v4*: six links of 50 GB/s in each direction.
    "v4": Accelerator(
        name="TPU v4",
        device="TPU v4",
        source=_GOOGLE.format("TPU v4"),
        peaks={"bfloat16": 275e12},
        bandwidth=1.2e12,
        memory_bytes=32 * 2**30,
        link_bytes_per_s=600e9,
        slices=_CUBE,
    ),
}


def find_accelerator(device: str) -> Accelerator | None:
    """Finds the accelerator of a JAX device.

    Args:
        device: ``device_kind`` of the device.

    Returns:
        The first accelerator whose pattern matches; None if no pattern matches, or the
        device is a part of a GPU, which has a part of its figures.

    Example:
        >>> find_accelerator("NVIDIA H100 80GB HBM3").name
        'H100 SXM'
    """
    # Such as "NVIDIA A100-SXM4-40GB MIG 1g.5gb".
    if "MIG" in device:
        return None
    for accelerator in ACCELERATORS.values():
        if re.search(accelerator.device, device):
            return accelerator
    return None
