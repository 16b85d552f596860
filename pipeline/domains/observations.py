"""Flattens observations that are dictionaries to rows of numbers.

The pipeline flattens data with these functions when it stores them, and the evaluator
flattens an environment's observations with them. So both have one order of entries: by
name, where names of nested entries are joined by ``/``. All functions are pure.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
# Axes of one image.
_IMAGE_AXES = 3


def flatten(observation: Any) -> Array:
    """Flattens one observation.

    Args:
        observation: An array, or a dictionary of observations, nested or not.

    Returns:
        An array unchanged; for a dictionary ``[S]``, its arrays one after another in
        the order of their names.

    Example:
        >>> flatten({"goal": [3.0], "at": {"y": [2.0], "x": [1.0]}}).tolist()
        [1.0, 2.0, 3.0]
    """
    if not isinstance(observation, Mapping):
        return np.asarray(observation)
    columns = {name: np.asarray(leaf)[None] for name, leaf in leaves(observation)}
    return join(columns).reshape(-1)


def join(columns: Mapping[str, Array]) -> Array:
    """Joins the rows of several arrays side by side, in the order of their names.

    Args:
        columns: Arrays ``[n, ...]`` by name, at least one.

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
    """Describes the order of `join`, such as ``"goal[2], observation[10]"``."""
    return ", ".join(
        f"{name}[{math.prod(values.shape[1:])}]"
        for name, values in sorted(columns.items())
    )


def warn_of_images(columns: Mapping[str, Any]) -> tuple[str, ...]:
    """Warns of images among the entries of a dictionary, which `join` flattens, too.

    Args:
        columns: Arrays ``[n, ...]`` by name.

    Returns:
        One sentence, or none.
    """
    images = [
        f"{name} {list(values.shape[1:])}"
        for name, values in sorted(columns.items())
        if values.ndim > _IMAGE_AXES
    ]
    if not images:
        return ()
    return (
        f"observations hold images, {', '.join(images)}, whose pixels become columns "
        "as other numbers do; the trainer has no networks for images: leave them out "
        "of the data and of the environment",
    )


def leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the leaves of a nested dictionary and their paths: ``goal/position``."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}{name}/")
        else:
            yield f"{path}{name}", value
