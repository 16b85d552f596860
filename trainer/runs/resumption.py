"""Whether a run may go on from what was saved: the same run, arrays and place. Pure."""

from typing import Any

from pipeline.store.errors import DataFormatError
from trainer.config import differences
from trainer.runs.run import Run

# Differences listed of another architecture.
_SHOWN = 12


def check_same_run(saved: Run, run: Run, *, where: str) -> None:
    """Refuses to go on from what another run saved.

    Args:
        saved: Run that a step is of.
        run: Run that wants to go on from it.
        where: The step, for the error.

    Raises:
        DataFormatError: If data, hyperparameters, batch or seeds differ.
    """
    if saved.fingerprint != run.fingerprint:
        raise DataFormatError(
            f"{where}: was trained on data {saved.fingerprint}, and the store now is "
            f"{run.fingerprint}; train into another folder"
        )
    differing = [
        f"{name}: {before!r} before, {now!r} now"
        for name, before, now in differences(saved.config, run.config)
    ]
    if differing:
        raise DataFormatError(
            f"{where}: is of another run than the one asked for "
            f"({'; '.join(differing)}); train into another folder"
        )


def check_same_arrays(
    saved: dict[str, dict[str, Any]], asked: dict[str, dict[str, Any]], *, where: str
) -> None:
    """Refuses a step whose arrays are of other names or shapes.

    Args:
        saved: By item and path, what has a ``shape``.
        asked: The same of the state that is to go on.
        where: The step, for the error.

    Raises:
        DataFormatError: Listing the arrays that differ, with both shapes.
    """
    differing = []
    for item in asked:
        there, wanted = (
            {name: tuple(leaf.shape) for name, leaf in arrays[item].items()}
            for arrays in (saved, asked)
        )
        differing += [
            f"  {item}/{name}: {there.get(name, 'not there')} saved, "
            f"{wanted.get(name, 'not there')} asked for"
            for name in sorted(there | wanted)
            if there.get(name) != wanted.get(name)
        ]
    if differing:
        more = len(differing) - _SHOWN
        raise DataFormatError(
            f"{where}: holds another architecture:\n"
            + "\n".join(differing[:_SHOWN])
            + (f"\n  and {more} more" if more > 0 else "")
            + "\nTrain into another folder, or ask for the saved sizes"
        )


def place_in_data(
    saved: dict[str, Any], updates_per_call: int, *, where: str
) -> dict[str, int]:
    """Grain's state for calls of another size than those it was saved with.

    Args:
        saved: The item ``data`` of a step.
        updates_per_call: M of the calls to come.
        where: The step, for the error.

    Returns:
        State of the iterator over calls.

    Raises:
        DataFormatError: If the step lies within such a call.
    """
    place = {}
    for name, calls in saved["feed"].items():
        step = calls * saved["updates_per_call"]
        place[name], rest = divmod(step, updates_per_call)
        if rest:
            raise DataFormatError(
                f"{where}: trainer.updates_per_call is {updates_per_call}, and step "
                f"{step} lies within such a call; expected a divisor of {step}"
            )
    return place
