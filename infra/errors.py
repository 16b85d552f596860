"""What goes wrong before anything is started."""


class LaunchError(Exception):
    """A launch that cannot succeed, in one line; exit code 2."""
