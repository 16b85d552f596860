"""Errors that end a command of ``python -m trainer``, with the exit code of each.

Launchers decide by these codes what happens next. After 75 they start the command
again at once, after 1 as often as the user allows, and after 2 or 3 never, because the
command would end in the same way.
"""

from pipeline.store.errors import EXIT_FAILED as EXIT_FAILED
from pipeline.store.errors import EXIT_USAGE as EXIT_USAGE
from pipeline.store.errors import UsageError

EXIT_DIVERGED = 3
EXIT_STALLED = 4
# EX_TEMPFAIL of sysexits.h: the run is saved, and the same command continues it. The
# restart policies of clusters name this number.
EXIT_PREEMPTED = 75


class ConfigError(UsageError):
    """A configuration that cannot be used; names the key and what was expected."""


class RunError(RuntimeError):
    """A command failed while it ran, with one line that tells a user why."""

    exit_code = EXIT_FAILED


class StorageError(RunError):
    """A file of a run cannot be read or written; names the file and what to do."""


class RunLockedError(UsageError):
    """Another process is training in the run's folder; names that process."""


class HostsError(RunError):
    """The processes of a run cannot work together; names the process and the reason."""


class EvaluationError(RunError):
    """Acting in the environment failed; names the place and the reason."""


class OutOfMemoryError(RunError):
    """This machine or a device lacks memory; names the settings that take less."""


class TrainingDivergedError(RunError):
    """Training diverged; names the interval of steps and the last good checkpoint."""

    exit_code = EXIT_DIVERGED


class StalledError(RunError):
    """A watched run wrote no checkpoint for too long; names the last one."""

    exit_code = EXIT_STALLED


class PreemptedError(RunError):
    """The run was told to stop and has saved; the same command continues it."""

    exit_code = EXIT_PREEMPTED
