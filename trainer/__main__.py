"""``python -m trainer``, and the program ``vast-train``."""

import sys

from trainer import cli


def main() -> int:
    """Runs one command in a process of its own; see ``cli.main``."""
    sys.unraisablehook = cli.ignore_abandoned
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
