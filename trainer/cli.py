"""``python -m trainer COMMAND``: the table of commands."""

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
    # These two take every field of the configuration as an option.
    loose=frozenset({"train", "compile"}),
)

# Beginnings of the messages that threads of TensorStore and tasks of Orbax report of
# reads and writes that were given up after the first error.
_ABANDONED = (
    "Event loop is closed",
    "Encountered error while reading array index",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; see ``front_door.run``."""
    # Orbax logs a warning for every folder that it opens only to read. Of one error its
    # threads and asyncio's tasks log many lines, besides the exception that we print.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return front_door.run(PROGRAM, arguments)


def ignore_abandoned(unraisable: Any) -> None:
    """Ignores exceptions of reads and writes that were given up after an error.

    This function is a ``sys.unraisablehook``. Orbax has already raised the first error,
    and has closed the event loop; reads and writes that were still running then fail in
    their own threads, where nothing can catch their exceptions.

    Args:
        unraisable: Exception that nothing could catch, as Python passes it to the hook.
    """
    if not str(unraisable.exc_value).startswith(_ABANDONED):
        sys.__unraisablehook__(unraisable)
