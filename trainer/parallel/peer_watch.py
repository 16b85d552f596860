"""A watch over the processes of a run: the loss of one is named and ends the others.

Every process keeps one TCP connection to process 0 while it works. The kernel closes
the connection of a killed process, so process 0 notices the loss at once and tells the
others; the end of process 0 itself is noticed by all others. A machine that vanishes
closes no connection: its silence is noticed within ``SILENCE_S``. This module handles
sockets only and does not know what the processes do.
"""

import os
import socket
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from trainer.errors import EXIT_FAILED
from trainer.parallel.messages import Connection, Greeting, Greetings, Host

# Seconds from a loss to the end of a process. A process that is about to fail for the
# same reason has this time to report its own error, with its own exit code.
GRACE_S = 4.0
# Keep-alives: after 8 s of silence the kernel sends one every 3 s, and gives up after
# three without an answer. With the grace, a machine that vanishes is named within 25 s,
# before gloo's collectives give up after 30 s.
_IDLE_S, _INTERVAL_S, _UNANSWERED = 8, 3, 3
SILENCE_S = _IDLE_S + _INTERVAL_S * _UNANSWERED
# Seconds for all to connect to the watch. They have just answered the roll call, so
# that this is only long enough for slow networks.
_COME_S = 30.0
# Losses more than this long after the first are its consequences and not reported.
_ONE_CAUSE_S = 1.0
# Process 0 ends later than the others by this, because JAX aborts them without it,
# before they have reported the loss.
_LAST_S = 1.0

# A function that ends this process, called with the line to report, which may be empty.
# It returns in tests only.
End = Callable[[str], None]


