"""The front door of the three programs: parses arguments, runs commands and exits.

Each program is a table of commands. Help and results go to standard output, progress
and errors to standard error. A command that fails exits with the code of its exception:

===  ======================================================================
0    done
1    storage, the network or another process failed (``OSError``, ``WorkerError``,
     ``trainer.errors.RunError``), or ``verify`` found damage
2    wrong use, wrong data, or a package that is not installed
     (``UsageError``, ``DataFormatError``, ``MissingPackageError``)
3    training diverged (``TrainingDivergedError``)
4    a watched training stalled (``StalledError``)
75   preempted; the same command resumes (``PreemptedError``)
130  interrupted (``KeyboardInterrupt``)
===  ======================================================================

An exception without a code is a bug: its traceback is shown, and Python exits with 1.
"""

import dataclasses
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from pipeline import parsing
from pipeline.output import Output, say
from pipeline.store.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    UsageError,
)

_PACKAGE = "vast-rl"
# One slash is enough, because pathlib joins two into one.
_SCHEME = re.compile("([A-Za-z][A-Za-z0-9+.-]+):/+")
# Extra of pyproject.toml that installs each module. An ImportError names the module
# only, and the error should give the command that installs it.
EXTRAS = {
    "PIL": "report",
    "apache_beam": "pipeline",
    "array_record": "rlds",
    "av": "report",
    "dask": "dask",
    "distributed": "dask",
    "etils": "trainer",
    "flax": "trainer",
    "fsspec": "cloud",
    "gcsfs": "cloud",
    "google": "cloud",
    "google_crc32c": "rlds",
    "grain": "trainer",
    "grpc": "pipeline",
    "gymnasium": "eval",
    "h5py": "pipeline",
    "indexed_gzip": "pipeline",
    "isal": "pipeline",
    "jax": "trainer",
    "jinja2": "report",
    "matplotlib": "report",
    "mujoco": "eval",
    "ogbench": "eval",
    "optax": "trainer",
    "orbax": "trainer",
    "psutil": "trainer",
    "pyarrow": "pipeline",
    "requests": "launch",
    "safetensors": "trainer",
    "scipy": "report",
    "tensorboardX": "trainer",
    "wandb": "wandb",
    "yaml": "launch",
}


class Command(Protocol):
    """A command: a dataclass whose fields are its arguments.

    Its class may have ``local_paths``, the names of fields whose files are written on
    this machine only: such a path may not be in a bucket.
    """

    def execute(self, output: Output) -> int:
        """Runs the command.

        Args:
            output: Consoles for results and progress.

        Returns:
            Exit code.
        """


@runtime_checkable
class PassingCommand(Protocol):
    """A command that passes further arguments on, to Beam or to a configuration."""

    def execute_with(self, output: Output, more: Sequence[str]) -> int:
        """Runs the command.

        Args:
            output: Consoles for results and progress.
            more: Arguments after ``--``, unchanged.

        Returns:
            Exit code.
        """


@dataclass(frozen=True)
class Program:
    """One of the programs.

    Attributes:
        name: Package name, as in ``python -m NAME``.
        script: Name of the installed script.
        purpose: One line of help.
        commands: Commands by name. Importing them must stay cheap, because ``--help``
            shows the first line of every docstring.
        loose: Names of commands that pass unknown options on without ``--``.
    """

    name: str
    script: str
    purpose: str
    commands: Mapping[str, type[Command] | type[PassingCommand]]
    loose: frozenset[str] = frozenset()

    def called(self) -> str:
        """Tells how this process was called: by script or module; help repeats it."""
        by_script = os.path.basename(sys.argv[0]) == self.script
        return self.script if by_script else f"python -m {self.name}"

    def usage(self) -> str:
        """Lists the commands, a line each."""
        called, width = self.called(), max(map(len, self.commands))
        return "\n".join(
            f"  {called} {name:{width}} {(kind.__doc__ or '').splitlines()[0]}"
            for name, kind in self.commands.items()
        )


