"""Messages between the processes of a run: short lines of JSON, guarded by a token.

Anybody may connect to an open port. So a connection is dropped if it sends anything but
a message, or a line longer than ``LONGEST_BYTES``, or no complete greeting with the
token within ``GREETING_S``, however many bytes it sends in that time.
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

# Longest line that is kept in memory for a connection, whoever sends it.
LONGEST_BYTES = 4096
# Seconds for a greeting, which is sent at once; they allow for slow networks.
GREETING_S = 5.0
# Most connections that may owe a greeting at once, below the usual limit of 1,024 open
# files. One more replaces the oldest, so that strangers who stay silent cannot keep the
# processes of the run out.
_MOST = 256
# Seconds between two checks of whether to stop waiting.
_LOOK_S = 0.2

_T = TypeVar("_T")
Host = Annotated[str, pydantic.StringConstraints(max_length=255)]


@dataclass(frozen=True)
class Greeting:
    """The first message of a connection.

    Attributes:
        token: Secret that the launcher gave to all processes of the run.
        index: Number of the process.
        host: Name of the machine that the process runs on.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    token: str
    index: int
    host: Host


class Connection:
    """One end of a connection that carries messages.

    Args:
        connected: A connected socket, which belongs to this object from now on.
    """

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._received = b""

    def send(self, message: Any) -> None:
        """Sends a message.

        Args:
            message: A dataclass whose fields are JSON-ready.
        """
        # If the other end is gone, the thread that receives from it notices and reports
        # the loss; a second report from here would name it twice.
        with suppress(OSError):
            self.socket.sendall((json.dumps(asdict(message)) + "\n").encode())

    def receive(self, kind: type[_T], *, until: float = math.inf) -> _T | None:
        """Waits for the next message.

        Args:
            kind: Dataclass of the message.
            until: Time of ``time.monotonic`` at which waiting ends.

        Returns:
            The message, or None if the connection has ended, the time is over, or the
            line that came is not such a message.
        """
        # One deadline for the whole message: with a timeout for each read, a stranger
        # could hold a thread for ever by sending a byte now and then.
        while b"\n" not in self._received:
            left = until - time.monotonic()
            if not self.fill(None if math.isinf(left) else max(0.001, left)):
                return None
        return self.take(kind)

    def fill(self, timeout_s: float | None = 0.0) -> bool:
        """Receives more bytes.

        Args:
            timeout_s: Seconds to wait for bytes; None waits for ever.

        Returns:
            Whether to keep reading: False if the connection has ended or the line is
            longer than any message.
        """
        try:
            self.socket.settimeout(timeout_s)
            more = self.socket.recv(LONGEST_BYTES)
        except BlockingIOError:
            # `select` may report a socket as readable that has no bytes after all.
            return True
        except OSError:
            return False
        self._received += more
        line, _, _ = self._received.partition(b"\n")
        return bool(more) and len(line) <= LONGEST_BYTES

    def is_whole(self) -> bool:
        """Tells whether the next message has arrived completely."""
        return b"\n" in self._received

    def take(self, kind: type[_T]) -> _T | None:
        """Takes the next message, which has arrived completely.

        Args:
            kind: Dataclass of the message.

        Returns:
            The message, or None if the line is not such a message.
        """
        line, _, self._received = self._received.partition(b"\n")
        try:
            # Strict, so that nothing is converted: bytes of a stranger either are a
            # message or not.
            return pydantic.TypeAdapter(kind).validate_json(line, strict=True)
        except pydantic.ValidationError:
            return None

    def close(self) -> None:
        """Closes the connection, and wakes a thread that waits for a message of it."""
        # `close` alone leaves a thread in `recv` waiting; `shutdown` wakes it. It fails
        # if the other end has closed the connection first.
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


class Greetings:
    """Iterates over the processes that come to a port and know the token.

    All connections are read side by side in one thread, so that a slow one does not
    delay the others.

    Args:
        server: A listening socket; it stays open at the end.
        token: Secret that a greeting must contain.
        until: Time of ``time.monotonic`` at which waiting ends.
        stop: Event that ends the waiting earlier.

    Attributes:
        strangers: Number of connections that were dropped.
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
        # Deadline of each connection's greeting, in the order in which they connected.
        self._waiting: dict[Connection, float] = {}
        self.strangers = 0

    def __iter__(self) -> Iterator[tuple[Connection, Greeting]]:
        """Yields connections with their greetings; the caller closes them."""
        self._server.setblocking(False)
        with selectors.DefaultSelector() as self._selector:
            self._selector.register(self._server, selectors.EVENT_READ)
            try:
                while (
                    not self._stop.is_set() and (now := time.monotonic()) < self._until
                ):
                    self._drop_late(now)
                    ready = self._selector.select(min(_LOOK_S, self._until - now))
                    for key, _ in ready:
                        if key.data is None:
                            self._accept(now)
                        elif (greeting := self._hear(key.data)) is not None:
                            yield key.data, greeting
            finally:
                for connection in list(self._waiting):
                    self._drop(connection)

    def _accept(self, now: float) -> None:
        if len(self._waiting) >= _MOST:
            self._drop(next(iter(self._waiting)))
        # Accepting fails if the other end has already gone away.
        with suppress(OSError):
            connection = Connection(self._server.accept()[0])
            self._waiting[connection] = now + GREETING_S
            reads = selectors.EVENT_READ
            self._selector.register(connection.socket, reads, connection)

    def _hear(self, connection: Connection) -> Greeting | None:
        """Reads from a connection; returns its greeting once it is complete."""
        # An `_accept` of the same round may have dropped the connection.
        if connection not in self._waiting:
            return None
        if not connection.fill():
            self._drop(connection)
        elif connection.is_whole():
            greeting = connection.take(Greeting)
            if greeting is not None and self._knows_token(greeting):
                self._release(connection)
                connection.socket.settimeout(GREETING_S)
                return greeting
            self._drop(connection)
        return None

    def _knows_token(self, greeting: Greeting) -> bool:
        # In constant time, so that the time of a refusal says nothing about the token.
        return hmac.compare_digest(greeting.token.encode(), self._token.encode())

    def _drop_late(self, now: float) -> None:
        for connection, until in list(self._waiting.items()):
            if until <= now:
                self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._release(connection)
        connection.close()
        self.strangers += 1

    def _release(self, connection: Connection) -> None:
        del self._waiting[connection]
        self._selector.unregister(connection.socket)
