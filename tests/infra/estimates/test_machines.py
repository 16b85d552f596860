import math

import pytest

from infra.errors import LaunchError
from infra.estimates.machines import ACCELERATORS, find_accelerator, make_slice


@pytest.mark.parametrize(
    ("name", "chips", "hosts", "per_host", "topology", "machine"),
    [
        ("h100", 1, 1, 1, None, "a3-highgpu-1g"),
        ("h100", 8, 1, 8, None, "a3-highgpu-8g"),
        ("h100", 24, 3, 8, None, "a3-highgpu-8g"),
        ("v5e", 1, 1, 1, "1x1", "ct5lp-hightpu-1t"),
        ("v6e", 4, 1, 4, "2x2", "ct6e-standard-4t"),
        ("v6e", 8, 2, 4, "2x4", "ct6e-standard-4t"),
        ("v5e", 256, 64, 4, "16x16", "ct5lp-hightpu-4t"),
        ("v5p", 16, 4, 4, "2x2x4", "ct5p-hightpu-4t"),
    ],
)
def test_chips_on_machines(name, chips, hosts, per_host, topology, machine):
    made = make_slice(ACCELERATORS[name], chips)
    assert (made.hosts, made.chips_per_host, made.topology) == (
        hosts,
        per_host,
        topology,
    )
    assert made.chips == chips
    assert made.machine_type == machine


@pytest.mark.parametrize(
    "name", [n for n, a in ACCELERATORS.items() if a.kind == "tpu"]
)
def test_a_topology_holds_as_many_chips_as_asked_for(name):
    sizes = []
    for chips in range(1, 257):
        try:
            made = make_slice(ACCELERATORS[name], chips)
        except LaunchError:
            continue
        sizes.append(chips)
        assert math.prod(map(int, made.topology.split("x"))) == chips
    assert len(sizes) >= 7


@pytest.mark.parametrize(
    ("name", "chips", "choices"),
    [
        ("h100", 12, "1, 2, 4, 8, or a multiple of 8"),
        ("h200", 4, "8, or a multiple of 8"),
        ("h100", 0, "a multiple of 8"),
        ("v6e", 12, "1, 4, 8, 16"),
        ("v5p", 1, "4, 8, 16"),
    ],
)
def test_machines_that_do_not_exist_are_refused(name, chips, choices):
    with pytest.raises(LaunchError, match=f"{name} comes in .*{choices}.*got {chips}"):
        make_slice(ACCELERATORS[name], chips)


def test_an_accelerator_has_to_be_of_the_targets_kind():
    assert find_accelerator("v5e", "tpu").name == "v5e"
    with pytest.raises(LaunchError, match="one of v5e, v5p, v6e here, got 'h100'"):
        find_accelerator("h100", "tpu")
    with pytest.raises(LaunchError, match="h100, h200 here, got 'v100'"):
        find_accelerator("v100", "gpu")


@pytest.mark.parametrize("name", ACCELERATORS)
def test_what_a_chip_can_do_is_known_of_all(name):
    chip = ACCELERATORS[name].chip
    assert chip.link_bytes_per_s is not None
    assert chip.name.lower().replace("tpu ", "").startswith(name[:4].rstrip("-"))
