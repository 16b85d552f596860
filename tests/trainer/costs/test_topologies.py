"""Topologies of absent chips: the ones that exist, and all meshes of TPU slices."""

import itertools
from collections import Counter
from pathlib import Path

import pytest

from pipeline.store.errors import UsageError
from tests.topologies import needs_libtpu
from trainer.costs import topologies
from trainer.costs.accelerators import ACCELERATORS
from trainer.costs.topologies import Topology, parse_topology
from trainer.parallel.mesh import make_mesh
from trainer.parallel.mesh_shape import MeshConfig

TPUS = [name for name, each in ACCELERATORS.items() if each.slices]


def test_names_are_read() -> None:
    assert parse_topology("v5e-16") == Topology("v5e", 16)
    assert parse_topology("a100-40gb-8") == Topology("a100-40gb", 8)
    assert parse_topology("a100-8") == Topology("a100-80gb", 8)
    assert parse_topology("cpu-3") == Topology("cpu", 3)
    assert parse_topology("v5p-1").name == "v5p-1"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("v5ee-16", "kind of v6e, v5e.*got 'v5ee-16'; nearest: v5e comes in 1, 4"),
        ("", "kind of"),
        ("v5e", "kind of .* got 'v5e'"),
        ("v5e-12", "v5e comes in 1, 4, 8, 16, 32, 64, 128, 256 chips; got 'v5e-12'"),
        ("v5e-x", "v5e comes in"),
        ("h100-12", "h100 comes in 1 to 8, or a multiple of 8; got 'h100-12'"),
        ("cpu-0", "cpu comes in 1 to"),
    ],
)
def test_others_are_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as error:
        parse_topology(text)
    assert "\n" not in str(error.value)


def test_a_missing_compiler_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topologies, "find_libtpu", lambda: None)
    with pytest.raises(UsageError, match=r"v5e-4: the compiler for TPUs .*make libtpu"):
        Topology("v5e", 4).make_devices()
    monkeypatch.setattr(topologies, "has_cuda", lambda: False)
    with pytest.raises(UsageError, match=r"h100-8: the compiler for GPUs .*cuda12"):
        Topology("h100", 8).make_devices()


def test_the_compiler_is_found_where_it_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "libtpu.so"
    library.touch()
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(library))
    assert topologies.find_libtpu() == library


@needs_libtpu
@pytest.mark.parametrize("kind", TPUS)
def test_every_mesh_of_every_slice_can_be_arranged(kind: str) -> None:
    meshes = Counter[int]()
    for chips in sorted({1, *ACCELERATORS[kind].slices}):
        devices = Topology(kind, chips).make_devices()
        assert len(devices) == chips
        powers = [1 << power for power in range(9)]
        for sizes in itertools.product(powers, repeat=3):
            rest, left_over = divmod(chips, sizes[0] * sizes[1] * sizes[2])
            if left_over or rest == 0:
                continue
            config = MeshConfig(*sizes, rest)
            mesh = make_mesh(
                config, seeds=256, batch_size=256, width=256, devices=devices
            )
            assert mesh.devices.shape == (*sizes, rest)
            assert len({device.id for device in mesh.devices.flat}) == chips
            meshes[chips] += 1
    # 256 = 2^8 is shared out over four axes in (8 + 3 over 3) ways.
    assert meshes[256] == 165
    assert meshes[1] == 1
