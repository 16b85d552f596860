"""``python -m trainer``."""

import sys

from trainer.cli import ignore_closed_loop, main

if __name__ == "__main__":
    sys.unraisablehook = ignore_closed_loop
    sys.exit(main())
