"""Flow matching along straight paths, and its Euler sampler, shared by all agents.

A field ``v(x, t)`` carries noise at ``t = 0`` to data at ``t = 1``.

Dimensions: B batch, D dimension of a sample.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

# (x f32[B, D], t f32[B, 1]) -> velocity f32[B, D]
Field = Callable[[jax.Array, jax.Array], jax.Array]


def matching_error(field: Field, data: jax.Array, key: jax.Array) -> jax.Array:
    """Computes a field's squared error at a random point of a random straight path.

    ``x0 ~ N(0, I)``, ``t ~ U[0, 1]``, ``x_t = (1 - t) x0 + t x1``; the velocity of
    that path is ``x1 - x0``.

    Args:
        field: The velocity field; gradients flow to the parameters it closes over.
        data: ``f32[B, D]``, samples ``x1``.
        key: PRNG key of noise and times.

    Returns:
        ``f32[B, D]``, squared error of each component. The papers' squared norm is the
        sum over D; published code of the baselines takes the mean.

    References:
        Lipman et al. (2023), Flow Matching for Generative Modeling, with the
        optimal-transport path.
    """
    noise_key, time_key = jax.random.split(key)
    noise = jax.random.normal(noise_key, data.shape, data.dtype)
    # One time for all components: they are one point of one path.
    time = jax.random.uniform(time_key, (*data.shape[:-1], 1), data.dtype)
    return path_error(field, noise, data, time)


def path_error(
    field: Field, noise: jax.Array, data: jax.Array, time: jax.Array
) -> jax.Array:
    """Computes a field's squared error at a given point of a straight path.

    Args:
        field: The velocity field; gradients flow to the parameters it closes over.
        noise: ``f32[B, D]``, starts of the paths, of any distribution.
        data: ``f32[B, D]``, ends of the paths.
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
        end: Time to stop at, ``f32[B, 1]``, or a number for all samples. An earlier
            end makes the steps smaller, not fewer.
        bounds: Interval that samples are clipped to after every step; None for no
            clipping.

    Returns:
        ``f32[B, D]``, samples at ``t = end``.

    Raises:
        ValueError: If ``steps`` is below 1.
    """
    if steps < 1:
        raise ValueError(
            f"flow.integrate: expected at least one step, got {steps}; check the "
            "agent's flow_steps"
        )

    def step(index: jax.Array, x: jax.Array) -> jax.Array:
        # The time is computed and not looked up in an array: a TPU would fetch the
        # entry from its memory, which takes longer than some of a step's kernels.
        share = index.astype(x.dtype) / steps
        time = jnp.full((*x.shape[:-1], 1), share, x.dtype) * end
        x = x + field(x, time) * end / steps
        return x if bounds is None else jnp.clip(x, *bounds)

    # The loop is not unrolled: ten copies of the step would save 59 of some 700 kernels
    # of an update, and take three more seconds to compile. Whether that pays was not
    # timed on a GPU (tests/benchmarks/README.md).
    samples: jax.Array = jax.lax.fori_loop(0, steps, step, noise)
    return samples
