"""Computes the per-task columns of a store: rewards, masks and return sums.

The functions are pure. The pipeline writes labels with them, and `verify --deep`
computes labels with them again and compares.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.domains.goals import relabel_tasks
from pipeline.store import manifest, returns, schema
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.manifest import FieldSpec, Task

Array = npt.NDArray[Any]


def check_discounts(discounts: Sequence[float]) -> None:
    """Raises a UsageError if a discount is outside (0, 1]."""
    for discount in discounts:
        if not 0.0 < discount <= 1.0:
            raise UsageError(
                f"--discounts: expected discounts in (0, 1], got {discount}; correct it"
            )


def label_tasks(tasks: Sequence[Task], rows: Mapping[str, Array]) -> dict[str, Array]:
    """Computes rewards and masks of every task.

    Args:
        tasks: Tasks that are either all relabelled from physics state, or all have
            rewards that came with the data.
        rows: ``[n, ...]`` for each field of the input, or of a store.

    Returns:
        ``rewards``, ``f32[n, T]``, and ``masks``, ``u8[n, T]``.

    Raises:
        DataFormatError: If the rows lack fields that the tasks need, or have columns
            for another number of tasks.
    """
    if {task.recipe for task in tasks} != {"stored"}:
        rewards, masks = relabel_tasks(tasks, rows)
        return {schema.REWARDS: rewards, schema.MASKS: masks}
    for name in (schema.REWARDS, schema.MASKS):
        if name not in rows:
            raise DataFormatError(
                f"task {tasks[0].name!r} takes {name} from the data, which hold "
                f"{', '.join(sorted(rows))}; add {name}, one value per row"
            )
    rewards, masks = (
        _to_columns(rows[name]) for name in (schema.REWARDS, schema.MASKS)
    )
    if rewards.shape[1] != len(tasks):
        raise DataFormatError(
            f"expected {schema.REWARDS} of {len(tasks)} task(s), got "
            f"{rewards.shape[1]}; all inputs of a store must have the same tasks in "
            "the same order, so write this input into a store of its own"
        )
    return {
        schema.REWARDS: rewards.astype(np.float32, copy=False),
        # A single column of masks holds for all tasks.
        schema.MASKS: np.broadcast_to(masks != 0, rewards.shape).astype(np.uint8),
    }


def count_tasks(fields: Mapping[str, FieldSpec]) -> int:
    """Counts the tasks of an input whose rewards came with the data.

    Args:
        fields: Fields of the input.

    Returns:
        Columns of the rewards; 1 if rewards are one number per row.
    """
    return math.prod(fields[schema.REWARDS].shape)


def _label_transitions(
    labels: Mapping[str, Array],
    columns: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int64],
) -> dict[str, Array]:
    """Moves labels of states to the transitions that lead there, a row earlier.

    Args:
        labels: ``rewards`` and ``masks`` of the states, ``[n, T]``.
        columns: Columns of the tasks whose labels are moved.
        lengths: ``i64[E]``, rows of each episode; their sum is n.

    Returns:
        The labels. No transition starts in the last row of an episode: its reward is 0
        and its mask 1, as in data whose files have rows of transitions.
    """
    last = np.cumsum(lengths) - 1
    moved = {}
    for name, padding in ((schema.REWARDS, 0), (schema.MASKS, 1)):
        values = labels[name].copy()
        values[:-1, columns] = labels[name][1:, columns]
        values[np.ix_(last, columns)] = padding
        moved[name] = values
    return moved


def _to_columns(values: Array) -> Array:
    """Returns values as ``[n, T]``, also those that are ``[n]``."""
    return values[:, None] if values.ndim == 1 else values


def label_episodes(
    tasks: Sequence[Task],
    discounts: Sequence[float],
    rows: Mapping[str, Array],
    lengths: npt.NDArray[np.int64],
) -> dict[str, Array]:
    """Computes rewards, masks and return sums of whole episodes.

    Args:
        tasks: Tasks in the order of columns.
        discounts: Discounts; each gives one array of return sums.
        rows: ``[n, ...]`` for each field of the input.
        lengths: ``i64[E]``, rows of each episode; their sum is n.

    Returns:
        ``rewards``, ``masks`` and ``returns/...``, ``f64[n, T]``, by field name.

    Raises:
        DataFormatError: If the rows lack what the tasks need.
    """
    labels = label_tasks(tasks, rows)
    # Rewards that came with the data are in the rows that they belong to.
    led_to = [t.recipe != "stored" and t.success_timing == "post" for t in tasks]
    if any(led_to):
        labels = _label_transitions(labels, np.flatnonzero(led_to), lengths)
    # Return sums are computed from the stored float32 rewards and not from the source's
    # float64, so that `verify --deep` can compute them again from the store.
    for discount in discounts:
        labels[manifest.returns_field(discount)] = returns.suffix_sums(
            labels[schema.REWARDS], labels[schema.MASKS], lengths, discount=discount
        )
    return labels
