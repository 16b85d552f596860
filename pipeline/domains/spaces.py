"""What an environment observes and takes, and what a store holds: whether they agree.

Both sides are described alike, as rows of numbers. Knows nothing of Gymnasium but the
attributes of its spaces, so that a store is described without it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.domains.observations import describe
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.manifest import DatasetManifest

# How the unit of a field says that it was laid out of a dictionary.
LAID_OUT = "side by side: "
# Share of the bounds that data may lie outside of without a word.
_SLACK = 0.05
_WHOLE = ("int", "uint", "bool")


@dataclass(frozen=True)
class Space:
    """Rows of numbers: a space of an environment, or a field of a store.

    Attributes:
        dtype: NumPy name of an element's type; empty if it is not known.
        size: Numbers of a row.
        layout: Of a dictionary, which entries lie side by side in which order; else
            empty.
        low: ``[size]``, least value there can be, or is; infinite if there is none.
        high: ``[size]``, largest.
    """

    dtype: str
    size: int
    layout: str
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Spaces:
    """What an agent observes and how it acts.

    Attributes:
        observation: Rows of observations.
        action: Rows of actions, in the units of the environment.
    """

    observation: Space
    action: Space


def read_spaces(environment: Any) -> Spaces:
    """Reads the spaces of an environment.

    Args:
        environment: A ``gymnasium.Env``.

    Returns:
        Its spaces; dictionaries of observations are laid out as stores have them.

    Raises:
        UsageError: If it has none, its observations are no numbers, or its actions not
            continuous.
    """
    # Gymnasium's wrappers pass on what the environment lacks by raising.
    observation = getattr(environment, "observation_space", None)
    action = getattr(environment, "action_space", None)
    if observation is None or action is None:
        raise UsageError(
            "expected an environment with an observation_space and an action_space of "
            f"gymnasium.spaces, got {observation} and {action}; set both in its "
            "constructor"
        )
    shape = getattr(action, "shape", None)
    if not hasattr(action, "low") or shape is None or len(shape) != 1:
        raise UsageError(
            f"expected an environment of continuous actions [A], got {action}; this "
            "agent acts in no other"
        )
    return Spaces(
        observation=read_observation_space(observation),
        action=Space(
            dtype=_dtype_name(action),
            size=shape[0],
            layout="",
            low=tuple(np.broadcast_to(action.low, shape).tolist()),
            high=tuple(np.broadcast_to(action.high, shape).tolist()),
        ),
    )


def read_observation_space(space: Any) -> Space:
    """Describes what an environment observes, as one row.

    Args:
        space: Of ``gymnasium.spaces``.

    Returns:
        The row; a dictionary is laid out by name, as stores have it.

    Raises:
        UsageError: If there is something else than numbers in it.
    """
    leaves = dict(_leaves(space))
    columns = {name: np.empty((0, *_shape(leaf))) for name, leaf in leaves.items()}
    bounds = [_bounds(leaves[name]) for name in sorted(leaves)]
    kinds = [getattr(leaf, "dtype", None) for leaf in leaves.values()]
    low, high = (np.concatenate([each[end] for each in bounds]) for end in (0, 1))
    return Space(
        dtype="" if any(k is None for k in kinds) else np.result_type(*kinds).name,
        size=len(low),
        layout="" if "" in leaves else describe(columns),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
    )


def describe_store(manifest: DatasetManifest) -> Spaces:
    """Describes what a store holds, with the bounds of its training data.

    Args:
        manifest: Of the store.

    Returns:
        Its observations, and its actions as the environment takes them.
    """
    spaces = {}
    for name in ("observations", "actions"):
        field, known = manifest.fields[name], manifest.statistics[name]
        size = math.prod(field.shape)
        # Of images, statistics are by channel.
        ends = [known.minimum, known.maximum]
        if len(known.minimum) != size:
            ends = [(min(known.minimum),) * size, (max(known.maximum),) * size]
        if name == "actions" and manifest.action_scale is not None:
            scale = manifest.action_scale
            ends = [tuple(scale.from_unit(np.asarray(end)).tolist()) for end in ends]
        laid_out = field.unit.startswith(LAID_OUT)
        spaces[name] = Space(
            dtype=field.dtype,
            size=size,
            layout=field.unit.removeprefix(LAID_OUT) if laid_out else "",
            low=tuple(ends[0]),
            high=tuple(ends[1]),
        )
    return Spaces(spaces["observations"], spaces["actions"])


def check_spaces(data: Spaces, there: Spaces, *, environment: str) -> dict[str, str]:
    """Refuses data that cannot be of an environment.

    Args:
        data: What a store holds, or a run was trained on.
        there: What the environment has.
        environment: Its id, for the messages.

    Returns:
        What looks wrong and a person should judge, by ``"observation"`` and
        ``"action"``.

    Raises:
        DataFormatError: If they differ in size, in how a dictionary is laid out, or in
            kind of number, or if data lie outside the environment's bounds by more than
            the distance between these.
    """
    found = {}
    for name in ("observation", "action"):
        mine, theirs = getattr(data, name), getattr(there, name)
        if (problem := _find_mismatch(mine, theirs)) is not None:
            raise DataFormatError(
                f"{environment}: expected {name}s of {problem[0]}, as in the data, got "
                f"{problem[1]}; name the environment that the data are of, or one that "
                "is wrapped to be like it"
            )
        outside, far = _find_outside(mine, theirs)
        if outside is None:
            continue
        text = (
            f"{name}s[{outside}] of the data go from {mine.low[outside]:g} to "
            f"{mine.high[outside]:g}, and {environment} has bounds of "
            f"{theirs.low[outside]:g} to {theirs.high[outside]:g}"
        )
        if far:
            raise DataFormatError(
                f"{text}; expected data within them, in the same units and order: name "
                "the environment that the data are of, or widen its bounds"
            )
        found[name] = text
    return found


def _find_mismatch(data: Space, there: Space) -> tuple[str, str] | None:
    """What was expected and what is there, if they cannot be of one kind."""
    if data.size != there.size:
        return _show_size(data), _show_size(there)
    if data.layout and data.layout != there.layout:
        return data.layout, there.layout or "an array"
    if data.dtype.startswith(_WHOLE) and there.dtype.startswith("float"):
        return data.dtype, there.dtype
    return None


def _find_outside(data: Space, there: Space) -> tuple[int | None, bool]:
    """A component of the data outside the bounds, and whether it is far outside."""
    low, high = np.asarray(there.low), np.asarray(there.high)
    both = np.isfinite(low) & np.isfinite(high)
    # Of a single bound there is no width to compare with.
    width = np.ones_like(low)
    np.subtract(high, low, out=width, where=both)
    width = np.maximum(width, 1e-6)
    excess = np.maximum(low - np.asarray(data.low), np.asarray(data.high) - high)
    far, outside = both & (excess > width), excess > _SLACK * width
    if far.any():
        return int(far.argmax()), True
    return (int(outside.argmax()), False) if outside.any() else (None, False)


def _show_size(space: Space) -> str:
    numbers = f"{space.size} number{'s' if space.size != 1 else ''}"
    return f"{numbers} ({space.layout})" if space.layout else numbers


def _leaves(space: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Spaces of numbers by their path; of no dictionary by no name."""
    inner = getattr(space, "spaces", None)
    if not isinstance(inner, Mapping):
        yield path, space
        return
    for name, each in inner.items():
        yield from _leaves(each, f"{path}/{name}" if path else name)


def _shape(space: Any) -> tuple[int, ...]:
    shape = getattr(space, "shape", None)
    if shape is None:
        raise UsageError(
            f"expected observations that are numbers, or dictionaries of them, got "
            f"{space}; wrap the environment to observe arrays"
        )
    return tuple(shape)


def _bounds(space: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Least and largest values of a space of numbers, one for each."""
    shape = _shape(space)
    size = math.prod(shape)
    if hasattr(space, "low") and hasattr(space, "high"):
        low, high = space.low, space.high
    elif hasattr(space, "n") and hasattr(space, "start"):  # Discrete.
        low, high = space.start, space.start + space.n - 1
    else:
        low, high = -np.inf, np.inf
    return (
        np.broadcast_to(np.asarray(low, np.float64), shape).reshape(size),
        np.broadcast_to(np.asarray(high, np.float64), shape).reshape(size),
    )


def _dtype_name(space: Any) -> str:
    dtype = getattr(space, "dtype", None)
    return "" if dtype is None else np.dtype(dtype).name
