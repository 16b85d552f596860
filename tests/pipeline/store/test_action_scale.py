import numpy as np
import pytest

from pipeline.store.action_scale import ActionScale
from pipeline.store.errors import UsageError


def test_scaling_there_and_back():
    scale = ActionScale((-2.0, 0.0), (2.0, 10.0))
    actions = np.random.default_rng(0).uniform(scale.low, scale.high, (50, 2))
    unit = scale.to_unit(actions)
    assert unit.dtype == np.float32
    assert np.abs(unit).max() <= 1
    # By hand: 2 (a - low) / (high - low) - 1.
    np.testing.assert_allclose(unit[:, 1], actions[:, 1] / 5 - 1, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scale.from_unit(unit), actions, rtol=1e-5, atol=1e-5)


def test_what_is_within_already_keeps_its_values():
    scale = ActionScale.of_data(np.array([-0.3, -2.0, 7.0]), np.array([0.9, 1.0, 7.0]))
    # The second reaches below -1; the third never changes, and is put in the middle.
    assert scale == ActionScale((-1.0, -2.0, 6.0), (1.0, 1.0, 8.0))
    assert scale.to_unit(np.array([0.9, -2.0, 7.0])).tolist() == [
        np.float32(0.9),
        -1.0,
        0.0,
    ]


@pytest.mark.parametrize(
    ("low", "high"),
    [((1.0,), (1.0,)), ((0.0,), (np.inf,)), ((0.0, 0.0), (1.0,)), ((), ())],
)
def test_bounds_that_are_none_are_refused(low, high):
    with pytest.raises(UsageError, match="expected finite numbers"):
        ActionScale(low, high)
