"""The error of launches that are refused before anything is started."""

from pipeline.store.errors import UsageError


class LaunchError(UsageError):
    """A launch cannot succeed; the message says why, in one line."""
