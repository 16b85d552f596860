"""The fields a store holds: names, dtypes, units, and what a block of rows must be.

Every source passes through here: a plan by `input_fields`, rows by `cast_rows` and
`check_rows`, so that what is stored is what was checked. Names are OGBench's. A time
limit is never a mask: ``masks`` says only whether the task is solved, and the episode
table says where an episode ends.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.store import manifest
from pipeline.store.action_scale import ActionScale
from pipeline.store.errors import BadEpisodeError, DataFormatError
from pipeline.store.manifest import FieldSpec

Array = npt.NDArray[Any]

OBSERVATIONS = "observations"
ACTIONS = "actions"
REWARDS = "rewards"
MASKS = "masks"
# Physics state before the step of its row: later relabelling and rendering need it.
PHYSICS = ("qpos", "qvel", "button_states")

# Reason of an episode with an action outside its bounds.
OUTSIDE = "actions_outside"
# Casts to float32 and back leave actions this far outside their bounds.
ACTION_TOLERANCE = 1e-6
# Trained on as float32, whatever they are stored as.
_LARGEST = float(np.finfo(np.float32).max)
_CAST = (OBSERVATIONS, ACTIONS)
# Images stay what they are; all else is trained on as float32.
_KEPT = (np.dtype(np.uint8), np.dtype(np.int32))
_UNITS = {
    OBSERVATIONS: "as the environment observes",
    ACTIONS: "in [-1, 1]; the last row of an episode leads nowhere",
    "qpos": "generalised positions before the step, m and rad",
    "qvel": "generalised velocities before the step, m/s and rad/s",
    "button_states": "index of each button's state before the step",
}


def stored_dtype(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that OGBench's loader gives a field, and that a store keeps it in."""
    native = dtype.newbyteorder("=")
    cast = name == REWARDS or (name in _CAST and native not in _KEPT)
    return np.dtype(np.float32) if cast else native


def input_fields(rows: Mapping[str, Array], *, where: str) -> dict[str, FieldSpec]:
    """Describes the arrays that come from a source, and refuses what cannot be kept.

    Args:
        rows: ``[n, ...]`` each, any n, as the source has them: a sample.
        where: File, for the error.

    Returns:
        Field specs by name, observations and actions among them.

    Raises:
        DataFormatError: If observations or actions are missing, observations are no
            rows of numbers, actions are not continuous ``[rows, A]``, rewards and
            masks not one number a row or one for each task, or masks of other tasks
            than rewards.
    """
    for name in (OBSERVATIONS, ACTIONS):
        if name not in rows:
            raise DataFormatError(
                f"{where}: expected a field {name!r}, got {sorted(rows)}; every source "
                "needs observations and actions"
            )
    for name, values in rows.items():
        _check_shape(name, values, where)
    if REWARDS in rows and MASKS in rows:
        tasks, masks = (rows[name].shape[1:] for name in (REWARDS, MASKS))
        if masks not in ((), tasks):
            raise DataFormatError(
                f"{where}: expected {MASKS} [rows] for all tasks alike, or as "
                f"{REWARDS} are, {['rows', *tasks]}, got {['rows', *masks]}; one "
                "column of each is one task"
            )
    return {
        # Rewards of a source are described as it has them: a plan's digest says so.
        name: FieldSpec(
            (
                values.dtype if name == REWARDS else stored_dtype(name, values.dtype)
            ).name,
            tuple(values.shape[1:]),
            unit=_UNITS.get(name, ""),
        )
        for name, values in rows.items()
    }


def _check_shape(name: str, values: Array, where: str) -> None:
    """Refuses a field of other dimensions or kind than its documented ones."""
    shape, got = values.shape[1:], f"got {values.dtype}{['rows', *values.shape[1:]]}"
    if name == OBSERVATIONS and not shape:
        raise DataFormatError(
            f"{where}: expected {name} [rows, S], {got}; reshape them to [rows, 1]"
        )
    if name == ACTIONS and (len(shape) != 1 or values.dtype.kind != "f"):
        raise DataFormatError(
            f"{where}: expected continuous {name} [rows, A] in floating point, {got}; "
            "discrete actions cannot be trained on, reshape continuous ones"
        )
    if name in (REWARDS, MASKS) and len(shape) > 1:
        raise DataFormatError(
            f"{where}: expected {name} [rows], or [rows, tasks] for several tasks, "
            f"{got}; choose one number a row for each task"
        )


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


