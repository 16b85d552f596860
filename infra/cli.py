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

BAD_INPUT = 2

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
        Exit code: 0; 2 for what cannot be launched; that of the program it was
        submitted with, if that failed.
    """
    command, theirs = parse(arguments)
    try:
        if theirs and not isinstance(command, Launch):
            raise LaunchError(f"only launch takes arguments after --: {theirs[0]}")
        return command.run(Console(), theirs)
    except (LaunchError, ValueError, ImportError, OSError) as error:
        message = " ".join(str(error).split())
        Console(stderr=True).print(
            f"error: {message}", highlight=False, markup=False, soft_wrap=True
        )
        return BAD_INPUT
