"""What a person can put right, as exceptions with the exit code of each.

The pipeline, the trainer and infra print the message of any exception that has an
``exit_code`` as one line and end with that code. Every other exception but OSError is a
bug and keeps its traceback. Exceptions of ours therefore have a code on their class,
and nothing is caught by ValueError: a bug may raise that too.
"""

import functools
import os
import socket
from typing import Any

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class UsageError(ValueError):
    """An argument or a setting that cannot be what was meant.

    The message names the argument, what was expected and what came.
    """

    exit_code = EXIT_USAGE


class MissingPackageError(ImportError):
    """A package of an extra that is not installed; the message has the pip line."""

    exit_code = EXIT_USAGE


class DataFormatError(Exception):
    """Bytes on disk are not what the format says.

    The message names what was expected, what came, where, and what to do next.
    """

    exit_code = EXIT_USAGE


class UnfinishedStoreError(DataFormatError):
    """A store without ``dataset.json``: a run that never committed."""


class UnseenFileError(DataFormatError):
    """A file that is there for who launched a pipeline, and not for its worker."""

    @classmethod
    def of(cls, path: str) -> "UnseenFileError":
        """The error of this process, naming it and its machine."""
        return cls(
            f"{path} is not there on host {socket.gethostname()}, process "
            f"{os.getpid()}; expected a path that every worker sees, such as gs:// or "
            "one on a shared disk"
        )


class FormatVersionError(DataFormatError):
    """A store written by a newer version of this project than the reader's."""


class WorkerError(Exception):
    """A worker of a pipeline failed, in a way that nobody has foreseen.

    The message names the file, the part and the episodes it was at, and the error.
    """

    exit_code = EXIT_FAILED


class BadEpisodeError(DataFormatError):
    """An episode that must not be trained on: NaN, Inf or fields of unlike length.

    Attributes:
        reason: One word to count by, such as ``"nonfinite"``.
    """

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        # Workers hand errors on as they are; by itself Python leaves out the reason.
        return functools.partial(type(self), reason=self.reason), self.args
