"""Observations that are dictionaries, laid out as one row of numbers.

Pure. Data are flattened with it when they are stored and an environment's observations
when it is acted in, so that both have one order: that of the names, nested ones joined
by ``/``.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def flatten(observation: Any) -> Array:
    """One observation as a row.

    Args:
        observation: An array, or a dictionary of observations, nested or not.

    Returns:
        An array as it is; of a dictionary ``[S]``, its arrays laid out one after
        another, by name.

    Example:
        >>> flatten({"goal": [3.0], "at": {"y": [2.0], "x": [1.0]}}).tolist()
        [1.0, 2.0, 3.0]
    """
    if not isinstance(observation, Mapping):
        return np.asarray(observation)
    columns = {name: np.asarray(leaf)[None] for name, leaf in leaves(observation)}
    return join(columns).reshape(-1)


def join(columns: Mapping[str, Array]) -> Array:
    """Rows of several arrays side by side, by name.

    Args:
        columns: ``[n, ...]`` each, at least one.

    Returns:
        ``[n, S]``.
    """
    return np.concatenate(
        [
            values.reshape(len(values), math.prod(values.shape[1:]))
            for _, values in sorted(columns.items())
        ],
        axis=1,
    )


def describe(columns: Mapping[str, Array]) -> str:
    """Says how `join` lays out columns, such as ``"goal[2], observation[10]"``."""
    return ", ".join(
        f"{name}[{math.prod(values.shape[1:])}]"
        for name, values in sorted(columns.items())
    )


def leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of a nested dictionary by their path, such as ``goal/position``."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}{name}/")
        else:
            yield f"{path}{name}", value
