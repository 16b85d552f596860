"""Signals handled for as long as something lasts."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None]


@contextmanager
def handled(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Has a handler called for some signals; afterwards those of before are back.

    Args:
        handler: As ``signal.signal`` takes it.
        *numbers: Of the signals.
    """
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)
