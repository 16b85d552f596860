"""The metrics that VAST logs of a batch besides its losses."""

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
    """Computes metrics that tell a healthy run from one that over-estimates values.

    Args:
        batch: ``B`` windows.
        horizon: ``f32[B]``, horizons drawn from the stitching policy, in [1, K].
        segments: ``f32[B]``, G of the windows.
        values: ``f32[B]``, V of the windows' first states.
        critics: ``f32[E, B]``, Q of the windows' first rows.
        max_horizon: Maximum horizon K.
        return_max: Largest return in the data; ``over_estimation`` is the share of V
            above it.

    Returns:
        The metrics. Vectors are ``f32[K + 1]``, with entry ``j`` for horizon ``j``.
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
            # Summed, since a batch may hold no solved row: their quotient is the mean
            # V of solved states, which should be the reward there and no more.
            "solved_rows": jnp.where(solved, ones, 0).sum(),
            "solved_value": jnp.where(solved, values, 0).sum(),
            "windows_by_horizon": losses.per_bin(ones, recorded, size=size),
            # Divided by `windows_by_horizon`, this is the mean error of a horizon.
            "segment_error_by_horizon": losses.per_bin(error, recorded, size=size),
            "drawn_by_horizon": losses.per_bin(ones, drawn, size=size),
        },
    )
