import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.store.moments import Moments

# float64 sums of a few thousand values, in any order.
RTOL = 1e-10


def assert_close(found, values):
    flat = values.reshape(len(values), -1).astype(np.longdouble)
    result = found.to_statistics()
    assert result.count == len(values)
    np.testing.assert_allclose(result.mean, flat.mean(0), rtol=RTOL, atol=1e-12)
    np.testing.assert_allclose(result.std, flat.std(0), rtol=RTOL, atol=1e-12)
    np.testing.assert_array_equal(result.minimum, flat.min(0))
    np.testing.assert_array_equal(result.maximum, flat.max(0))


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64", "bool"])
def test_moments_of_a_block_of_several_pieces(dtype):
    random = np.random.default_rng(0)
    values = random.integers(0, 2, (9001, 3)).astype(dtype)
    assert_close(Moments.of(values), values)


def test_variance_survives_a_large_mean():
    values = 1e6 + np.random.default_rng(0).normal(size=(5000, 2))
    # The textbook form has lost six digits of it.
    naive = (values**2).mean(0) - values.mean(0) ** 2
    assert np.abs(naive / values.var(0) - 1).max() > 1e-6
    assert_close(Moments.of(values), values)


@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=24),
    st.lists(st.integers(1, 23), max_size=3),
)
def test_any_grouping_and_order_agree(drawn, cuts):
    values = np.array(drawn, np.float32)[:, None]
    blocks = [b for b in np.split(values, sorted(cuts)) if len(b)]
    moments = [Moments.of(block) for block in blocks]
    for order in (moments, moments[::-1]):
        assert_close(functools.reduce(Moments.merge, order), values)


def test_statistics_of_a_manifest_merge_like_the_moments_they_came_from():
    random = np.random.default_rng(0)
    a, b = random.normal(size=(7, 2)), random.normal(3.0, 2.0, size=(11, 2))
    read = [Moments.from_statistics(Moments.of(v).to_statistics()) for v in (a, b)]
    assert_close(read[0].merge(read[1]), np.concatenate([a, b]))
