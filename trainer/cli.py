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
    # Every field of the configuration is an option of these two commands. tyro does not
    # know these options, so the front door must pass unknown ones on.
    loose=frozenset({"train", "compile"}),
)

# First words of the errors of abandoned reads and writes: the first is from threads of
# TensorStore, the second from tasks of Orbax.
_ABANDONED = (
    "Event loop is closed",
    "Encountered error while reading array index",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; see ``front_door.run``."""
    # Orbax, through absl, and asyncio's tasks log many lines about an error that the
    # front door prints in one.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return front_door.run(PROGRAM, arguments)


def ignore_abandoned(unraisable: Any) -> None:
    """Ignores exceptions of reads and writes that were abandoned after an error.

    ``trainer.__main__`` installs this function as ``sys.unraisablehook``. Orbax has
    already raised the first error, and has closed the event loop; reads and writes that
    were still running then fail in their own threads, where nothing can catch their
    exceptions.

    Args:
        unraisable: Exception that nothing could catch, as Python passes it to the hook.
    """
    if not str(unraisable.exc_value).startswith(_ABANDONED):
        sys.__unraisablehook__(unraisable)
