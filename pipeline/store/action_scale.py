"""The scale of a store's actions: what -1 and 1 mean in the environment's own units.

Pure. Policies act in [-1, 1]; data recorded in other bounds are stored scaled, and
whoever acts scales back.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.store.errors import UsageError

Array = npt.NDArray[Any]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class ActionScale:
    """Bounds that are stored as -1 and 1.

    Attributes:
        low: ``[A]``, in the units of the data, which are the environment's.
        high: ``[A]``, above ``low``.
    """

    __pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}  # noqa: RUF012

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        same = len(self.low) == len(self.high) > 0
        if not same or not all(
            -np.inf < low < high < np.inf
            for low, high in zip(self.low, self.high, strict=True)
        ):
            raise UsageError(
                "expected finite bounds of actions, each low below its high, got "
                f"{list(self.low)} to {list(self.high)}"
            )

    @classmethod
    def of_data(cls, low: Array, high: Array) -> "ActionScale":
        """The scale for data that reach from ``low`` to ``high``, ``f64[A]`` each.

        A component that stays within [-1, 1] keeps its values; one that never changes
        lies in the middle.
        """
        inside = (low >= -1) & (high <= 1)
        low, high = np.where(inside, -1.0, low), np.where(inside, 1.0, high)
        constant = low == high
        low, high = low - constant, high + constant
        return cls(tuple(low.tolist()), tuple(high.tolist()))

    def to_unit(self, actions: Array) -> Float32:
        """Actions of the data ``[..., A]`` as they are stored, ``f32[..., A]``."""
        low, high = np.asarray(self.low), np.asarray(self.high)
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = (actions - low) / (high - low) * 2.0 - 1.0
            return np.asarray(scaled, np.float32)

    def from_unit(self, actions: Array) -> Float32:
        """Stored actions, or a policy's, in the units of the data."""
        low, high = np.asarray(self.low), np.asarray(self.high)
        return np.asarray(low + (actions + 1.0) / 2.0 * (high - low), np.float32)
