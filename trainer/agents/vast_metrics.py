"""What VAST logs of a batch besides its losses."""

import jax
import jax.numpy as jnp

from trainer.agents.base import Metrics
from trainer.data.horizon_windows import HorizonBatch
from trainer.nn import losses


def summarise(
    batch: HorizonBatch,
    horizon: jax.Array,
    segments: jax.Array,
    values: jax.Array,
    critics: jax.Array,
    *,
    max_horizon: int,
    return_max: float,
) -> Metrics:
    """Figures that tell a healthy run from one that feeds on its own estimates.

    Args:
        batch: ``B`` windows.
        horizon: ``f32[B]``, horizons drawn from the stitching policy, in [1, K].
        segments: ``f32[B]``, G of the windows.
        values: ``f32[B]``, V of their first states.
        critics: ``f32[E, B]``, Q of their first rows.
        max_horizon: K.
        return_max: Best return in the data; ``over_estimation`` is the share of V
            above it.

    Returns:
        The figures. Vectors are ``f32[K + 1]``, entry ``j`` for horizon ``j``.
    """
    size = max_horizon + 1
    recorded = batch.horizons.astype(jnp.int32)
    drawn = jnp.round(horizon).astype(jnp.int32)
    error = jnp.abs(segments - batch.returns_k)
    ones = jnp.ones_like(error)
    solved = batch.masks == 0
    return Metrics(
        mean={
            "value": values.mean(),
            "critic": critics.mean(),
            "segment": segments.mean(),
            "segment_error": error.mean(),
            "over_estimation": (values > return_max).mean(),
            "horizon": horizon.mean(),
            "solved": solved.mean(),
        },
        max={
            "value_max": values.max(),
            "critic_max": critics.max(),
            "segment_max": segments.max(),
        },
        total={
            # Divide by the solved rows for the mean V there, which is to be that row's
            # reward; a batch may hold none.
            "solved_rows": jnp.where(solved, ones, 0).sum(),
            "solved_value": jnp.where(solved, values, 0).sum(),
            "windows_by_horizon": losses.per_bin(ones, recorded, size=size),
            # Divide by the windows for the mean error.
            "segment_error_by_horizon": losses.per_bin(error, recorded, size=size),
            "drawn_by_horizon": losses.per_bin(ones, drawn, size=size),
        },
    )
