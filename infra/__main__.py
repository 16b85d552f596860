"""``python -m infra``."""

import sys

from infra.cli import main

if __name__ == "__main__":
    sys.exit(main())
