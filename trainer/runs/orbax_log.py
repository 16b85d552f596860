"""What Orbax logs through absl and nobody should read."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silence_orbax() -> Iterator[None]:
    """Hides Orbax's warnings that a folder is opened only to read."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(max(level, logging.ERROR))
    try:
        yield
    finally:
        logger.setLevel(level)
