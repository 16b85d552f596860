"""Digests of arrays: the same wherever they lie, another for any other values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from trainer.runs.digests import digest_arrays

SHAPES = ((), (1,), (7,), (8, 4), (2, 8, 12))
DTYPES = (np.float32, np.int32, np.uint32, np.uint8, np.bool_, jnp.bfloat16)


def drawn(shape: tuple[int, ...], dtype: type, *, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(scale=100, size=shape)
    return np.asarray(values).astype(dtype)


def digest_of(values: np.ndarray) -> str:
    return digest_arrays({"a": jnp.asarray(values)})["a"]


def reference(values: np.ndarray) -> str:
    """The sum of bits times weights, in Python's integers."""
    total = 0
    words = {1: np.uint8, 2: np.uint16, 4: np.uint32}[values.dtype.itemsize]
    for place, bits in enumerate(values.reshape(-1).view(words).tolist()):
        weight = place
        for multiplier in (0x85EBCA6B, 0xC2B2AE35):
            weight = (weight ^ (weight >> 16)) * multiplier % 2**32
        total += bits * ((weight ^ (weight >> 16)) | 1)
    return f"{total % 2**32:08x}"


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_is_the_sum_that_it_says(shape: tuple[int, ...], dtype: type) -> None:
    values = drawn(shape, dtype)
    assert digest_of(values) == reference(values)


@pytest.mark.parametrize(
    "spec",
    [
        PartitionSpec(),
        PartitionSpec("x"),
        PartitionSpec("x", "y"),
        PartitionSpec(None, "y"),
    ],
    ids=str,
)
def test_it_does_not_depend_on_where_the_array_lies(spec: PartitionSpec) -> None:
    values = drawn((8, 4), np.float32)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    placed = jax.device_put(values, NamedSharding(mesh, spec))
    assert digest_arrays([placed]) == {"0": reference(values)}


def test_every_flipped_bit_changes_it() -> None:
    values = drawn((3, 5), np.float32)
    before = digest_of(values)
    for bit in range(8 * values.nbytes):
        spoilt = values.copy()
        spoilt.view(np.uint8).reshape(-1)[bit // 8] ^= np.uint8(1 << bit % 8)
        assert digest_of(spoilt) != before


def test_blocks_that_are_lost_or_have_changed_places_change_it() -> None:
    # Powers of two: few of their bits are set, so that sums of them collide easily.
    values = np.full((4, 1 << 16), 1.0, np.float32)
    values[1], values[2], values[3] = 2.0, 4.0, 0.0
    before = digest_of(values)
    for order in ((1, 0, 2, 3), (0, 2, 1, 3), (3, 1, 2, 0), (2, 1, 0, 3)):
        assert digest_of(values[list(order)]) != before
    lost = values.copy()
    lost[1] = 0.0
    assert digest_of(lost) != before


def test_nan_of_other_bits_and_negative_zero_are_other_values() -> None:
    nan = np.array([0x7FC00000, 0x7FC00001], np.uint32).view(np.float32)
    assert np.isnan(nan).all()
    assert digest_of(nan[:1]) != digest_of(nan[1:])
    assert digest_of(np.float32([0.0])) != digest_of(np.float32([-0.0]))


def test_leaves_are_named_and_what_is_no_array_is_left_out() -> None:
    tree = {"a": {"b": jnp.zeros(2)}, "c": (jnp.ones(()), ...)}
    assert digest_arrays(tree) == {
        "a/b": "00000000",
        "c/0": reference(np.ones((), np.float32)),
    }
