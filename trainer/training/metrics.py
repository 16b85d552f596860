"""Metrics of several calls: their reduction, their divergence and their records.

Only ``combine`` waits for the devices, and only log points call it.
"""

import jax
import numpy as np

from trainer.agents.base import Metrics
from trainer.runs.history import VALIDATION
from trainer.tracking.tracker import Json

# Metrics that are values in the units of returns, by the names that agents log.
_VALUES = ("critic", "value")


def combine(calls: list[Metrics]) -> Metrics:
    """Brings the metrics of several calls to the host and reduces them.

    Args:
        calls: Metrics of each call on the devices, arrays ``[Q, ...]``.

    Returns:
        Metrics as NumPy arrays ``[Q]`` or ``[Q, K + 1]``.
    """
    # All calls are fetched at once: each transfer would wait for the devices.
    fetched = jax.device_get(calls)
    stacked: Metrics = jax.tree.map(lambda *leaves: np.stack(leaves), *fetched)
    return stacked.reduce()


def find_nonfinite(metrics: Metrics) -> list[str]:
    """Names the averaged metrics that are NaN or infinite for some seed."""
    return sorted(
        name for name, values in metrics.mean.items() if not np.isfinite(values).all()
    )


def find_far_values(
    metrics: Metrics, *, low: float, high: float
) -> tuple[dict[str, float], dict[str, float]]:
    """Finds averaged values outside of two limits.

    Returns:
        By name, the lowest over seeds that is below ``low``, and the highest that is
        above ``high``.
    """
    values = {name: metrics.mean[name] for name in _VALUES if name in metrics.mean}
    lowest = {name: float(of_seeds.min()) for name, of_seeds in values.items()}
    highest = {name: float(of_seeds.max()) for name, of_seeds in values.items()}
    return (
        {name: value for name, value in lowest.items() if value < low},
        {name: value for name, value in highest.items() if value > high},
    )


def make_records(
    metrics: Metrics,
    *,
    seeds: tuple[int, ...],
    point: Json,
    held_out: Metrics | None = None,
) -> list[Json]:
    """Makes a record of each seed, which JSON can hold.

    Args:
        metrics: Metrics as NumPy arrays ``[Q]`` or ``[Q, K + 1]``.
        seeds: The Q training seeds.
        point: Fields of the log point that all seeds share: step, times and rates.
        held_out: Metrics of held-out windows, in the same form; None if they were not
            measured.

    Returns:
        Records of plain numbers and lists.
    """
    merged = {**metrics.mean, **metrics.max, **metrics.total}
    if held_out is not None:
        # Their names are those of training with a prefix, so that charts can put both
        # side by side.
        measured = {**held_out.mean, **held_out.max, **held_out.total}
        merged |= {f"{VALIDATION}{name}": values for name, values in measured.items()}
    return [
        {**point, "seed": seed}
        | {name: np.asarray(values[q]).tolist() for name, values in merged.items()}
        for q, seed in enumerate(seeds)
    ]
