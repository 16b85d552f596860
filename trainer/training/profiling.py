"""A trace of a few calls of the devices, to see where an update's time goes."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from pipeline.store.errors import UsageError

# Calls before the trace: the first allocate, and the feed fills its buffers.
WARM_UP_CALLS = 5
TRACED_CALLS = 3

# Called after each call with what it returned.
AfterCall = Callable[[Any], None]


@contextmanager
def trace_calls(folder: str | os.PathLike[str] | None) -> Iterator[AfterCall]:
    """Traces some calls once they are warm; TensorBoard's profile plugin shows them.

    Args:
        folder: To write to, below ``plugins/profile``; None traces nothing.

    Yields:
        What to call after each call, with a value to wait for: the trace begins and
        ends when the devices have nothing left to do.

    Raises:
        UsageError: If it is a file.
    """
    if folder is not None and Path(folder).is_file():
        raise UsageError(f"--profile: expected a folder, {folder} is a file")
    calls, tracing = 0, False

    def after_call(value: Any) -> None:
        nonlocal calls, tracing
        calls += 1
        if folder is None or calls not in (WARM_UP_CALLS, WARM_UP_CALLS + TRACED_CALLS):
            return
        jax.block_until_ready(value)
        if calls == WARM_UP_CALLS:
            jax.profiler.start_trace(os.fspath(folder))
            tracing = True
        elif tracing:
            tracing = False
            jax.profiler.stop_trace()

    try:
        yield after_call
    finally:
        if tracing:  # The run was shorter: what there is of it.
            jax.profiler.stop_trace()
