"""Losses and small numeric functions that the agents share.

Glossary for all agents: B batch, T time, S observation, A action, E ensemble, K
maximum horizon, h chunk length.
"""

import jax
import jax.numpy as jnp

from trainer.nn.choices import Aggregation


def expectile_loss(difference: jax.Array, *, expectile: float) -> jax.Array:
    """Computes the asymmetric squared error whose minimiser is an expectile.

    The loss is ``|expectile - 1[u < 0]| u^2``: half the squared error at 0.5; above
    0.5, predictions below the target cost more than those above it.

    Args:
        difference: ``f32[...]``, target minus prediction.
        expectile: Expectile in (0, 1).

    Returns:
        ``f32[...]``.

    References:
        Kostrikov et al. (2021), Offline Reinforcement Learning with Implicit
        Q-Learning, eq. 5.
    """
    weight = jnp.where(difference < 0, 1 - expectile, expectile)
    return weight * jnp.square(difference)


def aggregate(values: jax.Array, how: Aggregation) -> jax.Array:
    """Reduces an ensemble ``f32[E, ...]`` to ``f32[...]``, by minimum or mean.

    Raises:
        ValueError: If ``how`` is neither.
    """
    if how == "min":
        # The gradient of `min` divides by the number of entries that equal the minimum.
        # Compilers may compute an entry twice and round it in two ways; then none does,
        # and the gradient is NaN. As an index, the minimum is chosen once.
        index = values.argmin(axis=0)
        smallest = jax.nn.one_hot(index, len(values), axis=0, dtype=bool)
        return jnp.where(smallest, values, 0).sum(axis=0)
    if how == "mean":
        return values.mean(axis=0)
    raise ValueError(
        f"losses.aggregate: expected 'min' or 'mean', got {how!r}; pass one of both"
    )


def per_bin(values: jax.Array, bins: jax.Array, *, size: int) -> jax.Array:
    """Sums values by bin.

    Args:
        values: ``f32[B]``.
        bins: ``i32[B]``, bin of each value, in [0, size).
        size: Number of bins.

    Returns:
        ``f32[size]``.
    """
    # A comparison with every bin, not a scatter: on a GPU a scatter adds in no fixed
    # order, so that sums differ between runs, and takes several kernels.
    in_bin = bins[None] == jnp.arange(size)[:, None]
    return jnp.where(in_bin, values[None], 0).sum(axis=1)
