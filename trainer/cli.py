"""``python -m trainer COMMAND``: the commands there are."""

import logging
import sys
from collections.abc import Sequence
from typing import Any

from pipeline import front_door
from trainer.commands.bench import Bench
from trainer.commands.checkpoint import Checkpoint
from trainer.commands.compile import Compile
from trainer.commands.describe import Describe
from trainer.commands.evaluate import Evaluate
from trainer.commands.report import Report
from trainer.commands.subgoals import Subgoals
from trainer.commands.sweep import Sweep
from trainer.commands.toy import Toy
from trainer.commands.train import Train

PROGRAM = front_door.Program(
    name="trainer",
    script="vast-train",
    purpose="Trains policies on a trajectory store, evaluates and compares them.",
    commands={
        "train": Train,
        "evaluate": Evaluate,
        "report": Report,
        "sweep": Sweep,
        "subgoals": Subgoals,
        "toy": Toy,
        "describe": Describe,
        "compile": Compile,
        "checkpoint": Checkpoint,
        "bench": Bench,
    },
    # Every field of the configuration is an option of these.
    loose=frozenset({"train", "compile"}),
)

_ABANDONED = (
    "Event loop is closed",
    "Encountered error while reading array index",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; see ``front_door.run``."""
    # Orbax warns of every folder it opens only to read; of an error that it raises,
    # each of its threads and tasks tells at length as well.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return front_door.run(PROGRAM, arguments)


def ignore_abandoned(unraisable: Any) -> None:
    """Silences what threads and tasks report of reads and writes that were abandoned.

    They are after the first error, which Orbax has raised already. Then it has closed
    the loop that TensorStore's writes come back to.
    """
    if not str(unraisable.exc_value).startswith(_ABANDONED):
        sys.__unraisablehook__(unraisable)
