"""How far each cell of a sweep has come, read from its folder.

A cell's folder is an ordinary run's, and all that is known of it is read from there, so
a sweep needs no record of its own. Nothing here touches a device: the programs of the
cells are to have all of them.
"""

import json
import os
from dataclasses import dataclass
from typing import Literal

from trainer.config import find_differences
from trainer.runs.evaluations import (
    find_own_arguments,
    name_environment,
    read_evaluations,
)
from trainer.runs.folder import METRICS_FILE
from trainer.runs.run import read_run
from trainer.sweep.cells import Cell
from trainer.toml_tables import Json

# Enough for the last records of metrics.jsonl.
_TAIL_BYTES = 1 << 16
# Orbax's name for it.
_COMMITTED = "commit_success.txt"
Stage = Literal["new", "begun", "trained", "finished", "differs"]


@dataclass(frozen=True)
class State:
    """How far a cell has come.

    Attributes:
        stage: ``"new"``: nothing there. ``"begun"``: not at its last step.
            ``"trained"``: not all evaluated. ``"finished"``: nothing left to do.
            ``"differs"``: its folder holds another run.
        step: Last committed checkpoint.
        missing: Checkpoints to evaluate.
        difference: What differs.
    """

    stage: Stage
    step: int = 0
    missing: tuple[int, ...] = ()
    difference: str = ""

    def __str__(self) -> str:
        """One phrase, for lists."""
        match self.stage:
            case "begun":
                return f"at step {self.step:,}"
            case "trained":
                steps = ", ".join(f"{step:,}" for step in self.missing)
                return f"trained; to evaluate: {steps}"
            case "differs":
                return f"holds another run ({self.difference})"
        return self.stage


def look(cell: Cell) -> State:
    """Reads how far a cell has come.

    Args:
        cell: The cell.

    Returns:
        Its state.

    Raises:
        DataFormatError: If its folder holds files that no run left.
    """
    if not cell.folder.exists():
        return State("new")
    run = read_run(cell.folder)
    difference = "; ".join(
        f"{name}: {there} there, {asked} asked for"
        for name, there, asked in find_differences(run.config, cell.config)
    )
    if difference:
        return State("differs", difference=difference)
    # Listed, not opened by Orbax, which would take the devices. Half-written steps have
    # longer names on disk, and lack their last object on gs://.
    folder = cell.folder.checkpoints
    there = list(folder.iterdir()) if folder.is_dir() else []
    steps = {int(path.name) for path in there if path.name.isdigit()}
    if cell.folder.remote:
        steps = {step for step in steps if (folder / str(step) / _COMMITTED).exists()}
    if cell.config.trainer.steps not in steps:
        return State("begun", step=max(steps, default=0))
    evaluated = {evaluation.key for evaluation in read_evaluations(cell.folder)}
    environment = name_environment(
        cell.environment.environment_id
        if cell.environment
        else run.task.environment_id,
        find_own_arguments(cell.environment, run.task.environment_kwargs),
    )
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
    return State("trained" if missing else "finished", max(steps), missing)


def logged_step(cell: Cell) -> int:
    """Step of the last record of a cell's training; 0 if there is none."""
    records = _last_records(cell)
    step = records[-1].get("step") if records else 0
    return step if isinstance(step, int) else 0


def logged_rates(cell: Cell) -> list[float]:
    """Updates a second at the last log points of a cell's training."""
    rates = [record.get("updates_per_s") for record in _last_records(cell)]
    return [rate for rate in rates if isinstance(rate, int | float) and rate > 0]


def _last_records(cell: Cell) -> list[Json]:
    """The last records of a cell's training, as far as they can be read.

    They are only shown: whatever else reads the records says what is wrong with them.
    """
    try:
        with (cell.folder.path / METRICS_FILE).open("rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES)
            file.seek(start)
            lines = file.read().split(b"\n")[:-1]  # What follows is half a line.
        # So may the first one be.
        records = [json.loads(line) for line in lines[1 if start else 0 :]]
    except (FileNotFoundError, ValueError, RecursionError):
        return []
    return [record for record in records if isinstance(record, dict)]
