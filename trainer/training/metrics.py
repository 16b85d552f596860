"""How figures of calls are combined, what of them ends a run, and their records.

Waiting for the devices happens here only, at log points.
"""

import jax
import numpy as np

from trainer.agents.base import Metrics
from trainer.runs.history import VALIDATION
from trainer.tracking.tracker import Json

# What agents log of their values, in the units of returns.
_VALUES = ("critic", "value")


def combine(calls: list[Metrics]) -> Metrics:
    """Brings the metrics of several calls to the host and reduces them.

    Args:
        calls: Metrics ``[Q]`` of each call, on the devices.

    Returns:
        NumPy metrics, ``[Q]`` or ``[Q, K + 1]`` each.
    """
    fetched = jax.device_get(calls)
    stacked: Metrics = jax.tree.map(lambda *leaves: np.stack(leaves), *fetched)
    return stacked.reduce()


def nonfinite(metrics: Metrics) -> list[str]:
    """Names of averaged figures that are NaN or infinite for some seed."""
    return sorted(
        name for name, values in metrics.mean.items() if not np.isfinite(values).all()
    )


def over_estimated(metrics: Metrics, *, limit: float) -> dict[str, float]:
    """Averaged values above a limit for some seed: the highest, by name."""
    highest = {
        name: float(metrics.mean[name].max())
        for name in _VALUES
        if name in metrics.mean
    }
    return {name: value for name, value in highest.items() if value > limit}


def records(
    metrics: Metrics,
    *,
    seeds: tuple[int, ...],
    facts: Json,
    held_out: Metrics | None = None,
) -> list[Json]:
    """One JSON-ready record per seed.

    Args:
        metrics: NumPy metrics, ``[Q]`` or ``[Q, K + 1]`` each.
        seeds: Number of each of the Q seeds.
        facts: What all seeds share: step, times, rates.
        held_out: The same of held-out windows, if they were measured.

    Returns:
        Records of plain numbers and lists.
    """
    merged = {**metrics.mean, **metrics.max, **metrics.total}
    if held_out is not None:
        measured = {**held_out.mean, **held_out.max, **held_out.total}
        merged |= {f"{VALIDATION}{name}": value for name, value in measured.items()}
    return [
        {**facts, "seed": seed}
        | {name: np.asarray(values[q]).tolist() for name, values in merged.items()}
        for q, seed in enumerate(seeds)
    ]
