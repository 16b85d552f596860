"""Exceptions for faults that a user can mend, each with its exit code.

The pipeline, the trainer and infra print the message of any exception that has an
``exit_code`` as one line and exit with that code. Every other exception but OSError is
a bug and keeps its traceback. So our exception classes carry a code, and no command
catches ValueError: a bug may raise ValueError too.
"""

import functools
import os
import socket
from typing import Any

# Schedulers and launchers repeat a command that failed with 1, because a disk or a
# network may have recovered, and give up on 2: the same command would fail again.
EXIT_FAILED = 1
EXIT_USAGE = 2
# Shells report 128 + 2 for a process that SIGINT, signal 2, has ended.
EXIT_INTERRUPTED = 130


class UsageError(ValueError):
    """A wrong argument, setting or environment variable.

    The message names the argument, what was expected and what came. The class derives
    from ValueError because pydantic and tyro report only ValueErrors of a check as
    errors of the checked field.
    """

    exit_code = EXIT_USAGE


class MissingPackageError(ImportError):
    """A package of an extra is not installed; the message gives the pip command."""

    exit_code = EXIT_USAGE


class DataFormatError(Exception):
    """Bytes in a file differ from what its format prescribes.

    The message names what was expected, what came, the file, and what to do next.
    """

    exit_code = EXIT_USAGE


class UnfinishedStoreError(DataFormatError):
    """A store has no ``dataset.json``: the command that wrote it never committed."""


class UnseenFileError(DataFormatError):
    """A worker of a pipeline does not see a file that the launching process saw."""

    @classmethod
    def of(cls, path: str) -> "UnseenFileError":
        """Builds the error for a file that this process does not see.

        Args:
            path: Local path of the file.

        Returns:
            The error, whose message names the file, the host and the process.
        """
        return cls(
            f"{path} is not there on host {socket.gethostname()}, process "
            f"{os.getpid()}; expected a path that every worker sees, such as gs:// or "
            "one on a shared disk; copy the file to such a path"
        )


class FormatVersionError(DataFormatError):
    """A store was written by a newer version of this project than the reader's."""


class WorkerError(Exception):
    """A worker of a pipeline failed with an unforeseen exception.

    The message gives that exception, and the file, the part and the episodes that the
    worker was reading.
    """

    exit_code = EXIT_FAILED


class BadEpisodeError(DataFormatError):
    """An episode cannot be trained on: NaN, Inf or fields of different lengths.

    Attributes:
        reason: One word under which dropped episodes are counted, such as
            ``"nonfinite"``.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers of a pipeline pickle their errors, and pickle calls the class with
        # `args` alone: without this method it would lack the keyword `reason`.
        return functools.partial(type(self), reason=self.reason), self.args
