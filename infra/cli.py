"""The command line: ``python -m infra {launch,doctor,scale}``.

Thin: parses, calls, and turns errors into one line and an exit code.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro
from rich.console import Console

from infra.commands.doctor import Doctor
from infra.commands.evaluate import Evaluate
from infra.commands.pipeline import Pipeline
from infra.commands.scale import Scale
from infra.commands.train import Train
from infra.errors import LaunchError
from pipeline.store.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    DataFormatError,
    MissingPackageError,
    UsageError,
)

_Stage = (
    Annotated[Pipeline, tyro.conf.subcommand("pipeline")]
    | Annotated[Train, tyro.conf.subcommand("train")]
    | Annotated[Evaluate, tyro.conf.subcommand("evaluate")]
)


@dataclass(frozen=True)
class Launch:
    """Starts a stage on machines somebody else maintains.

    With --dry-run it prints what it would submit (standard output) and what that would
    take (standard error), and stops.

    Attributes:
        stage: What to start.
    """

    stage: _Stage

    def run(self, console: Console, arguments: list[str]) -> int:
        """Starts it."""
        return self.stage.run(console, arguments)


_Command = (
    Annotated[Launch, tyro.conf.subcommand("launch")]
    | Annotated[Doctor, tyro.conf.subcommand("doctor")]
    | Annotated[Scale, tyro.conf.subcommand("scale")]
)


def parse(arguments: Sequence[str]) -> tuple[Launch | Doctor | Scale, list[str]]:
    """Reads a command line.

    Args:
        arguments: Without the program's name.

    Returns:
        The command, and what follows ``--``, which is for the program it launches.
    """
    ours, theirs = list(arguments), []
    if "--" in ours:
        end = ours.index("--")
        ours, theirs = ours[:end], ours[end + 1 :]
    command: Launch | Doctor | Scale = tyro.cli(
        _Command,
        prog="python -m infra",
        args=ours,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )
    return command, theirs


def main(arguments: Sequence[str]) -> int:
    """Runs one command.

    Args:
        arguments: Without the program's name.

    Returns:
        Exit code: 0; 1 for a fault of storage or the network; 2 for what cannot be
        launched; 130 if interrupted; that of the program it was submitted with, if
        that failed.
    """
    command, theirs = parse(arguments)
    try:
        if theirs and not isinstance(command, Launch):
            raise LaunchError(f"only launch takes arguments after --: {theirs[0]}")
        return command.run(Console(), theirs)
    except KeyboardInterrupt:
        return _fail("interrupted", EXIT_INTERRUPTED)
    except OSError as error:
        return _fail(str(error), EXIT_FAILED)
    except (DataFormatError, MissingPackageError, UsageError) as error:
        return _fail(str(error), error.exit_code)


def _fail(message: str, code: int) -> int:
    line = " ".join(f"error: {message}".split())
    Console(stderr=True).print(line, highlight=False, markup=False, soft_wrap=True)
    return code
