"""``python -m trainer``."""

import sys

from trainer.cli import ignore_abandoned, main

if __name__ == "__main__":
    sys.unraisablehook = ignore_abandoned
    sys.exit(main())
