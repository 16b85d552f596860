"""Copies for saving: equal, laid out alike, and not in the way of donation."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainer.runs.snapshot import Snapshot

Tree = dict[str, jax.Array]


@partial(jax.jit, donate_argnums=0)
def negate(tree: Tree) -> Tree:
    return jax.tree.map(jnp.negative, tree)


def addresses(tree: Tree) -> list[int]:
    """Where the parts of all arrays lie."""
    return [
        part.data.unsafe_buffer_pointer()
        for leaf in jax.tree.leaves(tree)
        for part in leaf.addressable_shards
    ]


@pytest.fixture
def tree() -> Tree:
    """One array in parts, one of which every device has a copy, one on a single one."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "fsdp"))
    rng = np.random.default_rng(0)
    placed = {
        "parts": NamedSharding(mesh, PartitionSpec("fsdp", "data")),
        "copies": NamedSharding(mesh, PartitionSpec()),
        "whole": jax.sharding.SingleDeviceSharding(jax.devices()[3]),
    }
    made = {
        name: jax.device_put(rng.standard_normal((64, 32), np.float32), sharding)
        for name, sharding in placed.items()
    }
    return made | {"step": jnp.asarray(7, jnp.int32)}


def test_a_copy_is_equal_and_laid_out_alike(tree: Tree) -> None:
    taken = Snapshot(tree).take(tree)
    assert taken.keys() == tree.keys()
    for name, leaf in tree.items():
        assert taken[name].sharding == leaf.sharding
        assert taken[name].dtype == leaf.dtype
        np.testing.assert_array_equal(taken[name], leaf)
    assert not set(addresses(taken)) & set(addresses(tree))


def test_what_is_copied_is_rewritten_in_place(tree: Tree) -> None:
    split = {"parts": tree["parts"], "copies": tree["copies"]}
    before = addresses(split)
    held = [np.asarray(part.data) for part in split["parts"].addressable_shards]
    elsewhere = negate(split)
    assert not set(addresses({"parts": elsewhere["parts"]})) & set(before)
    del held

    before = addresses(elsewhere)
    values = np.array(elsewhere["parts"])
    taken = Snapshot(elsewhere).take(elsewhere)
    after = negate(elsewhere)
    assert sorted(addresses(after)) == sorted(before)
    np.testing.assert_array_equal(taken["parts"], values)
    np.testing.assert_array_equal(after["parts"], -values)


def test_the_next_copy_takes_the_memory_of_the_last(tree: Tree) -> None:
    snapshot = Snapshot(tree)
    first = addresses(snapshot.take(tree))
    changed = jax.tree.map(lambda leaf: leaf + 1, tree)
    second = snapshot.take(changed)
    assert addresses(second) == first
    np.testing.assert_array_equal(second["parts"], changed["parts"])
