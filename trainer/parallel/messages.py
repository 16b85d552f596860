"""Messages between the processes of a run: short lines of JSON, from who has the token.

Anybody may connect to a port that is open, so whatever else comes is passed over: what
is no message, what is longer than ``LONGEST_BYTES``, and who has not said within
``GREETING_S`` who it is, however much it says meanwhile.
"""

import hmac
import json
import math
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Annotated, Any, TypeVar

import pydantic

LONGEST_BYTES = 4096
GREETING_S = 5.0
# Strangers waited for at once; one more takes the place of the first.
_MOST = 256
# Seconds between two looks at whether to go on waiting.
_LOOK_S = 0.2

_T = TypeVar("_T")
Host = Annotated[str, pydantic.StringConstraints(max_length=255)]


@dataclass(frozen=True)
class Greeting:
    """The first message of a connection.

    Attributes:
        token: What the launcher gave to all processes of the run.
        index: Number of the process.
        host: Name of its machine.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    token: str
    index: int
    host: Host


class Connection:
    """One end of a connection that carries messages.

    Args:
        given: Connected, and owned by this from now on.
    """

    def __init__(self, given: socket.socket) -> None:
        self.socket = given
        self._received = b""

    def send(self, message: Any) -> None:
        """Sends a dataclass. An other end that is gone is noticed by who listens."""
        with suppress(OSError):
            self.socket.sendall((json.dumps(asdict(message)) + "\n").encode())

    def receive(self, kind: type[_T], *, until: float = math.inf) -> _T | None:
        """Waits for the next message.

        Args:
            kind: Its dataclass.
            until: Time of ``time.monotonic`` that all of it has come by.

        Returns:
            The message; None at the end of the connection, however that came, and of
            what is no such message.
        """
        while b"\n" not in self._received:
            left = until - time.monotonic()
            if not self.fill(None if math.isinf(left) else max(0.001, left)):
                return None
        return self.take(kind)

    def fill(self, timeout_s: float | None = 0.0) -> bool:
        """Receives more bytes.

        Args:
            timeout_s: To wait for them; None waits for ever.

        Returns:
            Whether there may be more: not at the end of the connection, nor if no
            message can be as long.
        """
        try:
            self.socket.settimeout(timeout_s)
            more = self.socket.recv(LONGEST_BYTES)
        except BlockingIOError:  # There were none after all.
            return True
        except OSError:
            return False
        self._received += more
        line, _, _ = self._received.partition(b"\n")
        return bool(more) and len(line) <= LONGEST_BYTES

    def whole(self) -> bool:
        """Whether the next message has come to its end."""
        return b"\n" in self._received

    def take(self, kind: type[_T]) -> _T | None:
        """The next message, which has come; None if it is no such message."""
        line, _, self._received = self._received.partition(b"\n")
        try:
            return pydantic.TypeAdapter(kind).validate_json(line, strict=True)
        except pydantic.ValidationError:
            return None

    def close(self) -> None:
        """Ends it, for whoever waits for a message of it here, too."""
        with suppress(OSError):  # The other end may have been first.
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


class Greetings:
    """Those who come to a port and know the token; all are listened to side by side.

    Args:
        server: Listening; not closed by this.
        token: That they have to know.
        until: Time of ``time.monotonic`` to wait until.
        stop: Ends the waiting earlier.
    """

    def __init__(
        self,
        server: socket.socket,
        token: str,
        *,
        until: float,
        stop: threading.Event | None = None,
    ) -> None:
        self._server = server
        self._token = token
        self._until = until
        self._stop = stop or threading.Event()
        # In the order they came in: the first of them is the first to be too late.
        self._waiting: dict[Connection, float] = {}
        # How many were passed over.
        self.strangers = 0

    def __iter__(self) -> Iterator[tuple[Connection, Greeting]]:
        """Waits for the next; each is closed by who gets it."""
        self._server.setblocking(False)
        with selectors.DefaultSelector() as self._selector:
            self._selector.register(self._server, selectors.EVENT_READ)
            try:
                while (
                    not self._stop.is_set() and (now := time.monotonic()) < self._until
                ):
                    self._pass_over_late(now)
                    ready = self._selector.select(min(_LOOK_S, self._until - now))
                    for key, _ in ready:
                        if key.data is None:
                            self._accept(now)
                        elif (greeting := self._hear(key.data)) is not None:
                            yield key.data, greeting
            finally:
                for connection in list(self._waiting):
                    self._pass_over(connection)

    def _accept(self, now: float) -> None:
        if len(self._waiting) >= _MOST:
            self._pass_over(next(iter(self._waiting)))
        with suppress(OSError):  # Gone again.
            connection = Connection(self._server.accept()[0])
            self._waiting[connection] = now + GREETING_S
            reads = selectors.EVENT_READ
            self._selector.register(connection.socket, reads, connection)

    def _hear(self, connection: Connection) -> Greeting | None:
        """What has come of a greeting, if that is all of it and has the token."""
        if connection not in self._waiting:  # Passed over just now.
            return None
        if not connection.fill():
            self._pass_over(connection)
        elif connection.whole():
            greeting = connection.take(Greeting)
            if greeting is not None and self._knows(greeting):
                self._release(connection)
                connection.socket.settimeout(GREETING_S)
                return greeting
            self._pass_over(connection)
        return None

    def _knows(self, greeting: Greeting) -> bool:
        return hmac.compare_digest(greeting.token.encode(), self._token.encode())

    def _pass_over_late(self, now: float) -> None:
        for connection, until in list(self._waiting.items()):
            if until <= now:
                self._pass_over(connection)

    def _pass_over(self, connection: Connection) -> None:
        self._release(connection)
        connection.close()
        self.strangers += 1

    def _release(self, connection: Connection) -> None:
        del self._waiting[connection]
        self._selector.unregister(connection.socket)
