"""The fields of a store: their names, dtypes and units, and the checks of their rows.

Rows of every source are cast by `cast_rows` and then checked by `check_rows`, in this
order, so that the values that were checked are those that are stored: a cast to float32
can itself produce an infinity. Field names are OGBench's. ``masks`` says only whether
the task is solved. A time limit ends an episode in the episode table and leaves its
mask at 1, so that training still bootstraps there.
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
Int64 = npt.NDArray[np.int64]

OBSERVATIONS = "observations"
ACTIONS = "actions"
REWARDS = "rewards"
MASKS = "masks"
# The simulator's state before the action of its row. Relabelling with other tasks and
# rendering start from it.
PHYSICS = ("qpos", "qvel", "button_states")

# Reason under which episodes with an action outside [-1, 1] are counted.
OUTSIDE = "actions_outside"
# A cast to float32 rounds by up to 6e-8 of a value near 1, so that actions recorded as
# exactly 1 in other units may lie just outside after scaling.
ACTION_TOLERANCE = 1e-6
# Larger float64 values become infinite when training casts them to float32.
_LARGEST = float(np.finfo(np.float32).max)
_CAST = (OBSERVATIONS, ACTIONS)
# Images and integer observations keep their dtype: as float32 an image would take four
# times the bytes.
_KEPT = (np.dtype(np.uint8), np.dtype(np.int32))
_UNITS = {
    OBSERVATIONS: "as the environment observes",
    ACTIONS: "in [-1, 1]; the last row of an episode leads nowhere",
    "qpos": "generalised positions before the step, m and rad",
    "qvel": "generalised velocities before the step, m/s and rad/s",
    "button_states": "index of each button's state before the step",
}


def stored_dtype(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Chooses the dtype in which a store keeps a field, as OGBench's loader does.

    Args:
        name: Field name.
        dtype: Dtype of the field in the source.

    Returns:
        float32 for rewards, and for observations and actions that are no images; the
        source's dtype in native byte order otherwise.
    """
    native = dtype.newbyteorder("=")
    cast = name == REWARDS or (name in _CAST and native not in _KEPT)
    return np.dtype(np.float32) if cast else native


