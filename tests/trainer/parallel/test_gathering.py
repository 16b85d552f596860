"""Gradients that go back to their parts in stages."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from tests.topologies import needs_libtpu
from trainer.costs.topologies import parse_topology
from trainer.parallel.gathering import Groups, gather, scatter_stages
from trainer.parallel.mesh import make_mesh
from trainer.parallel.mesh_shape import DATA, FSDP, MeshConfig

# Eight places as two rows of four: across them first, then along.
ROWS = (((0, 4), (1, 5), (2, 6), (3, 7)), ((0, 1, 2, 3), (4, 5, 6, 7)))


@pytest.mark.parametrize("axis", [0, 1])
def test_stages_give_each_its_part_of_the_same_sum(axis: int) -> None:
    mesh = make_mesh(MeshConfig(data=1, fsdp=8), seeds=1, batch_size=8)
    assert scatter_stages(mesh) == (None,)  # These are no TPUs.
    spec = PartitionSpec(*(FSDP if each == axis else None for each in range(2)))
    values = jax.random.normal(jax.random.key(0), (16, 16))
    rows = jax.random.normal(jax.random.key(1), (8, 16))

    def loss(stages: tuple[Groups, ...], kernel: jax.Array) -> jax.Array:
        @partial(
            jax.shard_map,
            mesh=mesh,
            in_specs=(spec, PartitionSpec((DATA, FSDP))),
            out_specs=PartitionSpec((DATA, FSDP)),
        )
        def losses(part: jax.Array, row: jax.Array) -> jax.Array:
            whole = gather(jax.lax.pcast(part, (DATA,), to="varying"), axis, stages)
            return jnp.sum(jnp.tanh(row @ whole), axis=1)

        return jnp.sum(losses(kernel, rows))

    expected = jax.grad(lambda kernel: jnp.sum(jnp.tanh(rows @ kernel)))(values)
    at_once, staged = (
        jax.jit(jax.grad(partial(loss, stages)))(values) for stages in ((None,), ROWS)
    )
    np.testing.assert_allclose(at_once, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(staged, expected, rtol=1e-5, atol=1e-6)


@needs_libtpu
@pytest.mark.parametrize(
    ("topology", "sizes", "expected"),
    [
        ("v5e-16", {"fsdp": 16}, [4, 4]),
        ("v6e-256", {"fsdp": 256}, [16, 16]),
        ("v5p-16", {"fsdp": 16}, [2, 2, 4]),
        ("v4-128", {"fsdp": 128}, [4, 4, 8]),
        # Over these libtpu scatters at once.
        ("v5e-8", {"fsdp": 8}, None),
        ("v5e-16", {"data": 4, "fsdp": 4}, None),
        ("v5p-64", {"data": 4, "fsdp": 16}, None),
        ("v5e-16", {"data": 16}, None),
    ],
)
def test_all_of_a_slice_goes_direction_after_direction(
    topology: str, sizes: dict[str, int], expected: list[int] | None
) -> None:
    devices = parse_topology(topology).make_devices()
    config = MeshConfig(**{"data": 1} | sizes)
    mesh = make_mesh(config, seeds=1, batch_size=256, devices=devices)
    stages = scatter_stages(mesh)
    if expected is None:
        assert stages == (None,)
        return
    line = mesh.devices[0, 0, :, 0]
    held = np.zeros(len(line), int)  # First of the parts that each has still to give.
    left = len(line)
    for groups, size in zip(stages, expected, strict=True):
        assert groups is not None
        assert sorted(sum(groups, ())) == list(range(len(line)))
        left //= size
        for group in groups:
            assert len(group) == size
            coords = np.array([line[place].coords for place in group])
            assert (np.ptp(coords, axis=0) > 0).sum() == 1
            held[list(group)] += left * np.arange(size)
    # Each ends with its own.
    assert held.tolist() == list(range(len(line)))
    assert math.prod(expected) == len(line)
