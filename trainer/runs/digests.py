"""Digests of arrays that do not depend on how the arrays lie on devices.

Orbax has no checksum for the values of arrays, and a digest of files would have to read
back what was just written. These digests are computed on the devices instead.

A digest is a sum over all elements of an array, modulo 2**32: each element's bits times
a weight of the element's place. Sums of integers are exact in any order, so that every
mesh and every number of processes gives the same digest. Weights are odd, so that a
single flipped bit always changes the sum. They are scrambled, so that blocks that were
exchanged or lost change it but for one case in 2**32.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Multipliers of the finaliser of MurmurHash3.
_MULTIPLIERS = (0x85EBCA6B, 0xC2B2AE35)


def digest_arrays(tree: Any) -> dict[str, str]:
    """Computes the digests of the arrays of a tree, on the devices that hold them.

    All processes that hold parts of the arrays must call this.

    Args:
        tree: Tree of arrays whose elements take 1, 2 or 4 bytes; other leaves are left
            out.

    Returns:
        Eight hexadecimal digits for each array, by its path as in ``name_leaves``.
    """
    arrays = {
        name: leaf
        for name, leaf in name_leaves(tree).items()
        if isinstance(leaf, jax.Array)
    }
    # One program for all arrays: several programs with collectives, started in another
    # order by each process, would wait for each other for ever.
    digests = _digest_all(list(arrays.values()))
    # A digest is a scalar, which is whole on every device.
    return {
        name: f"{int(np.asarray(digest.addressable_data(0))):08x}"
        for name, digest in zip(arrays, digests, strict=True)
    }


def name_leaves(tree: Any) -> dict[str, Any]:
    """Collects the leaves of a tree by path, such as ``value/hidden_0/kernel``."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


@jax.jit
def _digest_all(arrays: list[jax.Array]) -> list[jax.Array]:
    return [_digest(array) for array in arrays]


# Compiled within the other, so that it is lowered once for all arrays of one shape.
@jax.jit
def _digest(values: jax.Array) -> jax.Array:
    size = values.dtype.itemsize
    words = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[size]
    if values.dtype == jnp.bool:
        values = values.astype(jnp.uint8)
    bits = jax.lax.bitcast_convert_type(values, words).astype(jnp.uint32)
    return jnp.sum(bits * _weights(values.shape), dtype=jnp.uint32)


def _weights(shape: tuple[int, ...]) -> jax.Array:
    """Computes odd weights by the place in an array, in C order: ``u32[shape]``."""
    # From an iota of each axis, which every device computes for its own part; a weight
    # array that is passed in would have to be sent.
    place = jnp.zeros(shape, jnp.uint32)
    step = 1
    for axis in reversed(range(len(shape))):
        along = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        place += along * np.uint32(step % (1 << 32))
        step *= shape[axis]
    for multiplier in _MULTIPLIERS:
        place = (place ^ (place >> 16)) * np.uint32(multiplier)
    return (place ^ (place >> 16)) | 1
