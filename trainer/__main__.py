"""``python -m trainer``, and the installed script ``vast-train``."""

import sys

from trainer import cli


def main() -> int:
    """Runs one command as a whole process; see ``cli.main``."""
    # Set here and not in ``cli.main``, which tests call: the hook is global.
    sys.unraisablehook = cli.ignore_abandoned
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
