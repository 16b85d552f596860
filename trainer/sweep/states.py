"""The progress of each cell of a sweep, read from the folder of its run.

A cell's folder is that of an ordinary run, so a sweep needs no record of its own.
Nothing here touches a device, because the programs of the cells need all of them.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pipeline.domains.datasets import TaskEnvironment
from pipeline.store.units import format_count
from trainer.config import find_differences
from trainer.runs.evaluations import (
    choose_environment,
    name_environment,
    read_evaluations,
)
from trainer.runs.folder import METRICS_FILE, explain_bucket_errors
from trainer.runs.run import read_run
from trainer.sweep.cells import Cell
from trainer.toml_tables import Json

# Bytes at the end of metrics.jsonl that are read: enough for several records.
_TAIL_BYTES = 1 << 16
# File that Orbax writes last into a checkpoint in a bucket.
_COMMITTED = "commit_success.txt"
Stage = Literal["new", "begun", "trained", "finished", "differs"]


@dataclass(frozen=True)
class State:
    """Progress of a cell.

    Attributes:
        stage: ``"new"``: no run in the folder. ``"begun"``: training has not reached
            its last step. ``"trained"``: some evaluations are missing. ``"finished"``:
            no work is left. ``"differs"``: the folder holds a run with other settings.
        step: Step of the last whole checkpoint; 0 if there is none.
        missing: Steps of the checkpoints to evaluate.
        difference: Text about the settings that differ.
        store: Path that the run's data were read from; empty without a run.
    """

    stage: Stage
    step: int = 0
    missing: tuple[int, ...] = ()
    difference: str = ""
    store: str = ""

    def __str__(self) -> str:
        """Describes the state in one phrase, for lists."""
        match self.stage:
            case "begun":
                return f"at step {self.step:,}"
            case "trained":
                steps = ", ".join(f"{step:,}" for step in self.missing)
                return f"trained; to evaluate: {steps}"
            case "differs":
                return f"holds another run ({self.difference})"
        return self.stage


def read_state(cell: Cell) -> State:
    """Reads the progress of a cell from its folder.

    Args:
        cell: The cell.

    Returns:
        The state of the cell.

    Raises:
        DataFormatError: If a file of the run is damaged.
        StorageError: If the bucket does not answer.
    """
    if not cell.folder.exists():
        return State("new")
    run = read_run(cell.folder)
    difference = "; ".join(
        f"{name}: {stored} there, {wanted} asked for"
        for name, stored, wanted in find_differences(run.config, cell.config)
    )
    if difference:
        return State("differs", difference=difference, store=run.store)
    # The folder is listed and not opened with Orbax, which would start JAX and take the
    # devices. On disk, Orbax gives a checkpoint its plain name only when it is whole; a
    # bucket has no renaming, and the last file tells.
    folder = cell.folder.checkpoints
    with explain_bucket_errors(folder):
        paths = list(folder.iterdir()) if folder.is_dir() else []
        steps = {int(path.name) for path in paths if path.name.isdigit()}
        if cell.folder.remote:
            steps = {at for at in steps if (folder / str(at) / _COMMITTED).exists()}
    evaluated = {evaluation.key for evaluation in read_evaluations(cell.folder)}
    own = TaskEnvironment(run.task.environment_id, run.task.environment_kwargs)
    chosen, arguments = choose_environment(cell.environment, own)
    environment = name_environment(chosen.environment_id, arguments)
    missing = tuple(
        step
        for step in cell.evaluated_steps
        if not all(
            cell.evaluation.key(
                step=step,
                seed=seed,
                task=cell.task,
                environment=environment,
            )
            in evaluated
            for seed in cell.seeds
        )
    )
    last = max(steps, default=0)
    # Evaluations of the last step show that training has reached it. Its checkpoint may
    # have been deleted since, to make room, and is no reason to train again.
    if not missing:
        return State("finished", last, store=run.store)
    if cell.config.trainer.steps not in steps:
        return State("begun", last, store=run.store)
    return State("trained", last, missing, store=run.store)


def describe_other_stores(states: Iterable[tuple[Cell, State]]) -> str:
    """Describes trained cells whose data were read from another path than is asked for.

    Such cells count as trained, because the data may have been moved, and comparing the
    stores would mean to read the labels of both. Cells that still have to be trained
    are not looked at: ``train`` compares the data.

    Args:
        states: Cells with their states.

    Returns:
        One line that names the first of these cells; empty if there are none.
    """
    others = [
        (cell, state.store)
        for cell, state in states
        if state.stage in ("trained", "finished")
        and os.path.abspath(state.store) != os.path.abspath(cell.store)
    ]
    if not others:
        return ""
    cell, store = others[0]
    return (
        f"{format_count(len(others), 'cell')}: trained on another store, such as "
        f"{cell.name} on {store}, not {cell.store}; if these hold other data, give "
        "another --out"
    )


def read_logged_step(cell: Cell) -> int:
    """Reads the step of the last record of a cell's training; 0 without a record."""
    records = _read_last_records(cell)
    step = records[-1].get("step") if records else 0
    return step if isinstance(step, int) else 0


def read_logged_rates(cell: Cell) -> list[float]:
    """Reads updates per second from the last records of a cell's training."""
    rates = [record.get("updates_per_s") for record in _read_last_records(cell)]
    return [rate for rate in rates if isinstance(rate, int | float) and rate > 0]


def _read_last_records(cell: Cell) -> list[Json]:
    """Reads the last records of a cell's training; empty if that fails.

    These records are only shown. Commands that depend on the file report its damage.
    """
    try:
        with (cell.folder.path / METRICS_FILE).open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES)
            file.seek(start)
            # After the last line feed the trainer may be writing the next record.
            lines = file.read().split(b"\n")[:-1]
        # Unless it is the file's first, the first line may have been cut.
        records = [json.loads(line) for line in lines[1 if start else 0 :]]
    # Storage may fail in many ways, and a failure to show progress must end no sweep.
    except Exception:
        return []
    return [record for record in records if isinstance(record, dict)]
