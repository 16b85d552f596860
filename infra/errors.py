"""The error for mistakes that are found before a job is submitted."""

from pipeline.store.errors import UsageError


class LaunchError(UsageError):
    """A job would fail, or an option is wrong; the job has not been submitted.

    The message says in one line what was expected, what came, and what to do next. The
    class is a `UsageError`, because the same command would be refused again.
    """
