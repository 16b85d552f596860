"""One line with advice where memory does not suffice, of this machine or a device."""

from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten

import jax

from trainer.errors import OutOfMemoryError

# Characters that are kept of the error: XLA appends a table of its allocations.
_MESSAGE_LENGTH = 200


@contextmanager
def explain_lack_of_memory(where: str) -> Iterator[None]:
    """Turns errors of NumPy and of devices that lack memory into one line.

    Args:
        where: Folder of the run, for the error.

    Raises:
        OutOfMemoryError: If the block ran out of memory.
    """
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        lines = (str(error) or type(error).__name__).splitlines()
        on_device = isinstance(error, jax.errors.JaxRuntimeError)
        # Devices report all of their errors by one class.
        if on_device and "RESOURCE_EXHAUSTED" not in lines[0]:
            raise
        advice = (
            "lower trainer.batch_size, raise trainer.microbatches, set "
            "agent.rematerialise, or feed.gather to 'host'; `python -m trainer "
            "compile` computes what fits"
            if on_device
            else "set feed.memory_limit_bytes, or lower trainer.batch_size or "
            "feed.prefetch_calls"
        )
        raise OutOfMemoryError(
            f"{where}: the memory of {'a device' if on_device else 'this machine'} "
            f"does not suffice ({shorten(lines[0], _MESSAGE_LENGTH)}); {advice}"
        ) from error