def cast_rows(
    rows: Mapping[str, Array], scale: ActionScale | None = None
) -> dict[str, Array]:
    """Rows in the dtypes and the scale that they are stored in.

    Args:
        rows: ``[n, ...]`` for each field, as the source has them.
        scale: Of the store's actions; None if they are in [-1, 1] as they are.

    Returns:
        The same values. One that is too large for its dtype is infinite, and one that
        is infinite is no good row: `check_rows` says which of the two it was.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        cast = {
            name: values.astype(stored_dtype(name, values.dtype), copy=False)
            for name, values in rows.items()
        }
    if scale is not None:
        cast[ACTIONS] = scale.to_unit(rows[ACTIONS])
    return cast


def check_rows(
    rows: Mapping[str, Array], *, where: str, given: Mapping[str, Array] | None = None
) -> None:
    """Refuses rows that must not be trained on.

    Args:
        rows: ``[n, ...]`` each, as they are to be stored.
        where: File and episode, for the error.
        given: The same as the source has them, for the error: before any cast.

    Raises:
        BadEpisodeError: If fields differ in length, a value is NaN, Inf or too large
            for float32, a mask is neither 0 nor 1, or an action is outside [-1, 1].
    """
    lengths = {name: len(values) for name, values in rows.items()}
    if len(set(lengths.values())) > 1:
        raise BadEpisodeError(
            f"{where}: fields differ in length: {lengths}", reason="length_mismatch"
        )
    for name, values in rows.items():
        before = values if given is None else given[name]
        bad = _find_unstorable(values)
        if bad is not None:
            which = f"{where}, row {bad[0]}: {name}{bad[1:] or ''}"
            raise _unstorable(which, before, bad)
        if name == MASKS and (bad := _first((before != 0) & (before != 1))):
            raise BadEpisodeError(
                f"{where}, row {bad[0]}: {name}{bad[1:] or ''} is "
                f"{before[tuple(bad)]}, and 0 where the task is solved or else 1 was "
                "expected; mend the file",
                reason="no_mask",
            )
        if name == ACTIONS and (bad := _find_outside(values)):
            raise BadEpisodeError(
                f"{where}, row {bad[0]}: {name}{bad[1:]} is {before[tuple(bad)]:g}, "
                "outside the bounds of actions",
                reason=OUTSIDE,
            )


def _find_unstorable(values: Array) -> list[int] | None:
    """Where the first value is that is not finite, or above what float32 holds."""
    if values.dtype.kind != "f" or not values.size:
        return None
    # A sum is the cheapest look at every value: it is finite if all of them are, but
    # for an overflow, and then the exact look follows.
    wide = values.dtype.itemsize > np.dtype(np.float32).itemsize
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.sum(np.abs(values) if wide else values, dtype=np.float64)
    if np.isfinite(total) and (total <= _LARGEST or not wide):
        return None
    return _first(~(np.abs(values) <= _LARGEST))


def _unstorable(which: str, given: Array, bad: Sequence[int]) -> BadEpisodeError:
    value = given[tuple(bad)]
    if np.isfinite(value):
        return BadEpisodeError(
            f"{which} is {value:g}, which does not fit float32; scale the values, or "
            "leave such episodes out with --on-bad-episode skip",
            reason="too_large",
        )
    return BadEpisodeError(
        f"{which} is {value}, and a finite number was expected; mend the file, or "
        "leave such episodes out with --on-bad-episode skip",
        reason="nonfinite",
    )


def _find_outside(actions: Array) -> list[int] | None:
    """Where the first action is that is outside [-1, 1] by more than rounding."""
    bound = 1.0 + ACTION_TOLERANCE
    if not actions.size or (actions.min() >= -bound and actions.max() <= bound):
        return None
    return _first(np.abs(actions) > bound)


def _first(found: npt.NDArray[np.bool_]) -> list[int] | None:
    """Index of the first True."""
    if not found.any():
        return None
    first: list[int] = np.argwhere(found)[0].tolist()
    return first
