"""``python -m pipeline COMMAND``: which command was asked for, and its exit code."""

from collections.abc import Sequence
from typing import Annotated

import tyro
from rich.console import Console

from pipeline.commands.append import Append
from pipeline.commands.collect import Collect
from pipeline.commands.export import Export
from pipeline.commands.fetch import Fetch
from pipeline.commands.inspect import Inspect
from pipeline.commands.relabel import Relabel
from pipeline.commands.shard import Shard
from pipeline.commands.verify import DAMAGED, Verify
from pipeline.store.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    DataFormatError,
    MissingPackageError,
    UsageError,
)

__all__ = ["DAMAGED", "main"]

_ON_BEAM = (Append, Collect, Relabel, Shard)

Command = (
    Annotated[Collect, tyro.conf.subcommand("collect")]
    | Annotated[Fetch, tyro.conf.subcommand("fetch")]
    | Annotated[Shard, tyro.conf.subcommand("shard")]
    | Annotated[Append, tyro.conf.subcommand("append")]
    | Annotated[Relabel, tyro.conf.subcommand("relabel")]
    | Annotated[Inspect, tyro.conf.subcommand("inspect")]
    | Annotated[Verify, tyro.conf.subcommand("verify")]
    | Annotated[Export, tyro.conf.subcommand("export")]
)


def main(arguments: Sequence[str]) -> int:
    """Runs one command.

    Args:
        arguments: Without the program's name. What follows ``--`` is handed to Beam.

    Returns:
        Exit code: 0, 1 for a damaged store or a fault of storage or the network, 2
        for input that cannot be used, 130 if interrupted.
    """
    ours, beam_arguments = list(arguments), []
    if "--" in ours:
        end = ours.index("--")
        ours, beam_arguments = ours[:end], ours[end + 1 :]
    command = tyro.cli(Command, prog="python -m pipeline", args=ours)
    try:
        if beam_arguments and not isinstance(command, _ON_BEAM):
            raise UsageError(
                "only collect, shard, append and relabel run on Beam, got "
                f"{' '.join(beam_arguments)} for it after --; leave that out"
            )
        return command.run(Console(), beam_arguments)
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
