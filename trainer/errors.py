"""What ends a command of ``python -m trainer`` early, and the exit code of each.

Launchers tie what they do next to the codes: 75 is started again, 1 is tried again,
2 and 3 are not.
"""

from pipeline.store.errors import EXIT_FAILED as EXIT_FAILED
from pipeline.store.errors import EXIT_USAGE as EXIT_USAGE
from pipeline.store.errors import UsageError

EXIT_DIVERGED = 3
EXIT_STALLED = 4
# sysexits.h EX_TEMPFAIL: saved, and the same command goes on. Cluster restart
# policies are tied to it.
EXIT_PREEMPTED = 75


class ConfigError(UsageError):
    """A configuration that cannot be used: which key, where, and what is near it."""


class RunError(RuntimeError):
    """What went wrong while a command ran, in one line for a person."""

    exit_code = EXIT_FAILED


class StorageError(RunError):
    """What a run writes could not be written or read: what, where and what to do."""


class RunLockedError(UsageError):
    """A run that another process is training: names it."""


class HostsError(RunError):
    """Processes that cannot work together: which, and why."""


class EvaluationError(RunError):
    """Acting in the environment failed; the message says where and why."""


class TrainingDivergedError(RunError):
    """Training diverged; names the interval of steps and the last good checkpoint."""

    exit_code = EXIT_DIVERGED


class StalledError(RunError):
    """No checkpoint came for too long: says since when, and which one was the last."""

    exit_code = EXIT_STALLED


class PreemptedError(RunError):
    """The run was told to stop, and has saved: start it again to go on."""

    exit_code = EXIT_PREEMPTED
