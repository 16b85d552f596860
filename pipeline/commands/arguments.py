"""Types of arguments that several commands share, and checks of their values."""

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
    """Runner and workers of a command's pipelines.

    Attributes:
        runner: Name of the runner: local, dask, or another of Beam's runners, with its
            options after --.
        workers: Number of processes on this machine, for the local runner or for a Dask
            cluster that is started for the command.
        dask_address: Address of the scheduler of a running Dask cluster, such as
            tcp://10.0.0.1:8786. Its workers must see the same paths as this machine.
    """

    runner: str = "local"
    workers: int = 1
    dask_address: str | None = None

    def beam_arguments(self, more: Sequence[str]) -> list[str]:
        """Lists the arguments for Beam: those of this object, then the user's.

        Args:
            more: Arguments of the user, after ``--``.

        Raises:
            UsageError: If ``workers`` is below 1, or an address is given for another
                runner than Dask.
        """
        # Checked here, before any input is read, as runners check it much later.
        check_workers(self.workers)
        arguments = [] if self.runner == "local" else [f"--runner={self.runner}"]
        if self.dask_address is not None:
            if self.runner != "dask":
                raise UsageError(
                    f"--dask-address {self.dask_address}: expected --runner dask "
                    f"beside it, got {self.runner}; add --runner dask"
                )
            arguments.append(f"--dask_client_address={self.dask_address}")
        return [*arguments, *more]


LOCAL = Engine()


def make_paths_absolute(
    command: _Command, beam_arguments: Sequence[str], *paths: str
) -> _Command:
    """Makes a command's paths absolute, as workers may run in other folders.

    Args:
        command: The command.
        beam_arguments: Arguments for Beam.
        *paths: Names of the fields that hold paths.

    Returns:
        A command with absolute paths. On the local runner the command itself, because
        messages should repeat paths as the user gave them.
    """
    # Without `--runner` among Beam's arguments, the local runner is used.
    if not any(word.startswith("--runner") for word in beam_arguments):
        return command
    given = {name: getattr(command, name) for name in paths}
    changed = {
        name: os.path.abspath(path)
        for name, path in given.items()
        if path is not None and "://" not in path
    }
    return dataclasses.replace(command, **changed)  # type: ignore[type-var]


def list_input_paths(source: str | None) -> tuple[str, ...]:
    """Lists the fields of a command that hold paths of inputs.

    Args:
        source: Kind of the input, as the user gave it.

    Returns:
        Names for `make_paths_absolute`. No names for a reader of the user's own, whose
        input may be any text, such as the name of a table.
    """
    # Imported here because `own` needs NumPy, and help should be quick.
    from pipeline.sources.own import is_own

    return () if source is not None and is_own(source) else ("input", "val")


def describe(command: str, **options: object) -> str:
    """Formats the part of a command line that determines a store's content.

    The text becomes a line of the store's history. Options that only say where and how
    fast a command runs are left out, so that the same input gives the same bytes.

    Args:
        command: Name of the command, with its positional arguments.
        **options: Values of the options, by field. Options of None or of an empty
            sequence are left out.

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
    """Checks the number of workers.

    Raises:
        UsageError: If the number is below 1.
    """
    if workers < 1:
        raise UsageError(f"--workers: expected at least 1 worker, got {workers}")
