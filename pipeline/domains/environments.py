"""Environments: made and seeded alike to collect, relabel and evaluate."""

import contextlib
import importlib
import json
import os
import re
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pydantic

from pipeline.domains.datasets import TaskEnvironment
from pipeline.store.errors import MissingPackageError, UsageError
from pipeline.store.manifest import ENVIRONMENT_ID, EnvironmentArgument

# Reentrant, for a block within a block of the same thread.
_NUMPYS_GENERATOR = threading.RLock()


def episode_seed(base_seed: int, episode: int) -> int:
    """The seed of one episode of a collection or an evaluation.

    Args:
        base_seed: Seed of the collection or evaluation, non-negative.
        episode: Index of the episode, from 0.

    Returns:
        63 bits: a signed word, yet so many that no two episodes share a seed.

    Example:
        >>> episode_seed(0, 0) != episode_seed(0, 1)
        True
    """
    sequence = np.random.SeedSequence((base_seed, episode))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def parse_environment(text: str, arguments: Sequence[str] = ()) -> TaskEnvironment:
    """Reads what a person typed for an environment.

    Args:
        text: ``ID``, or ``MODULE:ID`` to have the module imported that registers it.
        arguments: For the environment's constructor, such as ``size=3``: numbers, true,
            false, null and words.

    Returns:
        The environment, not made.

    Raises:
        UsageError: If it is no id, or an argument is none.

    Example:
        >>> parse_environment("own.walks:Line-v0", ["size=3"]).kwargs
        {'size': 3}
    """
    module, colon, environment_id = text.rpartition(":")
    dotted = all(part.isidentifier() for part in module.split("."))
    if re.match(ENVIRONMENT_ID, environment_id) is None or (colon and not dotted):
        raise UsageError(
            f"--environment: expected ID or MODULE:ID, such as Walker2d-v5 or "
            f"my_package.walks:Line-v0, got {text!r:.200}"
        )
    return TaskEnvironment(environment_id, parse_arguments(arguments), module)


def parse_arguments(arguments: Sequence[str]) -> dict[str, EnvironmentArgument]:
    """Reads arguments of an environment, ``NAME=VALUE`` each.

    Args:
        arguments: As typed.

    Returns:
        Values by name: what JSON calls a number, true, false or null, else a word.

    Raises:
        UsageError: If one has no name, or its value is of another kind.
    """
    parsed: dict[str, EnvironmentArgument] = {}
    for argument in arguments:
        name, equals, text = argument.partition("=")
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        kept = keep_arguments({name: value})
        if not equals or not name.isidentifier() or not kept or name in parsed:
            raise UsageError(
                "--environment-arguments: expected NAME=VALUE once for each name, the "
                "value a number, true, false, null or a word of letters, digits, - and "
                f"_, got {argument!r:.200}"
            )
        parsed |= kept
    return parsed


def format_arguments(arguments: Mapping[str, EnvironmentArgument]) -> list[str]:
    """Writes arguments of an environment as `parse_arguments` reads them.

    Args:
        arguments: Values by name.

    Returns:
        ``NAME=VALUE`` each.

    Example:
        >>> format_arguments({"size": 3, "kind": "wide"})
        ['size=3', 'kind="wide"']
    """
    return [f"{name}={json.dumps(value)}" for name, value in arguments.items()]


def keep_arguments(arguments: dict[str, Any]) -> dict[str, EnvironmentArgument]:
    """The arguments that may stand in a store: numbers and words.

    Constructors may read files that other arguments name.
    """
    adapter = pydantic.TypeAdapter(dict[str, EnvironmentArgument])
    kept: dict[str, EnvironmentArgument] = {}
    for name, value in arguments.items():
        with contextlib.suppress(pydantic.ValidationError):
            kept |= adapter.validate_python({name: value})
    return kept


def make_named_environment(spec: TaskEnvironment) -> Any:
    """Makes an environment, importing its module first if a person named one.

    Args:
        spec: Which one.

    Returns:
        A ``gymnasium.Env``, as ``make_wrapped_environment`` makes it.

    Raises:
        MissingPackageError: If the simulator is not installed.
        UsageError: If the module cannot be imported, or the environment not be made.
    """
    if not spec.module:
        return make_wrapped_environment(spec.environment_id, **spec.kwargs)
    # Programs that were installed do not look where they are started.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        importlib.import_module(spec.module)
    except Exception as error:  # Whatever a module of others raises.
        raise UsageError(
            f"{spec.module}: cannot be imported ({type(error).__name__}: {error}); "
            "expected a module that is installed, or lies where the command is given"
        ) from error
    try:
        return make_wrapped_environment(spec.environment_id, **spec.kwargs)
    except (UsageError, MissingPackageError):
        raise
    except Exception as error:
        raise UsageError(
            f"{spec.environment_id}: cannot be made ({type(error).__name__}: {error}); "
            f"gymnasium.make has to work after `import {spec.module}`"
        ) from error