def input_fields(rows: Mapping[str, Array], *, where: str) -> dict[str, FieldSpec]:
    """Describes the fields of a source from a sample of its rows.

    Args:
        rows: ``[n, ...]`` for each field, in the source's dtypes; any n.
        where: Path of the file, for the error.

    Returns:
        Field specs by name; observations and actions are among them.

    Raises:
        DataFormatError: If observations or actions are missing; if observations have
            no axis but rows; if actions are not floating point ``[rows, A]``; if
            rewards or masks are neither ``[rows]`` nor ``[rows, tasks]``; or if masks
            have other tasks than rewards.
    """
    for name in (OBSERVATIONS, ACTIONS):
        if name not in rows:
            raise DataFormatError(
                f"{where}: expected a field {name!r}, got {sorted(rows)}; add it, as "
                "every source needs observations and actions"
            )
    for name, values in rows.items():
        _check_shape(name, values, where)
    if REWARDS in rows and MASKS in rows:
        tasks, masks = (rows[name].shape[1:] for name in (REWARDS, MASKS))
        if masks not in ((), tasks):
            raise DataFormatError(
                f"{where}: expected {MASKS} [rows] for all tasks alike, or as "
                f"{REWARDS} are, {['rows', *tasks]}, got {['rows', *masks]}; give "
                "masks one column, or a column for each task"
            )
    return {
        # Rewards keep the source's dtype here although they are stored as float32:
        # digests of plans contain this spec, and finished parts are found by them.
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
    """Refuses a field whose dimensions or kind of dtype differ from the documented."""
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
    """Describes the per-task fields: rewards, masks and return sums.

    Args:
        discounts: Discounts for which return sums are stored.

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
    """Casts rows to the dtypes of the store, and scales actions to [-1, 1].

    Args:
        rows: ``[n, ...]`` for each field, in the source's dtypes.
        scale: Scale of the store's actions; None if they already are in [-1, 1].

    Returns:
        The rows as they are stored. A value too large for its dtype becomes infinite;
        ``check_rows`` then refuses it.
    """
    # No warning on overflow: check_rows reports it with file, episode and row.
    with np.errstate(over="ignore", invalid="ignore"):
        cast = {
            name: values.astype(stored_dtype(name, values.dtype), copy=False)
            for name, values in rows.items()
        }
    if scale is not None:
        cast[ACTIONS] = scale.to_unit(rows[ACTIONS])
    return cast


def find_unused(actions: Array, lengths: Int64) -> npt.NDArray[np.bool_]:
    """Finds the actions outside [-1, 1] that nobody takes: those of last rows.

    Sources add the row of an episode's final state with a made-up action 0, which the
    bounds of actions may exclude. Such an action is neither checked nor counted as
    data. Other actions of last rows are, as in all stores written so far.

    Args:
        actions: ``[n, A]``, as they are stored.
        lengths: ``i64[E]``, rows of each episode; their sum is n.

    Returns:
        ``bool[n]``.

    Example:
        >>> find_unused(np.array([[0.5], [-7.0], [0.5], [0.0]]), np.array([2, 2]))
        array([False,  True, False, False])
    """
    unused = np.zeros(len(actions), np.bool_)
    last = np.cumsum(lengths) - 1
    unused[last] = (np.abs(actions[last]) > 1 + ACTION_TOLERANCE).any(axis=1)
    return unused


def check_rows(
    rows: Mapping[str, Array],
    *,
    where: str,
    given: Mapping[str, Array] | None = None,
    lengths: Int64 | None = None,
) -> None:
    """Refuses rows that cannot be trained on.

    Args:
        rows: ``[n, ...]`` for each field, as they are to be stored.
        where: File and episode, for the error.
        given: The same rows before any cast. Errors quote them, because they are what a
            user finds in the file. None if there was no cast.
        lengths: ``i64[E]``, rows of each episode, whose last actions may be outside
            [-1, 1]; None if no action may.

    Raises:
        BadEpisodeError: If fields differ in length, a value is NaN, Inf or too large
            for float32, a mask is neither 0 nor 1, or an action that is taken is
            outside [-1, 1].
    """
    counts = {name: len(values) for name, values in rows.items()}
    if len(set(counts.values())) > 1:
        raise BadEpisodeError(
            f"{where}: expected fields of one length, got {counts}; mend the file",
            reason="length_mismatch",
        )
    for name, values in rows.items():
        before = values if given is None else given[name]
        bad = _find_unstorable(values)
        if bad is not None:
            which = f"{where}, row {bad[0]}: {name}{bad[1:] or ''}"
            raise _unstorable_error(which, before, bad)
        if name == MASKS and (bad := _find_first((before != 0) & (before != 1))):
            raise BadEpisodeError(
                f"{where}, row {bad[0]}: {name}{bad[1:] or ''} is "
                f"{before[tuple(bad)]}, expected 0 where the task is solved and 1 "
                "elsewhere; mend the file",
                reason="no_mask",
            )
        if name == ACTIONS and (bad := _find_outside(values, lengths)):
            raise BadEpisodeError(
                f"{where}, row {bad[0]}: {name}{bad[1:]} is {before[tuple(bad)]:g}, "
                "outside the bounds of actions; mend the file or the bounds",
                reason=OUTSIDE,
            )


def _find_unstorable(values: Array) -> list[int] | None:
    """Returns the index of the first value that is not finite in float32, or None."""
    if values.dtype.kind != "f" or not values.size:
        return None
    # Summing is the cheapest way to see every value, as it allocates no array of
    # booleans. A finite sum shows that all values are finite. The sum may also overflow
    # over finite values, and then the exact search below decides.
    wide = values.dtype.itemsize > np.dtype(np.float32).itemsize
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.sum(np.abs(values) if wide else values, dtype=np.float64)
    if np.isfinite(total) and (total <= _LARGEST or not wide):
        return None
    # Negated, so that NaN, for which every comparison is False, counts as bad.
    return _find_first(~(np.abs(values) <= _LARGEST))


def _unstorable_error(which: str, given: Array, bad: Sequence[int]) -> BadEpisodeError:
    """Builds the error for a value that is not finite, or not as float32."""
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


def _find_outside(actions: Array, lengths: Int64 | None) -> list[int] | None:
    """Returns the index of the first action outside [-1, 1] by more than rounding."""
    bound = 1.0 + ACTION_TOLERANCE
    if not actions.size or (actions.min() >= -bound and actions.max() <= bound):
        return None
    outside = np.abs(actions) > bound
    if lengths is not None:
        outside[find_unused(actions, lengths)] = False
    return _find_first(outside)


def _find_first(flags: npt.NDArray[np.bool_]) -> list[int] | None:
    """Returns the index of the first True, or None."""
    if not flags.any():
        return None
    first: list[int] = np.argwhere(flags)[0].tolist()
    return first
