"""Compares the spaces of an environment with the observations and actions of a store.

Both sides are described as rows of numbers with bounds. This module reads the
attributes of Gymnasium's spaces without importing Gymnasium, so that stores can be
described where it is not installed.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.domains.observations import describe
from pipeline.store import schema
from pipeline.store.action_scale import ActionScale
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.manifest import DatasetManifest

# Prefix in the unit of a field that was flattened from a dictionary; the order of the
# entries follows.
LAID_OUT = "side by side: "
# Data may exceed the bounds by this share of the distance between them without a
# warning.
_SLACK = 0.05
# Difference between the bounds of a policy's actions and the environment's that needs
# no warning, as a share of their range: bounds that were read off data stay a little
# within the environment's own.
_REACH_SLACK = 0.05
_WHOLE = ("int", "uint", "bool")


@dataclass(frozen=True)
class Space:
    """Rows of numbers: a space of an environment, or a field of a store.

    Attributes:
        dtype: NumPy name of an element's type; empty if unknown.
        size: Numbers in a row.
        layout: Entries of a flattened dictionary in order; empty for an array.
        low: ``[size]``, lower bound of an environment, or least value in a store;
            infinite if there is no bound.
        high: ``[size]``, upper bound or largest value.
    """

    dtype: str
    size: int
    layout: str
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class Spaces:
    """The observations and actions of an agent.

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
        The spaces; dictionaries of observations are flattened as in stores.

    Raises:
        UsageError: If the environment has no spaces, its observations are not numeric,
            or its actions are not continuous.
    """
    # Gymnasium's wrappers raise AttributeError where the wrapped environment lacks an
    # attribute, which getattr with a default catches.
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
            f"expected an environment of continuous actions [A], got {action}; name an "
            "environment with an action_space Box of one axis"
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
    """Describes the observations of an environment as one row.

    Args:
        space: A space of ``gymnasium.spaces``.

    Returns:
        The row; a dictionary is flattened in the order of names, as in stores.

    Raises:
        UsageError: If the space is not numeric.
    """
    leaves = dict(_leaves(space))
    columns = {name: np.empty((0, *_shape(leaf))) for name, leaf in leaves.items()}
    bounds = [_bounds(leaves[name]) for name in sorted(leaves)]
    kinds = [getattr(leaf, "dtype", None) for leaf in leaves.values()]
    low, high = (np.concatenate([pair[end] for pair in bounds]) for end in (0, 1))
    return Space(
        dtype="" if any(k is None for k in kinds) else np.result_type(*kinds).name,
        size=len(low),
        layout="" if "" in leaves else describe(columns),
        low=tuple(low.tolist()),
        high=tuple(high.tolist()),
    )


def describe_store(manifest: DatasetManifest) -> Spaces:
    """Describes the observations and actions of a store, with the ranges of its data.

    Args:
        manifest: Manifest of the store.

    Returns:
        Observations, and actions in the units of the environment.
    """
    spaces = {}
    for name in ("observations", "actions"):
        field, known = manifest.fields[name], manifest.statistics[name]
        size = math.prod(field.shape)
        # Statistics of images are per channel: one range then holds for all pixels.
        ends = [known.minimum, known.maximum]
        if len(known.minimum) != size:
            ends = [(min(known.minimum),) * size, (max(known.maximum),) * size]
        if name == "actions" and manifest.action_scale is not None:
            ends = [_scale_back(manifest.action_scale, end) for end in ends]
        laid_out = field.unit.startswith(LAID_OUT)
        spaces[name] = Space(
            dtype=field.dtype,
            size=size,
            layout=field.unit.removeprefix(LAID_OUT) if laid_out else "",
            low=tuple(ends[0]),
            high=tuple(ends[1]),
        )
    return Spaces(spaces["observations"], spaces["actions"])


def _scale_back(scale: ActionScale, actions: tuple[float, ...]) -> tuple[float, ...]:
    """Scales one stored action back to the units of the environment."""
    given = scale.from_unit(np.asarray(actions))
    # Scaling has rounded. A made-up action 0 has to be 0 again, because
    # `_find_outside` knows it by that.
    rounding = schema.ACTION_TOLERANCE * (np.asarray(scale.high) - scale.low)
    return tuple(np.where(np.abs(given) < rounding, 0.0, given).tolist())


def check_spaces(data: Spaces, offered: Spaces, *, environment: str) -> dict[str, str]:
    """Refuses an environment that the data cannot come from.

    Args:
        data: Spaces of a store, or of the data that a run was trained on.
        offered: Spaces of the environment.
        environment: Id of the environment, for the messages.

    Returns:
        Warnings for a person to judge, under ``"observation"`` and ``"action"``.

    Raises:
        DataFormatError: If the two differ in size, in the order of a flattened
            dictionary or in kind of number, or if data exceed the environment's bounds
            by more than the distance between the bounds.
    """
    warnings = {}
    for name in ("observation", "action"):
        mine, theirs = getattr(data, name), getattr(offered, name)
        if (problem := _find_mismatch(mine, theirs)) is not None:
            raise DataFormatError(
                f"{environment}: expected {name}s of {problem[0]}, as in the data, got "
                f"{problem[1]}; name the environment that the data are of, or one that "
                "is wrapped to be like it"
            )
        outside, far = _find_outside(mine, theirs, padded=name == "action")
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
        warnings[name] = text
    return warnings


def check_store(
    manifest: DatasetManifest, offered: Spaces, *, environment: str
) -> tuple[str, ...]:
    """Refuses an environment that a store's data cannot come from.

    Args:
        manifest: Manifest of the store.
        offered: Spaces of the environment.
        environment: Id of the environment, for the messages.

    Returns:
        Warnings for a person to judge.

    Raises:
        DataFormatError: If the spaces differ, see ``check_spaces``.
    """
    warnings = check_spaces(describe_store(manifest), offered, environment=environment)
    reach = describe_reach(
        manifest.action_scale, offered.action, environment=environment
    )
    # That the data exceed the environment's bounds says more than what policies reach.
    if reach:
        warnings.setdefault("action", reach)
    return tuple(warnings.values())


def describe_reach(
    scale: ActionScale | None, offered: Space, *, environment: str
) -> str:
    """Describes actions that only policies or only the environment can reach.

    Args:
        scale: Scale of the store's actions; None if policies act in [-1, 1].
        offered: Actions of the environment.
        environment: Id of the environment, for the text.

    Returns:
        A warning for a person to judge; empty if both reach the same actions.
    """
    ones = np.ones(offered.size)
    low, high = (-ones, ones) if scale is None else (scale.low, scale.high)
    low, high = np.asarray(low), np.asarray(high)
    offered_low, offered_high = np.asarray(offered.low), np.asarray(offered.high)
    slack = _REACH_SLACK * (high - low)
    clipped = (low < offered_low - slack) | (high > offered_high + slack)
    # Environments without bounds on an action say infinity, which nothing can reach.
    short = np.isfinite(offered_high - offered_low) & (
        high - low < (1 - _REACH_SLACK) * (offered_high - offered_low)
    )
    if not (clipped | short).any():
        return ""
    at = int((clipped | short).argmax())
    consequence = (
        "actions outside are clipped" if clipped[at] else "they reach no others"
    )
    return (
        f"{environment} takes actions[{at}] from {offered_low[at]:g} to "
        f"{offered_high[at]:g}, and policies trained on these data act from "
        f"{low[at]:g} to {high[at]:g}: {consequence}; if the data were recorded so, "
        "all is well, else shard them again with "
        f"--action-bounds {offered_low[at]:g} {offered_high[at]:g}"
    )


def _find_mismatch(data: Space, offered: Space) -> tuple[str, str] | None:
    """Describes both spaces if they cannot be of one kind, else returns None."""
    if data.size != offered.size:
        return _show_size(data), _show_size(offered)
    if data.layout and data.layout != offered.layout:
        return data.layout, offered.layout or "an array"
    if data.dtype.startswith(_WHOLE) and offered.dtype.startswith("float"):
        return data.dtype, offered.dtype
    return None


def _find_outside(
    data: Space, offered: Space, *, padded: bool
) -> tuple[int | None, bool]:
    """Finds a component of the data outside the bounds.

    Args:
        data: Space of the data.
        offered: Space of the environment.
        padded: Whether an end of 0 may not be of the data.

    Returns:
        Index of the component, or None; and whether it is certainly further outside
        than the bounds are apart.
    """
    low, high = np.asarray(offered.low), np.asarray(offered.high)
    both = np.isfinite(low) & np.isfinite(high)
    # With a single bound there is no width, so that 1 stands for it and nothing counts
    # as far.
    width = np.ones_like(low)
    np.subtract(high, low, out=width, where=both)
    width = np.maximum(width, 1e-6)
    ends = np.asarray(data.low), np.asarray(data.high)
    beyond = np.array([low - ends[0], ends[1] - high])
    outside = beyond.max(axis=0) > _SLACK * width
    # Statistics count the made-up action 0 of an episode's added last row if it is
    # within the bounds of stored actions, so that an end of 0 proves nothing.
    certain = ~padded | (np.array(ends) != 0)
    far = both & ((beyond > width) & certain).any(axis=0)
    if far.any():
        return int(far.argmax()), True
    return (int(outside.argmax()), False) if outside.any() else (None, False)


def _show_size(space: Space) -> str:
    """Formats size and layout of a space."""
    numbers = f"{space.size} number{'s' if space.size != 1 else ''}"
    return f"{numbers} ({space.layout})" if space.layout else numbers


def _leaves(space: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the leaf spaces and their paths; a single space has an empty path."""
    inner = getattr(space, "spaces", None)
    if not isinstance(inner, Mapping):
        yield path, space
        return
    for name, subspace in inner.items():
        yield from _leaves(subspace, f"{path}/{name}" if path else name)


def _shape(space: Any) -> tuple[int, ...]:
    """Returns the shape of a numeric space; refuses any other."""
    shape = getattr(space, "shape", None)
    if shape is None:
        raise UsageError(
            f"expected observations that are numbers, or dictionaries of them, got "
            f"{space}; wrap the environment to observe arrays"
        )
    return tuple(shape)


def _bounds(space: Any) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Returns lower and upper bound of every number of a space, ``f64[size]`` each."""
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
    """Returns the NumPy name of a space's dtype; empty if it declares none."""
    dtype = getattr(space, "dtype", None)
    return "" if dtype is None else np.dtype(dtype).name
