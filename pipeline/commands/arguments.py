"""What the commands share: kinds of arguments, and checks of them."""

import shlex
from typing import Annotated

import tyro

from pipeline.store.errors import UsageError

EnvironmentId = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
Input = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="INPUT")]
StorePath = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STORE")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


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
