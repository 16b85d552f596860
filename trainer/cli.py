"""The command line: ``python -m trainer COMMAND``.

Thin: parses, calls, and turns errors into one line and an exit code.
"""

import logging
import sys
from collections.abc import Sequence
from typing import Any

import tyro
from rich.console import Console

from pipeline.store.errors import DataFormatError, MissingPackageError, UsageError
from trainer.commands.bench import Bench
from trainer.commands.checkpoint import Checkpoint
from trainer.commands.describe import Describe
from trainer.commands.evaluate import Evaluate
from trainer.commands.report import Report
from trainer.commands.subgoals import Subgoals
from trainer.commands.sweep import Sweep
from trainer.commands.toy import Toy
from trainer.commands.train import Train
from trainer.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    RunError,
)

_COMMANDS: dict[str, type[Any]] = {
    "train": Train,
    "evaluate": Evaluate,
    "report": Report,
    "sweep": Sweep,
    "subgoals": Subgoals,
    "toy": Toy,
    "describe": Describe,
    "checkpoint": Checkpoint,
    "bench": Bench,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        arguments: Without the program's name; the process's own if None.

    Returns:
        Exit code: 0; 1 if the environment, a disk or another process failed; 2 for
        wrong use or data; 3 if training diverged; 4 if a watched one stalled; 75 if it
        was preempted and has saved; 130 if interrupted.
    """
    console = Console(stderr=True, soft_wrap=True)
    # Orbax warns of every folder it opens only to read; of an error that it raises,
    # each of its threads and tasks tells at length as well.
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] not in _COMMANDS:
        asked = bool(arguments) and arguments[0] in ("-h", "--help")
        console.print(_usage(arguments[0] if arguments and not asked else None))
        return 0 if asked else EXIT_USAGE
    kind = _COMMANDS[arguments[0]]
    parsed, overrides = tyro.cli(
        kind,
        args=arguments[1:],
        prog=f"python -m trainer {arguments[0]}",
        return_unknown_args=True,
    )
    if overrides and kind is not Train:
        return _fail(console, f"unknown arguments: {' '.join(overrides)}", EXIT_USAGE)
    try:
        # Overrides of the configuration, which only training takes.
        if isinstance(parsed, Train):
            return parsed.execute(overrides, console)
        code: int = parsed.execute(console)
        return code
    except (DataFormatError, MissingPackageError, UsageError) as error:
        return _fail(console, str(error), error.exit_code)
    except OSError as error:
        return _fail(console, str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        return _fail(console, "interrupted", EXIT_INTERRUPTED)
    except RunError as error:
        return _fail(console, str(error), error.exit_code)


def told_once(unraisable: Any) -> None:
    """Passes over what TensorStore's threads report of writes that were given up.

    They come back to a loop that Orbax has closed, after it has raised the first error.
    """
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


def _usage(unknown: str | None) -> str:
    lines = [] if unknown is None else [f"unknown command {unknown!r}; expected one of"]
    for name, kind in _COMMANDS.items():
        lines.append(
            f"  python -m trainer {name:10} {(kind.__doc__ or '').splitlines()[0]}"
        )
    return "\n".join(lines)


def _fail(console: Console, message: str, code: int) -> int:
    console.print(f"error: {message}", style="red", markup=False, highlight=False)
    return code
