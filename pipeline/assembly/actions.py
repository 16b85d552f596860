"""Measures the range of an input's actions, and chooses their scale in a store."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.assembly.blocks import cut_blocks
from pipeline.assembly.plan import Inputs
from pipeline.sources.base import Description, Source
from pipeline.store import schema
from pipeline.store.action_scale import ActionScale
from pipeline.store.errors import DataFormatError, UsageError

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ActionRange:
    """The range of the finite actions that are taken in some episodes.

    The last row of an episode has an action that leads nowhere, and that a source may
    have made up.

    Attributes:
        low: ``f64[A]``, smallest value of each component, in the units of the data; inf
            if no such action is finite.
        high: ``f64[A]``, largest value of each component; -inf if none is finite.
        rows: Number of actions, those with NaN or Inf included.
        outside: Number of actions with a component outside the scale's bounds.
    """

    low: Float64
    high: Float64
    rows: int
    outside: int

    @classmethod
    def of(
        cls,
        source: Source,
        description: Description,
        scale: ActionScale | None = None,
    ) -> "ActionRange":
        """Reads all actions of a source.

        Args:
            source: The source.
            description: Description of the input.
            scale: Scale whose bounds ``outside`` is counted by; None for [-1, 1].

        Returns:
            The range of the actions.

        Raises:
            DataFormatError: If the source is damaged.
        """
        (width,) = description.fields[schema.ACTIONS].shape
        low, high = np.full(width, np.inf), np.full(width, -np.inf)
        rows = outside = 0
        for block in source.read(cut_blocks(description.episodes, description.fields)):
            last = np.cumsum(block.lengths) - 1
            actions: npt.NDArray[Any] = np.delete(block.rows[schema.ACTIONS], last, 0)
            finite = actions[np.isfinite(actions).all(axis=1)].astype(np.float64)
            unit = finite if scale is None else scale.to_unit(finite)
            bound = 1 + schema.ACTION_TOLERANCE
            rows += len(actions)
            outside += int((np.abs(unit) > bound).any(axis=1).sum())
            low = np.minimum(low, finite.min(axis=0, initial=np.inf))
            high = np.maximum(high, finite.max(axis=0, initial=-np.inf))
        return cls(low, high, rows, outside)

    def union(self, other: "ActionRange") -> "ActionRange":
        """Combines the ranges of two sets of rows."""
        return ActionRange(
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
            self.rows + other.rows,
            self.outside + other.outside,
        )


def choose_scale(inputs: Inputs, bounds: Sequence[str]) -> ActionScale | None:
    """Chooses how the actions of a new store are scaled.

    Args:
        inputs: Inputs, from `describe_inputs`.
        bounds: Value of ``--action-bounds``: ``data`` for the smallest and largest
            value of each component, for which all inputs are read through; or two
            numbers, low and high of every component; or nothing.

    Returns:
        The scale; None if actions are stored unscaled.

    Raises:
        UsageError: If the bounds are malformed.
        DataFormatError: If an input is damaged, if no action that is taken is finite,
            or if actions of inputs differ in their number of components.
    """
    if not bounds:
        return None
    first = inputs.described[0][2]
    (width,) = first.fields[schema.ACTIONS].shape
    if list(bounds) == ["data"]:
        for _, _, description in inputs.described:
            (other,) = description.fields[schema.ACTIONS].shape
            if other != width:
                raise DataFormatError(
                    f"{description.name}: expected actions of {width} components, as "
                    f"those of {first.name}, got {other}; write these data into a "
                    "store of their own"
                )
        # One scale for all inputs, because all parts of a store share it. An input
        # whose actions are all NaN or Inf decides nothing: its episodes are bad.
        described = (entry[1:] for entry in inputs.described)
        total = reduce(ActionRange.union, itertools.starmap(ActionRange.of, described))
        if not np.isfinite(total.low).all():
            raise DataFormatError(
                f"{first.name}: expected finite actions before the last rows of "
                f"episodes, here or in another input, got none in {total.rows:,}; "
                "look into the inputs"
            )
        return ActionScale.of_data(total.low, total.high)
    try:
        low, high = map(float, bounds)
    except ValueError as error:
        raise UsageError(
            f"expected --action-bounds data, or LOW HIGH, got {' '.join(bounds)}; "
            "correct the option"
        ) from error
    return ActionScale((low,) * width, (high,) * width)
