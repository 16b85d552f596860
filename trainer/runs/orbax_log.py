"""What Orbax logs or warns of and nobody should read."""

import logging
import warnings
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


def hide_unstarted_writes() -> None:
    """Hides warnings about writes that a failed save left without having started them.

    Python finds these coroutines whenever it drops the save's error, often as the
    program ends, so they would be the last that is read. This holds until the process
    ends.
    """
    warnings.filterwarnings(
        "ignore", "coroutine 'async_serialize.* was never awaited", RuntimeWarning
    )
