"""Signal handlers that are installed for the duration of a block."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None]


@contextmanager
def handle_signals(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Installs a handler for signals, and restores the previous handlers on exit.

    A hangup that is ignored stays ignored: ``nohup`` starts a command that way.

    Args:
        handler: Function as ``signal.signal`` takes it.
        *numbers: The signals.
    """
    # Ctrl-C is handled even if it is ignored, as it is in a script's background: who
    # sends it to one process means that process.
    previous = {
        number: signal.signal(number, handler)
        for number in numbers
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler_before in previous.items():
            signal.signal(number, handler_before)
