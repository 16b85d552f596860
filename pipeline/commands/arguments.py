"""What the commands share: kinds of arguments, and how wrong ones are reported."""

import contextlib
from collections.abc import Iterator
from typing import Annotated

import tyro

EnvironmentId = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
Input = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="INPUT")]
StorePath = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STORE")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


class UsageError(Exception):
    """An argument that cannot be what was meant; exit code 2."""


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Says that a ValueError raised here is about an argument, not a fault of ours."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from error


def check_workers(workers: int) -> None:
    """Refuses less than one worker.

    Raises:
        ValueError: If there would be none.
    """
    if workers < 1:
        raise ValueError(f"expected at least 1 worker, got {workers}")
