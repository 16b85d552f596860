"""Losses and samples written again as NumPy loops in float64, to compare with."""

from typing import Any

import numpy as np

Params = dict[str, Any]


def mlp(params: Params, *inputs: np.ndarray) -> np.ndarray:
    """A multilayer perceptron: Dense, tanh, LayerNorm (epsilon 1e-6), ..., Dense."""
    x = np.concatenate(inputs, axis=-1).astype(np.float64)
    layer = 0
    while f"hidden_{layer}" in params:
        dense, norm = params[f"hidden_{layer}"], params[f"norm_{layer}"]
        x = np.tanh(x @ dense["kernel"] + dense["bias"])
        centred = x - x.mean(axis=-1, keepdims=True)
        x = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-6)
        x = x * norm["scale"] + norm["bias"]
        layer += 1
    return x @ params["output"]["kernel"] + params["output"]["bias"]


def member(params: Params, index: int) -> Params:
    """Parameters of one member of an ensemble."""
    return {
        name: member(value, index) if isinstance(value, dict) else value[index]
        for name, value in params.items()
    }


def window(
    rewards: np.ndarray, masks: np.ndarray, start: int, k: int, discount: float
) -> tuple[np.longdouble, bool]:
    """Return up to a window's first solved row, and whether it has no solved row."""
    total, weight, alive = np.longdouble(0), np.longdouble(1), True
    for row in range(start, start + k):
        total += weight * np.longdouble(rewards[row])
        if masks[row] == 0:
            alive = False
            break
        weight *= np.longdouble(discount)
    return total, alive


def longest_window(masks: np.ndarray, start: int, last: int, most: int) -> int:
    """Steps to the first solved row after the start or ``last``, at most ``most``."""
    for steps in range(1, most + 1):
        if masks[start + steps] == 0 or start + steps == last:
            return steps
    return most


def flow_samples(field: Any, noise: np.ndarray, steps: int) -> np.ndarray:
    """Integrates a field by Euler's method, one step at a time."""
    x = noise
    for step in range(steps):
        x = x + field(x, np.full((len(x), 1), step / steps)) / steps
    return x


def count_parameters(params: Params) -> int:
    """Counts the scalar parameters of nested networks."""
    return sum(
        count_parameters(value) if isinstance(value, dict) else value.size
        for value in params.values()
    )
