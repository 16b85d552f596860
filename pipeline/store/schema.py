"""The fields a store holds: names, dtypes, units, and what a block of rows must be.

Names are OGBench's. A time limit is never a mask: ``masks`` says only whether the
task is solved, and the episode table says where an episode ends.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.store import manifest
from pipeline.store.errors import BadEpisodeError, DataFormatError
from pipeline.store.manifest import FieldSpec

Array = npt.NDArray[Any]

OBSERVATIONS = "observations"
ACTIONS = "actions"
REWARDS = "rewards"
MASKS = "masks"
# Physics state before the step of its row: later relabelling and rendering need it.
PHYSICS = ("qpos", "qvel", "button_states")

_UNITS = {
    OBSERVATIONS: "as the environment observes",
    ACTIONS: "in [-1, 1]; the last row of an episode leads nowhere",
    "qpos": "generalised positions before the step, m and rad",
    "qvel": "generalised velocities before the step, m/s and rad/s",
    "button_states": "index of each button's state before the step",
}


def input_fields(rows: Mapping[str, Array]) -> dict[str, FieldSpec]:
    """Describes the arrays that come from a source.

    Args:
        rows: ``[n, ...]`` each, any n: a sample of the source.

    Returns:
        Field specs by name, observations and actions among them.

    Raises:
        DataFormatError: If observations or actions are missing.
    """
    for name in (OBSERVATIONS, ACTIONS):
        if name not in rows:
            raise DataFormatError(
                f"expected a field {name!r}, got {sorted(rows)}; every source needs "
                "observations and actions"
            )
    return {
        name: FieldSpec(
            values.dtype.name, tuple(values.shape[1:]), unit=_UNITS.get(name, "")
        )
        for name, values in rows.items()
    }


def task_fields(discounts: Sequence[float]) -> dict[str, FieldSpec]:
    """Describes the per-task arrays: rewards, masks and return sums.

    Args:
        discounts: Discounts whose return sums are stored.

    Returns:
        Field specs by name.
    """
    fields = {
        REWARDS: FieldSpec("float32", (), "row_and_task", "raw reward of state s_t"),
        MASKS: FieldSpec("uint8", (), "row_and_task", "0 where solved at s_t, else 1"),
    }
    for discount in discounts:
        fields[manifest.returns_field(discount)] = FieldSpec(
            "float64", (), "row_and_task", f"return to the end, discount {discount}"
        )
    return fields


def check_episode(episode: Mapping[str, Array], *, where: str) -> None:
    """Refuses an episode that must not be trained on.

    Args:
        episode: ``[rows, ...]`` each.
        where: File and episode, for the error.

    Raises:
        BadEpisodeError: If fields differ in length or a value is NaN or Inf.
    """
    lengths = {name: len(values) for name, values in episode.items()}
    if len(set(lengths.values())) > 1:
        raise BadEpisodeError(
            f"{where}: fields differ in length: {lengths}", reason="length_mismatch"
        )
    for name, values in episode.items():
        # A sum is the cheapest look at every value: it is finite if all of them are,
        # but for an overflow, and then the exact look follows.
        if values.dtype.kind != "f":
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            total = np.sum(values, dtype=np.float64)
        if np.isfinite(total):
            continue
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            row, *component = bad[0].tolist()
            raise BadEpisodeError(
                f"{where}, row {row}: {name}{component} is {values[tuple(bad[0])]}, "
                "and a finite number was expected; mend the file, or leave such "
                "episodes out with --on-bad-episode skip",
                reason="nonfinite",
            )
