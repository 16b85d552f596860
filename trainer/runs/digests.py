"""Digests of arrays, equal however the arrays lie on devices.

A digest is the sum over all numbers of an array of their bits times a weight of their
place, modulo 2**32. Sums of integers are exact in any order, so that every mesh, and
every number of processes, comes to the same one. Weights are odd: a single flipped bit
always changes the sum. They are scrambled: blocks that have changed places or were
lost change it but for one case in 2**32.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Of MurmurHash3's finaliser.
_MULTIPLIERS = (0x85EBCA6B, 0xC2B2AE35)


def digest_arrays(tree: Any) -> dict[str, str]:
    """Digests of the arrays of a tree, computed where they lie.

    All processes that hold parts of the arrays must call this.

    Args:
        tree: Arrays of numbers of 1, 2 or 4 bytes; other leaves are left out.

    Returns:
        Eight hexadecimal digits, by path as of ``name_leaves``.
    """
    arrays = {
        name: leaf
        for name, leaf in name_leaves(tree).items()
        if isinstance(leaf, jax.Array)
    }
    # One program for all: many that talk to each other at once may wait for ever.
    found = _digests(list(arrays.values()))
    # A scalar is whole on every device.
    return {
        name: f"{int(np.asarray(each.addressable_data(0))):08x}"
        for name, each in zip(arrays, found, strict=True)
    }


def name_leaves(tree: Any) -> dict[str, Any]:
    """Leaves of a tree by path, such as ``value/hidden_0/kernel``."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


@jax.jit
def _digests(arrays: list[jax.Array]) -> list[jax.Array]:
    return [_digest(each) for each in arrays]


@jax.jit  # Within the other: lowered once a shape.
def _digest(values: jax.Array) -> jax.Array:
    size = values.dtype.itemsize
    words = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[size]
    if values.dtype == jnp.bool:
        values = values.astype(jnp.uint8)
    bits = jax.lax.bitcast_convert_type(values, words).astype(jnp.uint32)
    return jnp.sum(bits * _weights(values.shape), dtype=jnp.uint32)


def _weights(shape: tuple[int, ...]) -> jax.Array:
    """Odd numbers by the place in an array, in C order: ``u32[shape]``."""
    place = jnp.zeros(shape, jnp.uint32)
    step = 1
    for axis in reversed(range(len(shape))):
        along = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        place += along * np.uint32(step % (1 << 32))
        step *= shape[axis]
    for multiplier in _MULTIPLIERS:
        place = (place ^ (place >> 16)) * np.uint32(multiplier)
    return (place ^ (place >> 16)) | 1
