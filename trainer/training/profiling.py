"""Traces of a few training calls, which show where the time of an update goes."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from pipeline.output import say
from pipeline.store.errors import UsageError
from pipeline.store.files import is_remote

# Calls before the trace, in which memory is allocated and the feed fills its buffers.
WARM_UP_CALLS = 5
# More calls would make a larger trace of the same.
TRACED_CALLS = 3

# Callback that takes a result of each call, to wait for.
AfterCall = Callable[[Any], None]


@contextmanager
def trace_calls(
    folder: str | os.PathLike[str] | None, *, console: Console
) -> Iterator[AfterCall]:
    """Traces some calls after a warm-up, for TensorBoard's profile plugin.

    Args:
        folder: Folder to write to, below ``plugins/profile``; None traces nothing.
        console: Console for a warning if the trace cannot be written.

    Yields:
        A callback to be called after each call, with a result to wait for.

    Raises:
        UsageError: If ``folder`` is a file, or cannot be made.
    """
    if folder is not None and not is_remote(os.fspath(folder)):
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"--profile: expected a folder that can be written, got {folder} "
                f"({error.strerror}); give another path"
            ) from error
    calls, tracing = 0, False

    def after_call(value: Any) -> None:
        nonlocal calls, tracing
        calls += 1
        if folder is None or calls not in (WARM_UP_CALLS, WARM_UP_CALLS + TRACED_CALLS):
            return
        # The trace begins and ends when the devices are idle, so that it holds whole
        # calls.
        jax.block_until_ready(value)
        if calls == WARM_UP_CALLS:
            jax.profiler.start_trace(os.fspath(folder))
            tracing = True
        elif tracing:
            tracing = False
            stop()

    def stop() -> None:
        try:
            jax.profiler.stop_trace()
        # Only a warning: a full disk may have no room for a trace and yet for the run.
        except jax.errors.JaxRuntimeError as error:
            line = " ".join(str(error).split())
            say(
                console,
                f"warning: the trace could not be written to {folder} ({line})",
                style="yellow",
            )

    try:
        yield after_call
    finally:
        if tracing:  # The run ended within the trace, which is then written as it is.
            stop()
