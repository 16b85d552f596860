"""The per-task columns of a store: rewards, masks and return sums of whole episodes.

Pure. The one place that says how they follow from the fields of an input; the
pipeline writes with it, and `verify --deep` compares with it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.domains.goals import relabel_tasks
from pipeline.store import manifest, returns, schema
from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import FieldSpec, Task

Array = npt.NDArray[Any]


def label_tasks(tasks: Sequence[Task], rows: Mapping[str, Array]) -> dict[str, Array]:
    """Rewards and masks of every task.

    Args:
        tasks: Either all of a recipe that relabels from physics state, or all of such
            whose rewards came with the data.
        rows: ``[n, ...]`` for each field of the input, or of a store.

    Returns:
        ``rewards``, ``f32[n, T]``, and ``masks``, ``u8[n, T]``.

    Raises:
        DataFormatError: If the rows lack what the tasks need, or are of another number
            of tasks.
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
    rewards, masks = (_columns(rows[name]) for name in (schema.REWARDS, schema.MASKS))
    if rewards.shape[1] != len(tasks):
        raise DataFormatError(
            f"expected {schema.REWARDS} of {len(tasks)} task(s), got "
            f"{rewards.shape[1]}; one store holds the same tasks of all of its "
            "inputs, in the same order"
        )
    return {
        schema.REWARDS: rewards.astype(np.float32, copy=False),
        # Of one column, it is that of every task.
        schema.MASKS: np.broadcast_to(masks != 0, rewards.shape).astype(np.uint8),
    }


def count_tasks(fields: Mapping[str, FieldSpec]) -> int:
    """How many tasks the rewards of an input are of.

    Args:
        fields: What its rows are.

    Returns:
        Their number; 1 of rewards that are one number a row.
    """
    return math.prod(fields[schema.REWARDS].shape)


def _columns(values: Array) -> Array:
    """``[n, T]`` of what may be ``[n]``."""
    return values[:, None] if values.ndim == 1 else values


def label_episodes(
    tasks: Sequence[Task],
    discounts: Sequence[float],
    rows: Mapping[str, Array],
    lengths: npt.NDArray[np.int64],
) -> dict[str, Array]:
    """Rewards, masks and return sums of whole episodes.

    Args:
        tasks: Columns, in order.
        discounts: One array of return sums each.
        rows: ``[n, ...]`` for each field of the input.
        lengths: ``i64[E]``, rows of each episode; they sum to n.

    Returns:
        ``rewards``, ``masks`` and ``returns/...``, ``f64[n, T]``, by field name.

    Raises:
        DataFormatError: If the rows lack what the tasks need.
    """
    labels = label_tasks(tasks, rows)
    for discount in discounts:
        labels[manifest.returns_field(discount)] = returns.suffix_sums(
            labels[schema.REWARDS], labels[schema.MASKS], lengths, discount=discount
        )
    return labels
