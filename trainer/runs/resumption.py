"""Checks whether a run may resume from a checkpoint; pure functions without files.

A run may resume if the checkpoint is of the same run, holds the same arrays, and lies
between two calls.
"""

from typing import Any

from pipeline.store.errors import DataFormatError
from trainer.config import find_differences
from trainer.data.fingerprint import strip_window
from trainer.runs.run import Run

# Arrays that are listed at most; another width changes every array.
_SHOWN = 12


def check_same_run(saved: Run, run: Run, *, where: str) -> None:
    """Refuses to resume from the checkpoint of another run.

    Args:
        saved: Run that the checkpoint is of.
        run: Run that is to resume.
        where: Path of the checkpoint, for the error message.

    Raises:
        DataFormatError: If data, hyperparameters, batch or seeds differ.
    """
    # Steps and meshes may differ: neither changes what is computed.
    differences = find_differences(saved.config, run.config)
    if saved.task.task != run.task.task:
        differences.insert(0, ("task", saved.task.task, run.task.task))
    if saved.fingerprint != run.fingerprint:
        differences += _find_window_differences(saved, run)
        # Equal rows under another name are the same data.
        if saved.dataset != run.dataset:
            differences.insert(0, ("dataset", saved.dataset, run.dataset))
    if differences:
        differing = "; ".join(
            f"{name}: {before!r} before, {now!r} now"
            for name, before, now in differences
        )
        raise DataFormatError(
            f"{where}: is of another run than the one asked for ({differing}); train "
            "into another folder, or give the former settings to go on"
        )
    # Compared last, because the fingerprint depends on settings as well: on the task,
    # the discount, and the window through which large data are read.
    if saved.fingerprint != run.fingerprint:
        raise DataFormatError(
            f"{where}: was trained on data {saved.fingerprint}, and the store now is "
            f"{run.fingerprint}; train into another folder, or give the former store"
        )


def _find_window_differences(saved: Run, run: Run) -> list[tuple[str, Any, Any]]:
    """Compares the settings of the window, where the rows in the store are the same."""
    if strip_window(saved.fingerprint) != strip_window(run.fingerprint):
        return []
    before, now = saved.config.feed, run.config.feed
    return [
        (f"feed.{name}", getattr(before, name), getattr(now, name))
        for name in ("memory_limit_bytes", "block_rows", "reuse")
        if getattr(before, name) != getattr(now, name)
    ]


def check_same_arrays(
    saved: dict[str, dict[str, Any]], asked: dict[str, dict[str, Any]], *, where: str
) -> None:
    """Refuses a checkpoint whose arrays have other names or shapes.

    Args:
        saved: Leaves with a ``shape``, by item of the checkpoint and path.
        asked: The same of the state that is to be restored.
        where: Path of the checkpoint, for the error message.

    Raises:
        DataFormatError: Lists the arrays that differ, with both shapes.
    """
    # Orbax would name the first array only, in an error of many lines.
    differing = []
    for item in asked:
        saved_shapes, asked_shapes = (
            {name: tuple(leaf.shape) for name, leaf in arrays[item].items()}
            for arrays in (saved, asked)
        )
        differing += [
            f"  {item}/{name}: {saved_shapes.get(name, 'not there')} saved, "
            f"{asked_shapes.get(name, 'not there')} asked for"
            for name in sorted(saved_shapes | asked_shapes)
            if saved_shapes.get(name) != asked_shapes.get(name)
        ]
    if differing:
        more = len(differing) - _SHOWN
        raise DataFormatError(
            f"{where}: holds another architecture:\n"
            + "\n".join(differing[:_SHOWN])
            + (f"\n  and {more} more" if more > 0 else "")
            + "\nTrain into another folder, or ask for the saved sizes"
        )


def convert_data_state(
    saved: dict[str, Any], updates_per_call: int, *, where: str
) -> dict[str, int]:
    """Converts Grain's state to calls of another size than it was saved with.

    Args:
        saved: Item ``data`` of a checkpoint.
        updates_per_call: Updates M of each call to come.
        where: Path of the checkpoint, for the error message.

    Returns:
        State of the iterator over calls.

    Raises:
        DataFormatError: If the step lies within such a call.
    """
    # Grain counts calls, and batches are a function of the step: a call of another size
    # goes on with the same batches if it starts at the step.
    place = {}
    for name, calls in saved["feed"].items():
        step = calls * saved["updates_per_call"]
        place[name], rest = divmod(step, updates_per_call)
        if rest:
            raise DataFormatError(
                f"{where}: trainer.updates_per_call: expected a divisor of the step "
                f"{step}, got {updates_per_call}; choose another number"
            )
    return place
