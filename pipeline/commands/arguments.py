"""What the commands share: kinds of arguments, and checks of them."""

import dataclasses
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import tyro

from pipeline.store.errors import UsageError

EnvironmentId = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
Input = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="INPUT")]
StorePath = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STORE")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]

_Command = TypeVar("_Command")


@dataclass(frozen=True)
class Engine:
    """Where a command's pipelines run.

    Attributes:
        runner: local, dask, or another of Beam's runners, with its options after --.
        workers: Processes on this machine: of the local runner, or of a Dask cluster
            that is started for the command.
        dask_address: Scheduler of a Dask cluster that is there, such as
            tcp://10.0.0.1:8786; its workers must see the paths that are given.
    """

    runner: str = "local"
    workers: int = 1
    dask_address: str | None = None

    def beam_arguments(self, more: Sequence[str]) -> list[str]:
        """What Beam is told: these, then what follows ``--``.

        Args:
            more: What follows ``--``.

        Raises:
            UsageError: If there would be no worker, or not the cluster that is named.
        """
        check_workers(self.workers)
        arguments = [] if self.runner == "local" else [f"--runner={self.runner}"]
        if self.dask_address is not None:
            if self.runner != "dask":
                raise UsageError(
                    f"--dask-address {self.dask_address}: expected --runner dask "
                    f"beside it, got {self.runner}"
                )
            arguments.append(f"--dask_client_address={self.dask_address}")
        return [*arguments, *more]


LOCAL = Engine()


def seen_from_anywhere(
    command: _Command, beam_arguments: Sequence[str], *paths: str
) -> _Command:
    """A command with absolute paths, where its workers may be in other folders.

    Args:
        command: The command.
        beam_arguments: What Beam is told.
        *paths: Names of the fields that hold one.

    Returns:
        The same on the local runner, whose messages repeat paths as they were given.
    """
    if not any(word.startswith("--runner") for word in beam_arguments):
        return command
    given = {name: getattr(command, name) for name in paths}
    changed = {
        name: os.path.abspath(path)
        for name, path in given.items()
        if path is not None and "://" not in path
    }
    return dataclasses.replace(command, **changed)  # type: ignore[type-var]


def describe(command: str, **options: object) -> str:
    """What of a command line decides what a store holds, for its history.

    Args:
        command: The command, with arguments that have no name.
        **options: By field; what is None or empty is left out.

    Example:
        >>> describe("shard", dataset="cube", discounts=[0.9, 0.99], part_rows=10)
        'shard --dataset cube --discounts 0.9 0.99 --part-rows 10'
    """
    words: list[str] = []
    for name, value in options.items():
        values = value if isinstance(value, list | tuple) else [value]
        if values and value is not None:
            words += [f"--{name.replace('_', '-')}", *map(str, values)]
    return " ".join([command, shlex.join(words)]).strip()


def check_workers(workers: int) -> None:
    """Refuses less than one worker.

    Raises:
        UsageError: If there would be none.
    """
    if workers < 1:
        raise UsageError(f"expected at least 1 worker, got {workers}")
