"""Flow matching along straight lines, and its Euler sampler; once for all agents.

A field ``v(x, t)`` carries noise at ``t = 0`` to data at ``t = 1``.

Dimensions: B batch, D dimension of a sample.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

# (x f32[B, D], t f32[B, 1]) -> velocity f32[B, D]
Field = Callable[[jax.Array, jax.Array], jax.Array]


def matching_error(field: Field, data: jax.Array, key: jax.Array) -> jax.Array:
    """Squared error of a field's velocity at a random point of a random straight path.

    ``x0 ~ N(0, I)``, ``t ~ U[0, 1]``, ``x_t = (1 - t) x0 + t x1``; the velocity of
    that path is ``x1 - x0``.

    Args:
        field: The velocity field; gradients flow to what it closes over.
        data: ``f32[B, D]``, samples ``x1``.
        key: PRNG key.

    Returns:
        ``f32[B, D]``, squared error of each component. Sum over D for the squared
        norm of the papers, or average, and weight as you need.

    References:
        Lipman et al. (2023), Flow Matching for Generative Modeling, with the
        optimal-transport path.
    """
    noise_key, time_key = jax.random.split(key)
    noise = jax.random.normal(noise_key, data.shape, data.dtype)
    time = jax.random.uniform(time_key, (*data.shape[:-1], 1), data.dtype)
    return path_error(field, noise, data, time)


def path_error(
    field: Field, noise: jax.Array, data: jax.Array, time: jax.Array
) -> jax.Array:
    """Squared error of a field's velocity at a given point of a straight path.

    Args:
        field: The velocity field; gradients flow to what it closes over.
        noise: ``f32[B, D]``, where the paths start, of any distribution.
        data: ``f32[B, D]``, where they end.
        time: ``f32[B, 1]`` in [0, 1].

    Returns:
        ``f32[B, D]``, squared error of each component.
    """
    point = (1 - time) * noise + time * data
    return jnp.square(field(point, time) - (data - noise))


def integrate(
    field: Field,
    noise: jax.Array,
    *,
    steps: int,
    end: jax.Array | float = 1.0,
    bounds: tuple[float, float] | None = None,
) -> jax.Array:
    """Carries noise to samples with Euler's method in equal steps.

    Args:
        field: The velocity field.
        noise: ``f32[B, D]``, samples at ``t = 0``.
        steps: Number of steps, at least 1.
        end: Time to stop at, ``f32[B, 1]`` or one for all.
        bounds: Interval that samples are clipped to after every step.

    Returns:
        ``f32[B, D]``, samples at ``t = end``.
    """
    if steps < 1:
        raise ValueError(f"expected at least one flow step, got {steps}")

    def step(index: jax.Array, x: jax.Array) -> jax.Array:
        # Computed, not looked up: a TPU fetches an entry of an array from its memory,
        # which takes longer than some of a step's kernels.
        time = index.astype(x.dtype) / steps
        at = jnp.full((*x.shape[:-1], 1), time, x.dtype) * end
        x = x + field(x, at) * end / steps
        return x if bounds is None else jnp.clip(x, *bounds)

    samples: jax.Array = jax.lax.fori_loop(0, steps, step, noise)
    return samples
