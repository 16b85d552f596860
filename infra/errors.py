"""What goes wrong before anything is started."""

from pipeline.store.errors import UsageError


class LaunchError(UsageError):
    """A launch that cannot succeed, in one line."""