@dataclass(frozen=True)
class News:
    """The message of the watch once all processes are connected.

    Attributes:
        lost: Number of the lost process, in messages of process 0; None if the sender
            leaves in good order.
        host: Name of the lost process's machine.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    lost: int | None = None
    host: Host = ""


def end_process(line: str) -> None:
    """Reports a line and ends this process, whatever its other threads wait for."""
    if line:
        with suppress(OSError):
            print(line, file=sys.stderr, flush=True)  # noqa: T201
    # Not `sys.exit`: the interpreter's shutdown would run JAX's, which waits for the
    # lost process.
    os._exit(EXIT_FAILED)


class PeerWatch(ABC):
    """One process's part in the watch, from ``start`` until it leaves or fails.

    Args:
        grace_s: Seconds from a loss to the end of this process.
        end: Function that ends this process.
    """

    def __init__(self, *, grace_s: float, end: End) -> None:
        self._grace_s = grace_s
        self._end = end
        self._lock = threading.Lock()
        self._lost: dict[int, str] = {}
        self._lost_at = 0.0
        self._noticed, self._ended = threading.Event(), threading.Event()
        # Set once this process leaves or fails; losses after that do not matter.
        self._over = threading.Event()

    @abstractmethod
    def start(self) -> None:
        """Starts to watch and to be watched, in the background."""

    @abstractmethod
    def leave(self) -> None:
        """Leaves in good order; from now on, losses do not end this process."""

    def fail(self) -> None:
        """Leaves because of an error of this process, which the caller then reports.

        The others end as after a loss.
        """
        self._over.set()
        self._tell_failed()
        # At exit, JAX waits for the other processes, some of which may never come: the
        # timer ends this process if it is still alive after the grace.
        timer = threading.Timer(self._grace_s, self._end, [""])
        timer.daemon = True
        timer.start()

    def await_loss(self) -> None:
        """Waits for the report of a loss, after an error that a loss may have caused.

        If a loss is noticed within a second, the watch ends this process and this
        function does not return; else the error is this process's own.
        """
        if self._noticed.wait(_ONE_CAUSE_S):
            self._ended.wait()

    @abstractmethod
    def _tell_failed(self) -> None: ...

    def _lose(self, index: int, host: str, *, grace_s: float) -> bool:
        """Records a loss.

        Returns:
            Whether the loss counts, and is not a consequence of an earlier one.
        """
        with self._lock:
            now = time.monotonic()
            first = not self._lost
            if self._over.is_set() or (
                not first and now - self._lost_at > _ONE_CAUSE_S
            ):
                return False
            self._lost[index] = host
            if first:
                self._lost_at = now
                _in_background(self._end_after, grace_s)
        self._noticed.set()
        return True

    def _end_after(self, grace_s: float) -> None:
        if not self._over.wait(grace_s):
            self._end(_describe(self._lost))
        self._ended.set()


class CenterWatch(PeerWatch):
    """Process 0's part in the watch: it notices losses and tells all others.

    Args:
        hosts: Host names of all processes, by number, including process 0.
        server: Listening socket that the others connect to.
        token: Secret that the others' greetings must contain.
        grace_s: Seconds from a loss to the end of the others; process 0 ends last.
        end: Function that ends this process.
    """

    def __init__(
        self,
        hosts: Mapping[int, str],
        server: socket.socket,
        *,
        token: str = "",
        grace_s: float = GRACE_S,
        end: End = end_process,
    ) -> None:
        super().__init__(grace_s=grace_s + _LAST_S, end=end)
        self._hosts = dict(hosts)
        self._server = server
        self._token = token
        self._members: dict[int, Connection] = {}

    def start(self) -> None:
        """Accepts the others in the background, and watches each from then on."""
        _in_background(self._receive)

    def leave(self) -> None:
        """Tells all others that this process leaves in good order."""
        self._over.set()
        self._tell(News())
        self._server.close()

    def _tell_failed(self) -> None:
        self._tell(News(0, self._hosts[0]))

    def _tell(self, news: News) -> None:
        with self._lock:
            members = list(self._members.values())
        for member in members:
            member.send(news)

    def _receive(self) -> None:
        """Waits for the others for a bounded time, and drops strangers."""
        others = self._hosts.keys() - {0}
        coming = Greetings(
            self._server,
            self._token,
            until=time.monotonic() + _COME_S,
            stop=self._over,
        )
        with self._server:
            for connection, greeting in coming:
                if greeting.index not in others - self._members.keys():
                    connection.close()
                    continue
                _keep_alive(connection.socket)
                with self._lock:
                    self._members[greeting.index] = connection
                _in_background(self._follow, greeting.index, connection)
                if not others - self._members.keys():
                    break
        # A process that answered the roll call and does not connect is lost as well.
        for index in others - self._members.keys():
            self._lose_and_tell(index)

    def _follow(self, index: int, connection: Connection) -> None:
        """Waits until a member leaves or is lost."""
        # Only an explicit message is a good end: a killed process sends none.
        if connection.receive(News) != News():
            self._lose_and_tell(index)
        connection.close()

    def _lose_and_tell(self, index: int) -> None:
        host = self._hosts[index]
        if self._lose(index, host, grace_s=self._grace_s):
            self._tell(News(index, host))


class MemberWatch(PeerWatch):
    """Every other process's part in the watch: process 0 tells it of losses.

    Args:
        index: Number of this process.
        connection: Socket that is connected to process 0.
        center: Name of process 0's host.
        token: Secret that process 0 expects.
        grace_s: Seconds from a loss to the end of this process.
        end: Function that ends this process.
    """

    def __init__(
        self,
        index: int,
        connection: socket.socket,
        center: str,
        *,
        token: str = "",
        grace_s: float = GRACE_S,
        end: End = end_process,
    ) -> None:
        super().__init__(grace_s=grace_s, end=end)
        self._greeting = Greeting(token, index, socket.gethostname())
        self._connection = Connection(connection)
        self._center = center

    def start(self) -> None:
        """Greets process 0, and listens to it in the background."""
        _keep_alive(self._connection.socket)
        self._connection.send(self._greeting)
        _in_background(self._listen)

    def leave(self) -> None:
        """Tells process 0 that this process leaves in good order."""
        self._over.set()
        self._connection.send(News())
        self._connection.close()

    def _tell_failed(self) -> None:
        self._connection.close()

    def _listen(self) -> None:
        """Receives losses until process 0 leaves or is lost itself."""
        while (news := self._connection.receive(News)) is not None:
            if news.lost is None:
                return
            self._lose(news.lost, news.host, grace_s=self._grace_s)
        # Process 0 was killed, and JAX is about to abort this process: there is no time
        # for a grace.
        self._lose(0, self._center, grace_s=0)


def _describe(lost: Mapping[int, str]) -> str:
    names = [f"{index} on {lost[index]}" for index in sorted(lost)]
    who = f"process {names[0]} is" if len(names) == 1 else _several(names)
    return (
        f"error: {who} gone; start all of them again to go on from the latest "
        "checkpoint"
    )


def _several(names: list[str]) -> str:
    return f"processes {', '.join(names[:-1])} and {names[-1]} are"


def _keep_alive(connection: socket.socket) -> None:
    """Makes the kernel probe a connection that is silent."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, setting in {
        "TCP_KEEPIDLE": _IDLE_S,
        "TCP_KEEPINTVL": _INTERVAL_S,
        "TCP_KEEPCNT": _UNANSWERED,
        # Keep-alives pause while sent data are not acknowledged; this limit, in
        # milliseconds, ends the connection then.
        "TCP_USER_TIMEOUT": 1000 * SILENCE_S,
    }.items():
        # Linux has all of these options; other systems lack some.
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), setting)


def _in_background(run: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=run, args=arguments, daemon=True).start()
