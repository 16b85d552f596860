import subprocess
import sys

import pytest

from trainer.costs.accelerators import ACCELERATORS, find_accelerator


@pytest.mark.parametrize(
    ("device", "name", "default", "bfloat16"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM", 494.5e12, 989.5e12),
        ("NVIDIA H100 PCIe", "H100 PCIe", 378e12, 756.5e12),
        ("NVIDIA H200", "H200 SXM", 494.5e12, 989.5e12),
        ("NVIDIA GH200 480GB", "H200 SXM", 494.5e12, 989.5e12),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB SXM", 156e12, 312e12),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM", 156e12, 312e12),
        ("NVIDIA L4", "L4", 60e12, 121e12),
        ("TPU v4", "TPU v4", 275e12, 275e12),
        ("TPU v5 lite", "TPU v5e", 197e12, 197e12),
        ("TPU v5p", "TPU v5p", 459e12, 459e12),
        ("TPU v5", "TPU v5p", 459e12, 459e12),
        ("TPU v6 lite", "TPU v6e", 918e12, 918e12),
    ],
)
def test_a_device_is_found_by_the_name_jax_gives_it(
    device: str, name: str, default: float, bfloat16: float
) -> None:
    found = find_accelerator(device)
    assert found is not None
    assert found.name == name
    assert found.default_peak == default
    assert found.peaks["bfloat16"] == bfloat16


@pytest.mark.parametrize(
    "device", ["cpu", "NVIDIA L40S", "TPU v3", "NVIDIA A100-SXM4-40GB MIG 1g.5gb"]
)
def test_other_devices_are_not_guessed(device: str) -> None:
    assert find_accelerator(device) is None


def test_jax_uses_all_memory_of_a_tpu_and_a_part_of_a_gpus() -> None:
    shares = {chip.usable_share for chip in ACCELERATORS.values() if not chip.slices}
    assert shares == {0.75}
    assert {chip.usable_share for chip in ACCELERATORS.values() if chip.slices} == {1}


@pytest.mark.parametrize("name", ACCELERATORS)
def test_figures_are_of_one_order(name: str) -> None:
    """A slip of a unit, such as GB for GiB/s or sparse for dense, shows here."""
    chip = ACCELERATORS[name]
    # Chips do 100 to 900 operations in the time that a byte of memory takes.
    assert 100 < chip.peaks["bfloat16"] / chip.bandwidth < 900
    # TensorFloat-32 takes twice as long as bfloat16; 1 % for rounding on data sheets.
    assert chip.peaks["bfloat16"] / chip.default_peak in (
        pytest.approx(1),
        pytest.approx(2, rel=0.01),
    )
    # Reading all of the memory takes 10 to 100 ms, and links are slower than memory.
    assert 0.01 < chip.memory_bytes / chip.bandwidth < 0.1
    assert chip.link_bytes_per_s is None or chip.link_bytes_per_s < chip.bandwidth


def test_the_table_can_be_read_without_jax() -> None:
    program = "import sys, trainer.costs.accelerators; print(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "trainer.costs.accelerators" in done.stdout.split()
    assert "jax" not in done.stdout.split()
