"""The per-task columns of a store: rewards, masks and return sums of whole episodes.

Pure. The one place that says how they follow from the fields of an input; the
pipeline writes with it, and `verify --deep` compares with it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.domains.goals import relabel_tasks
from pipeline.store import manifest, returns, schema
from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import Task

Array = npt.NDArray[Any]


def label_tasks(tasks: Sequence[Task], rows: Mapping[str, Array]) -> dict[str, Array]:
    """Rewards and masks of every task.

    Args:
        tasks: Either all of a recipe that relabels from physics state, or one whose
            rewards came with the data.
        rows: ``[n, ...]`` for each field of the input.

    Returns:
        ``rewards``, ``f32[n, T]``, and ``masks``, ``u8[n, T]``.

    Raises:
        DataFormatError: If the rows lack what the tasks need.
    """
    if [task.recipe for task in tasks] != ["stored"]:
        rewards, masks = relabel_tasks(tasks, rows)
        return {schema.REWARDS: rewards, schema.MASKS: masks}
    for name in (schema.REWARDS, schema.MASKS):
        if name not in rows or rows[name].ndim != 1:
            raise DataFormatError(
                f"task {tasks[0].name!r} takes {name} [rows] from the data, which "
                f"hold {', '.join(sorted(rows))}; add {name}, one value per row"
            )
    return {
        schema.REWARDS: rows[schema.REWARDS].astype(np.float32, copy=False)[:, None],
        schema.MASKS: (rows[schema.MASKS] != 0).astype(np.uint8)[:, None],
    }


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
