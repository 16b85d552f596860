import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.references import flow_samples
from trainer.nn import flow


def test_straight_field_carries_noise_to_the_point() -> None:
    # For one data point p the exact velocity at x, t is (p - x) / (1 - t). Euler's
    # last step starts at t = 0.9 and moves (p - x) / 0.1 * 0.1: it lands on p.
    point = jnp.array([[0.5, -2.0, 3.0]])
    noise = jax.random.normal(jax.random.key(0), (4, 3))

    def field(x: jax.Array, t: jax.Array) -> jax.Array:
        return (jnp.broadcast_to(point, x.shape) - x) / (1 - t)

    samples = flow.integrate(field, noise, steps=10)
    np.testing.assert_allclose(samples, np.repeat(point, 4, axis=0), atol=1e-5)


def test_integrate_equals_a_loop() -> None:
    weights = np.random.default_rng(0).normal(size=(3, 3))
    noise = np.random.default_rng(1).normal(size=(5, 3))

    def field(x, t):
        return x @ weights + t

    with jax.enable_x64(True):
        got = flow.integrate(
            lambda x, t: x @ jnp.asarray(weights) + jnp.broadcast_to(t, x.shape),
            jnp.asarray(noise),
            steps=7,
        )
    np.testing.assert_allclose(got, flow_samples(field, noise, 7), rtol=1e-12)


def test_matching_error_is_zero_for_the_path_velocity_and_one_sample() -> None:
    data = jnp.array([[1.0, 2.0]])
    key = jax.random.key(3)
    noise_key, _ = jax.random.split(key)
    noise = jax.random.normal(noise_key, data.shape)
    error = flow.matching_error(lambda x, t: data - noise, data, key)
    assert error.shape == (1, 2)
    np.testing.assert_allclose(error, 0.0, atol=1e-12)
    assert (flow.matching_error(lambda x, t: x, data, key) > 0).all()


def test_time_is_per_sample_and_inside_the_unit_interval() -> None:
    seen = []

    def field(x: jax.Array, t: jax.Array) -> jax.Array:
        seen.append(t)
        return x

    flow.matching_error(field, jnp.zeros((100, 2)), jax.random.key(0))
    assert seen[0].shape == (100, 1)
    assert len(np.unique(seen[0])) == 100
    assert 0 <= seen[0].min() < 0.1
    assert 0.9 < seen[0].max() < 1


def test_no_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one step, got 0"):
        flow.integrate(lambda x, t: x, jnp.zeros((1, 1)), steps=0)
