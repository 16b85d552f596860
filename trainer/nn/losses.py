"""Losses and small numeric pieces the agents share.

Glossary for all agents: B batch, T time, S observation, A action, E ensemble, K
maximum horizon, h chunk length.
"""

import jax
import jax.numpy as jnp

from trainer.nn.choices import Aggregation


def expectile_loss(difference: jax.Array, *, expectile: float) -> jax.Array:
    """Asymmetric squared error whose minimiser is an expectile.

    ``|expectile - 1[u < 0]| u^2``: at 0.5 half the squared error; above it,
    predictions below the target cost more.

    Args:
        difference: ``f32[...]``, target minus prediction.
        expectile: In (0, 1).

    Returns:
        ``f32[...]``.

    References:
        Kostrikov et al. (2021), Offline Reinforcement Learning with Implicit
        Q-Learning, eq. 5.
    """
    weight = jnp.where(difference < 0, 1 - expectile, expectile)
    return weight * jnp.square(difference)


def aggregate(values: jax.Array, how: Aggregation) -> jax.Array:
    """Reduces an ensemble, ``f32[E, ...]`` to ``f32[...]``, by minimum or mean."""
    if how == "min":
        return values.min(axis=0)
    if how == "mean":
        return values.mean(axis=0)
    raise ValueError(f"expected aggregation 'min' or 'mean', got {how!r}")


def per_bin(values: jax.Array, bins: jax.Array, *, size: int) -> jax.Array:
    """Sums values by bin: ``f32[B]`` and ``i32[B]`` in [0, size) to ``f32[size]``."""
    # A scatter would add in any order on a GPU, and takes it several kernels.
    held = bins[None] == jnp.arange(size)[:, None]
    return jnp.where(held, values[None], 0).sum(axis=1)
