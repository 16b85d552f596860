"""``python -m trainer``."""

import sys

from trainer.cli import main, told_once

if __name__ == "__main__":
    sys.unraisablehook = told_once
    sys.exit(main())
