"""What the commands share: kinds of arguments, and checks of them."""

from typing import Annotated

import tyro

from pipeline.store.errors import UsageError

EnvironmentId = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
Input = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="INPUT")]
StorePath = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STORE")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


def check_workers(workers: int) -> None:
    """Refuses less than one worker.

    Raises:
        UsageError: If there would be none.
    """
    if workers < 1:
        raise UsageError(f"expected at least 1 worker, got {workers}")
