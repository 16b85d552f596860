"""Makes and seeds environments, in one way for collecting, relabelling and evaluating.

Ids and arguments of environments may stand in a store or a run that a stranger wrote.
So only a module that the user has typed is imported; see `make_named_environment`.
"""

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

# Guards NumPy's global generator, see `seed_numpy`. Reentrant, because a thread may
# nest such blocks.
_NUMPYS_GENERATOR = threading.RLock()


def episode_seed(base_seed: int, episode: int) -> int:
    """Derives the seed of one episode of a collection or an evaluation.

    Args:
        base_seed: Seed of the collection or evaluation, non-negative.
        episode: Index of the episode, from 0.

    Returns:
        A number of 63 bits: it fits a signed word, and is wide enough that two episodes
        practically never share a seed.

    Example:
        >>> episode_seed(0, 0) != episode_seed(0, 1)
        True
    """
    sequence = np.random.SeedSequence((base_seed, episode))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def parse_environment(text: str, arguments: Sequence[str] = ()) -> TaskEnvironment:
    """Parses an environment that a user typed.

    Args:
        text: ``ID``, or ``MODULE:ID``, where importing the module registers the id.
        arguments: Arguments of the environment's constructor, such as ``size=3``:
            numbers, true, false, null and words.

    Returns:
        Description of the environment, which is not made yet.

    Raises:
        UsageError: If the text is no id, or an argument is malformed.

    Example:
        >>> parse_environment("own.walks:Line-v0", ["size=3"]).kwargs
        {'size': 3}
    """
    module, colon, environment_id = text.rpartition(":")
    dotted = all(part.isidentifier() for part in module.split("."))
    if re.match(ENVIRONMENT_ID, environment_id) is None or (colon and not dotted):
        raise UsageError(
            f"--environment: expected ID or MODULE:ID, such as Walker2d-v5 or "
            f"my_package.walks:Line-v0, got {text!r:.200}; correct it"
        )
    return TaskEnvironment(environment_id, parse_arguments(arguments), module)


def parse_arguments(arguments: Sequence[str]) -> dict[str, EnvironmentArgument]:
    """Parses arguments of an environment, each of the form ``NAME=VALUE``.

    Args:
        arguments: Arguments as the user typed them.

    Returns:
        Values by name: JSON's numbers, true, false and null; other texts are words.

    Raises:
        UsageError: If an argument has no name, or its value is neither of these.
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
                "value a finite number, true, false, null or a word of letters, "
                f"digits, - and _, got {argument!r:.200}; correct it"
            )
        parsed |= kept
    return parsed


def format_arguments(arguments: Mapping[str, EnvironmentArgument]) -> list[str]:
    """Formats arguments of an environment as `parse_arguments` reads them.

    Args:
        arguments: Values by name.

    Returns:
        ``NAME=VALUE`` for each argument.

    Example:
        >>> format_arguments({"size": 3, "kind": "wide"})
        ['size=3', 'kind="wide"']
    """
    return [f"{name}={json.dumps(value)}" for name, value in arguments.items()]


def keep_arguments(arguments: dict[str, Any]) -> dict[str, EnvironmentArgument]:
    """Selects the arguments that a store may hold: finite numbers and words.

    A word has no slashes and dots. An argument with these might be a path, and a
    constructor might then open a file that a stranger has named.
    """
    # Manifests and runs hold no NaN and no infinity, which are no JSON.
    adapter = pydantic.TypeAdapter(
        dict[str, EnvironmentArgument],
        config=pydantic.ConfigDict(allow_inf_nan=False),
    )
    kept: dict[str, EnvironmentArgument] = {}
    for name, value in arguments.items():
        with contextlib.suppress(pydantic.ValidationError):
            kept |= adapter.validate_python({name: value})
    return kept


def make_named_environment(spec: TaskEnvironment) -> Any:
    """Makes an environment, after importing its module if the user named one.

    Args:
        spec: Description of the environment, from ``parse_environment`` if it names a
            module.

    Returns:
        A ``gymnasium.Env``, as ``make_wrapped_environment`` makes it.

    Raises:
        MissingPackageError: If the simulator is not installed.
        UsageError: If the module cannot be imported or the environment cannot be made.
    """
    if not spec.module:
        return make_wrapped_environment(spec.environment_id, **spec.kwargs)
    # `python -m` searches the current folder for modules and an installed script does
    # not: both should find a module that lies where the command is given.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        importlib.import_module(spec.module)
    except Exception as error:  # The user's module may raise anything.
        raise UsageError(
            f"{spec.module}: cannot be imported ({type(error).__name__}: {error}); "
            "install the module, or run the command in the folder that holds it"
        ) from error
    try:
        return make_wrapped_environment(spec.environment_id, **spec.kwargs)
    except (UsageError, MissingPackageError):
        raise
    except Exception as error:
        raise UsageError(
            f"{spec.environment_id}: cannot be made ({type(error).__name__}: {error}); "
            f"expected gymnasium.make to work after `import {spec.module}`, correct "
            "the module or its name"
        ) from error


def make_wrapped_environment(environment_id: str, **kwargs: Any) -> Any:
    """Makes an environment without a renderer, in Gymnasium's wrappers.

    Ids and arguments come from runs and stores, which a stranger may have written.
    Nothing is imported for them, so that only registered environments can be made.

    Args:
        environment_id: Gymnasium id.
        **kwargs: Arguments of the environment's constructor.

    Returns:
        A ``gymnasium.Env``, with the time limit that it is registered with, if any.

    Raises:
        MissingPackageError: If the simulator is not installed.
        UsageError: If the id names a module or is not registered, if the environment
            does not take the arguments, or if the simulator cannot be loaded.
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
        with ignore_known_warnings():
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
            "name others with --environment-arguments"
        ) from error
    except RuntimeError as error:
        # MuJoCo chooses a renderer when it is imported, although nothing is drawn here,
        # and raises RuntimeError for a bad MUJOCO_GL.
        if "MUJOCO_GL" not in str(error):
            raise
        raise UsageError(
            f"{environment_id}: the simulator cannot be loaded ({error}); set "
            "MUJOCO_GL to egl, osmesa or disabled, or unset it"
        ) from error
    # OGBench's mazes write their model to a temporary file, load it and leave it there.
    # A long collection would fill the folder.
    model = Path(getattr(environment.unwrapped, "fullpath", ""))
    if model.parent == Path(tempfile.gettempdir()):
        model.unlink(missing_ok=True)
    return environment


