"""The scale of a store's actions: what -1 and 1 mean in the environment's own units.

Policies act in [-1, 1]. Actions recorded in other bounds are therefore stored scaled to
[-1, 1], and the evaluator scales a policy's actions back. All functions are pure.
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
    """The bounds of actions that a store holds as -1 and 1.

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
                "bounds of actions: expected finite numbers, each low below its high, "
                f"got {list(self.low)} to {list(self.high)}; mend the bounds"
            )

    @classmethod
    def of_data(cls, low: Array, high: Array) -> "ActionScale":
        """Chooses the scale for data that range from ``low`` to ``high``.

        A component whose data stay within [-1, 1] keeps its values. A component that
        never changes is stored as 0.

        Args:
            low: ``f64[A]``, smallest action of the data.
            high: ``f64[A]``, largest action of the data.

        Returns:
            The scale.
        """
        # A component within [-1, 1] already fits a policy's bounds; stretching it would
        # make the scale depend on which actions happen to occur in the data.
        inside = (low >= -1) & (high <= 1)
        low, high = np.where(inside, -1.0, low), np.where(inside, 1.0, high)
        # A constant component has no range to divide by: widen it by 1 on both sides.
        constant = low == high
        low, high = low - constant, high + constant
        return cls(tuple(low.tolist()), tuple(high.tolist()))

    def to_unit(self, actions: Array) -> Float32:
        """Scales actions of the data to [-1, 1].

        Args:
            actions: ``[..., A]``, in the units of the data.

        Returns:
            ``f32[..., A]``, as the store holds them.
        """
        low, high = np.asarray(self.low), np.asarray(self.high)
        # NaN and infinite actions pass without a warning: `check_rows` reports them
        # with their file, episode and row.
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = (actions - low) / (high - low) * 2.0 - 1.0
            return np.asarray(scaled, np.float32)

    def from_unit(self, actions: Array) -> Float32:
        """Scales actions of a store or a policy back to the units of the data.

        Args:
            actions: ``[..., A]`` in [-1, 1].

        Returns:
            ``f32[..., A]``, in the units of the data.
        """
        low, high = np.asarray(self.low), np.asarray(self.high)
        return np.asarray(low + (actions + 1.0) / 2.0 * (high - low), np.float32)