def run(program: Program, arguments: Sequence[str] | None = None) -> int:
    """Runs one command of a program.

    Args:
        program: The program.
        arguments: Command line without the program's name; None takes the process's.

    Returns:
        Exit code, see the table above.

    Raises:
        SystemExit: If arguments of a command are wrong, or its help was asked for.
        Exception: If there is a bug.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    output = Output.standard()
    name = words[0] if words else None
    if name in ("-h", "--help"):
        say(output.results, f"{program.purpose}\n\n{program.usage()}\n\n{_HINT}")
        return 0
    if name == "--version":
        say(output.results, f"{_PACKAGE} {_version()}")
        return 0
    if name not in program.commands:
        what = "no command" if name is None else f"unknown command {name!r}"
        say(output.progress, f"error: {what}; expected one of", style="red")
        say(output.progress, program.usage())
        return EXIT_USAGE
    try:
        try:
            command, more = parse(program, words)
        except SystemExit as stop:
            explain = getattr(program.commands[words[0]], "explain", None)
            # Code 0 means that help was asked for; a command may add text to it that is
            # too slow to compute for every start.
            if explain is not None and not stop.code:
                explain(output, words[1:])
            raise
        if isinstance(command, PassingCommand):
            return command.execute_with(output, more)
        return command.execute(output)
    except KeyboardInterrupt:
        return _fail(output, "interrupted", EXIT_INTERRUPTED)
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        return _fail(output, _message(error), code)


def parse(
    program: Program, arguments: Sequence[str]
) -> tuple[Command | PassingCommand, list[str]]:
    """Parses a command line.

    Args:
        program: The program.
        arguments: Name of a command and its arguments.

    Returns:
        The command, and the arguments that it passes on.

    Raises:
        UsageError: If arguments follow ``--`` and the command passes none on, or if a
            path is in a bucket and has to be local.
        SystemExit: If arguments are wrong, or help was asked for.
    """
    name, ours, more = arguments[0], list(arguments[1:]), []
    if "--" in ours:
        end = ours.index("--")
        ours, more = ours[:end], ours[end + 1 :]
    ours = [_expand_home(word) for word in ours]
    kind: Any = program.commands[name]
    options: dict[str, Any] = {
        "prog": f"{program.called()} {name}",
        "config": parsing.UNPREFIXED,
    }
    # Options of a configuration's fields are too many to declare to tyro, so loose
    # commands take whatever tyro does not know.
    if name in program.loose:
        ours, fields = _split_fields(ours)
        command, unknown = parsing.parse_known(kind, ours, **options)
        _check_local(command)
        return command, [*fields, *unknown, *more]
    command = parsing.parse(kind, ours, **options)
    _check_local(command)
    if more and not isinstance(command, PassingCommand):
        passing = [
            command_name
            for command_name, command_kind in program.commands.items()
            if issubclass(command_kind, PassingCommand)
        ]
        raise UsageError(
            f"{name} takes no arguments after --, got {' '.join(more)}; leave them "
            f"out (these commands do: {', '.join(passing)})"
        )
    return command, more


def _check_local(command: Any) -> None:
    """Refuses paths in a bucket where files are written on this machine only.

    Without this check such files would land in a local folder called ``gs:``.
    """
    for name in getattr(command, "local_paths", ()):
        path = str(getattr(command, name))
        if (scheme := _SCHEME.match(path)) is not None:
            raise UsageError(
                f"--{name}: expected a local path, got {scheme[1]}://"
                f"{path[scheme.end() :]}; write to a local folder, and copy the files "
                "to the bucket afterwards"
            )
    for field in dataclasses.fields(command):
        # A command may have subcommands.
        if dataclasses.is_dataclass(subcommand := getattr(command, field.name)):
            _check_local(subcommand)


def _split_fields(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separates options of fields, such as ``--agent.width 128``, from all others.

    tyro does not know these options. It would take the value 128 for a positional
    argument that the user left out.

    Args:
        words: Arguments of a command.

    Returns:
        Arguments for tyro, and the options of fields with their values.
    """
    ours: list[str] = []
    fields: list[str] = []
    within = False
    for word in words:
        if word.startswith("--"):
            name, equals, _ = word.partition("=")
            is_field = "." in name
            within = is_field and not equals
        else:
            is_field = within
        (fields if is_field else ours).append(word)
    return ours, fields


def _expand_home(word: str) -> str:
    """Replaces a leading ``~`` by the home folder, as a shell does.

    Shells leave ``~`` where it is quoted or follows ``=``. It is replaced here and
    nowhere else, so that a path means the same folder to every module: a run's files
    were once written to two folders.
    """
    name, equals, value = word.partition("=")
    if equals and name.startswith("--"):
        return f"{name}={os.path.expanduser(value)}"
    return os.path.expanduser(word)


def exit_code(error: BaseException) -> int | None:
    """Returns the exit code of an exception; None if the exception is a bug."""
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        return code
    # A disk or a network failed: repeating the command later may help.
    if isinstance(error, OSError):
        return EXIT_FAILED
    return None if _missing_extra(error) is None else EXIT_USAGE


def _message(error: Exception) -> str:
    """Formats an exception in one line."""
    extra = _missing_extra(error)
    text = str(error)
    if extra is not None:
        text += f"; install it with `pip install '{_PACKAGE}[{extra}]'`"
    # One line, also where a library's message has several: logs and tests read lines.
    return " ".join(text.split())


def _missing_extra(error: BaseException) -> str | None:
    """Returns the extra that installs the missing module, if that is the error."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    return EXTRAS.get(error.name.partition(".")[0])


def _version() -> str:
    """Returns the version of the installed package."""
    import importlib.metadata

    return importlib.metadata.version(_PACKAGE)


def _fail(output: Output, message: str, code: int) -> int:
    """Prints an error, and returns the exit code."""
    say(output.progress, f"error: {message}", style="red")
    return code


_HINT = "COMMAND --help lists the options of one, --version says which version this is."