def check_time_limit(environment: Any, environment_id: str) -> None:
    """Refuses an environment without a time limit: its episodes might never end.

    Args:
        environment: Environment from ``make_named_environment``.
        environment_id: Its id, for the error.

    Raises:
        UsageError: If the environment is registered without ``max_episode_steps``.
    """
    if getattr(environment.spec, "max_episode_steps", None) is None:
        raise UsageError(
            f"{environment_id}: expected an environment with a time limit, got one "
            "without; register it with max_episode_steps, or give "
            "--environment-arguments max_episode_steps=1000"
        )


def check_environment_id(environment_id: str) -> None:
    """Refuses an id that names a module, which Gymnasium would import.

    Args:
        environment_id: Gymnasium id.

    Raises:
        UsageError: If the id contains a colon or is not printable.
    """
    if re.match(ENVIRONMENT_ID, environment_id) is None:
        raise UsageError(
            f"{environment_id!r:.80}: expected the id of an environment such as "
            "'cube-single-v0'; one with a colon has a module imported, and nothing is "
            "imported for what stands in a file: name it with --environment"
        )


def make_environment(environment_id: str, **kwargs: Any) -> Any:
    """Makes an OGBench environment without Gymnasium's wrappers.

    Args:
        environment_id: Gymnasium id.
        **kwargs: Arguments of the environment's constructor.

    Returns:
        The environment, without a time limit.

    Raises:
        MissingPackageError: If the simulator is not installed.
    """
    return make_wrapped_environment(environment_id, **kwargs).unwrapped


@contextlib.contextmanager
def seed_numpy(seed: int) -> Iterator[None]:
    """Seeds NumPy's global generator within a block and restores it afterwards.

    OGBench's mazes and scripted policies draw from that generator; our code never does.
    A process has only one, and some Beam runners run several threads in a process, so a
    lock makes the blocks of other threads wait. Without it, collections on such runners
    silently differed.

    Args:
        seed: Any non-negative integer.

    Yields:
        Nothing.
    """
    with _NUMPYS_GENERATOR:
        state = np.random.get_state()  # noqa: NPY002
        # np.random.seed takes 32-bit words, so a SeedSequence spreads the seed's bits.
        np.random.seed(np.random.SeedSequence(seed).generate_state(8))  # noqa: NPY002
        try:
            yield
        finally:
            np.random.set_state(state)  # noqa: NPY002


@contextlib.contextmanager
def ignore_known_warnings() -> Iterator[None]:
    """Hides warnings of the simulator that no user can act on."""
    with warnings.catch_warnings():
        # The renderer looks for a display when it is imported; nothing is drawn here.
        warnings.filterwarnings("ignore", ".*DISPLAY environment variable is missing")
        # Environments pass bounds of -1 and 1 as float64 and declare float32.
        warnings.filterwarnings("ignore", ".*precision lowered by casting")
        yield