def make_wrapped_environment(environment_id: str, **kwargs: Any) -> Any:
    """Makes an environment without a renderer, in Gymnasium's wrappers.

    Ids and arguments come from runs and stores, which anybody may have written: nothing
    is imported for them, so that only an environment that is registered can be made.

    Args:
        environment_id: Gymnasium id.
        **kwargs: For the environment's constructor.

    Returns:
        A ``gymnasium.Env``, with the time limit that it is registered with, if any.

    Raises:
        MissingPackageError: If the simulator is not installed.
        UsageError: If the id names a module, or no environment that is registered, the
            environment does not take the arguments, or it cannot be loaded.
    """
    check_environment_id(environment_id)
    try:
        import gymnasium

        if environment_id not in gymnasium.registry:
            import ogbench  # noqa: F401  (registers its environments)
    except ImportError as error:
        raise MissingPackageError(
            f"making {environment_id} needs the simulator ({error}); install it "
            "with `pip install 'vast-rl[eval]'`"
        ) from error
    try:
        with known_warnings_ignored():
            environment = gymnasium.make(
                environment_id, disable_env_checker=True, **kwargs
            )
    except gymnasium.error.UnregisteredEnv as error:
        raise UsageError(
            f"{environment_id}: expected an environment that is registered, as those "
            f"of OGBench are ({error}); install the package that registers it, or name "
            f"the module that does: --environment MODULE:{environment_id}"
        ) from error
    except TypeError as error:
        raise UsageError(
            f"{environment_id}: cannot be made with the arguments {kwargs} ({error}); "
            "they come from the run or the store"
        ) from error
    except RuntimeError as error:
        # It looks for how to draw when it is loaded, though nothing is ever drawn.
        if "MUJOCO_GL" not in str(error):
            raise
        raise UsageError(
            f"{environment_id}: the simulator cannot be loaded ({error}); set "
            "MUJOCO_GL to egl, osmesa or disabled, or unset it"
        ) from error
    # A maze writes its model to a temporary file, loads that and leaves it behind.
    model = Path(getattr(environment.unwrapped, "fullpath", ""))
    if model.parent == Path(tempfile.gettempdir()):
        model.unlink(missing_ok=True)
    return environment


def check_environment_id(environment_id: str) -> None:
    """Refuses an id that names a module, which Gymnasium would import.

    Args:
        environment_id: Gymnasium id.

    Raises:
        UsageError: If it does, or is no printable text.
    """
    if re.match(ENVIRONMENT_ID, environment_id) is None:
        raise UsageError(
            f"{environment_id!r:.80}: expected the id of an environment such as "
            "'cube-single-v0'; one with a colon has a module imported, and nothing is "
            "imported for what stands in a file"
        )


def make_environment(environment_id: str, **kwargs: Any) -> Any:
    """Makes an OGBench environment, bare of Gymnasium's wrappers.

    Args:
        environment_id: Gymnasium id.
        **kwargs: For the environment's constructor.

    Returns:
        The environment. It has no time limit.

    Raises:
        MissingPackageError: If the simulator is not installed.
    """
    return make_wrapped_environment(environment_id, **kwargs).unwrapped


@contextlib.contextmanager
def numpy_seeded(seed: int) -> Iterator[None]:
    """Seeds NumPy's global generator within a block and restores it afterwards.

    OGBench's mazes and scripted policies draw from it; ours never do. There is one of
    it a process, and some runners have several threads work in one: blocks of other
    threads wait until this one ends.

    Args:
        seed: Any non-negative integer.

    Yields:
        Nothing.
    """
    with _NUMPYS_GENERATOR:
        state = np.random.get_state()  # noqa: NPY002
        # The generator takes words of 32 bits; this spreads a seed of any size.
        np.random.seed(np.random.SeedSequence(seed).generate_state(8))  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002


@contextlib.contextmanager
def known_warnings_ignored() -> Iterator[None]:
    """Hides what the simulator warns of and nobody can act on."""
    with warnings.catch_warnings():
        # It looks for a display when loaded, though nothing is ever drawn on one.
        warnings.filterwarnings("ignore", ".*DISPLAY environment variable is missing")
        # It states the bounds of its actions, -1 and 1, in more bits than it keeps.
        warnings.filterwarnings("ignore", ".*precision lowered by casting")
        yield
