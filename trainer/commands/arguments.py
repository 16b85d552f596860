"""What the commands share: checks of arguments, and what stands for one not given."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pipeline.store.errors import UsageError
from trainer.costs import published

if TYPE_CHECKING:
    from pipeline.domains.datasets import TaskEnvironment


def check_counts(command: object, *names: str) -> None:
    """Refuses numbers below 1.

    Args:
        command: Whose fields they are.
        names: Fields; those that are None were not given.

    Raises:
        UsageError: Naming the option.
    """
    for name in names:
        number = getattr(command, name)
        if number is not None and number < 1:
            raise UsageError(
                f"--{name.replace('_', '-')}: expected at least 1, got {number}"
            )


def read_environment(
    typed: str | None, arguments: Sequence[str]
) -> "TaskEnvironment | None":
    """Reads the options ``--environment`` and ``--environment-arguments``.

    Args:
        typed: The environment, if one was given.
        arguments: Its arguments.

    Returns:
        The environment; None if none was given.

    Raises:
        UsageError: If it is none, or arguments were given without it.
    """
    from pipeline.domains.environments import parse_environment

    if typed is not None:
        return parse_environment(typed, arguments)
    if arguments:
        raise UsageError(
            "--environment-arguments: expected --environment beside them, got "
            f"{' '.join(arguments)} alone"
        )
    return None


class Sizes(NamedTuple):
    """What a store says of the shapes to train on.

    Attributes:
        dataset: Name of its data set.
        observation_dim: S.
        action_dim: A.
    """

    dataset: str
    observation_dim: int
    action_dim: int


def read_sizes(root: str) -> Sizes:
    """Reads the shapes of a store's data.

    Args:
        root: The store.

    Returns:
        They.

    Raises:
        DataFormatError: If there is no finished store.
    """
    from pipeline.store.reader import Store

    manifest = Store(root).manifest
    shapes = (manifest.fields[name].shape for name in ("observations", "actions"))
    return Sizes(manifest.dataset, *map(math.prod, shapes))


def find_dims(
    dataset: str, observation_dim: int | None, action_dim: int | None
) -> tuple[int, int]:
    """S and A, as given or else as published.

    Args:
        dataset: Of the configuration.
        observation_dim: As given, if it was.
        action_dim: Likewise.

    Returns:
        Both.

    Raises:
        UsageError: If one was not given and nobody has published such data.
    """
    if observation_dim is None or action_dim is None:
        try:
            facts = published.find(dataset)
        except ValueError as error:
            raise UsageError(
                f"{error}; give --observation-dim and --action-dim for data of your own"
            ) from error
        observation_dim = observation_dim or facts.observation_dim
        action_dim = action_dim or facts.action_dim
    return observation_dim, action_dim
