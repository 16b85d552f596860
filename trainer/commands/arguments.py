"""Checks of arguments that several commands share, and values for missing ones."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import tyro

from pipeline.store.errors import UsageError
from trainer.costs import published

if TYPE_CHECKING:
    from pipeline.domains.datasets import TaskEnvironment

# tyro names a positional argument after its type, unless it has a name of its own.
RunPath = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
ConfigPath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG")]
OptionalConfigPath = Annotated[
    Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[CONFIG]")
]
SweepPath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SWEEP")]


def check_counts(command: object, *names: str) -> None:
    """Refuses numbers below 1.

    Args:
        command: Command that has the numbers as fields.
        names: Names of the fields; a field that is None was not given.

    Raises:
        UsageError: If a number is below 1; the error names the option.
    """
    for name in names:
        number = getattr(command, name)
        if number is not None and number < 1:
            raise UsageError(
                f"--{name.replace('_', '-')}: expected at least 1, got {number}"
            )


def read_environment(
    text: str | None, arguments: Sequence[str]
) -> "TaskEnvironment | None":
    """Reads the options ``--environment`` and ``--environment-arguments``.

    Args:
        text: Text of ``--environment``; None if it was not given.
        arguments: Texts of ``--environment-arguments``.

    Returns:
        The environment; None if it was not given.

    Raises:
        UsageError: If the text names no environment, or arguments were given without
            one.
    """
    from pipeline.domains.environments import parse_environment

    if text is not None:
        return parse_environment(text, arguments)
    if arguments:
        raise UsageError(
            "--environment-arguments: expected --environment beside them, got "
            f"{' '.join(arguments)} alone"
        )
    return None


class StoreSizes(NamedTuple):
    """Sizes of a store's data that the networks depend on.

    Attributes:
        dataset: Name of the data set.
        observation_dim: Number S of components of an observation.
        action_dim: Number A of components of an action.
    """

    dataset: str
    observation_dim: int
    action_dim: int


def read_sizes(root: str) -> StoreSizes:
    """Reads the sizes of a store's data.

    Args:
        root: Path of the store.

    Returns:
        The sizes.

    Raises:
        DataFormatError: If no finished store is at the path.
    """
    from pipeline.store.reader import Store

    # One small file is read, and no row.
    manifest = Store(root).manifest
    shapes = (manifest.fields[name].shape for name in ("observations", "actions"))
    # Networks take flat vectors, whatever shape the rows have.
    return StoreSizes(manifest.dataset, *map(math.prod, shapes))


def find_dims(
    dataset: str, observation_dim: int | None, action_dim: int | None
) -> tuple[int, int]:
    """Finds the sizes of observations and actions that were not given.

    Args:
        dataset: Name of the configuration's data set.
        observation_dim: Components of an observation; None if they were not given.
        action_dim: Components of an action; None if they were not given.

    Returns:
        Both sizes: as given, else those of the published data set.

    Raises:
        UsageError: If a size was not given and the data set is not a published one.
    """
    if observation_dim is None or action_dim is None:
        try:
            sizes = published.find_dataset(dataset)
        except ValueError as error:
            raise UsageError(
                f"{error}; give --observation-dim and --action-dim for data of your own"
            ) from error
        # `check_counts` has refused 0, so `or` stands for None alone.
        observation_dim = observation_dim or sizes.observation_dim
        action_dim = action_dim or sizes.action_dim
    return observation_dim, action_dim
