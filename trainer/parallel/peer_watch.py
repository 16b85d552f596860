"""A watch over the processes of a run: whoever is gone is named, and ends the others.

Every process keeps one TCP connection to process 0 while it works. The kernel closes
those of a killed process, so that process 0 notices at once and tells the others; its
own end they see themselves. A machine that vanishes closes nothing: its silence is
noticed within ``SILENCE_S``. Sockets only: what the processes do is not known here.
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

# A process about to fail of the same cause says so itself, with its own exit code.
GRACE_S = 4.0
# Keep-alives: after 8 s without a word one every 3 s, and three without an answer.
# With the grace, a machine that vanishes is named within 25 s: gloo waits for 30.
_IDLE_S, _INTERVAL_S, _UNANSWERED = 8, 3, 3
SILENCE_S = _IDLE_S + _INTERVAL_S * _UNANSWERED
# All are there and told where to come to: this is for slow networks.
_COME_S = 30.0
# What is lost later than this after the first is lost because of it.
_ONE_CAUSE_S = 1.0
# Process 0 goes last: without it JAX aborts the others before they have said why.
_LAST_S = 1.0

# Called with what is still to be said, if anything. Returns in tests only.
End = Callable[[str], None]


@dataclass(frozen=True)
class News:
    """What is said once all are there.

    Attributes:
        lost: Number of a process that is gone, from process 0; None if the sender
            leaves in good order.
        host: Name of its machine.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    lost: int | None = None
    host: Host = ""


def end_process(line: str) -> None:
    """Says a line and ends this process, whatever its other threads wait for."""
    if line:
        with suppress(OSError):
            print(line, file=sys.stderr, flush=True)  # noqa: T201
    # Leaving in good order, JAX would wait for the one that is gone.
    os._exit(EXIT_FAILED)


class Watch(ABC):
    """One process's part in the watch, from ``start`` until it leaves or fails.

    Args:
        grace_s: Seconds from a loss to the end of this process.
        end: Ends it.
    """

    def __init__(self, *, grace_s: float, end: End) -> None:
        self._grace_s = grace_s
        self._end = end
        self._lock = threading.Lock()
        self._lost: dict[int, str] = {}
        self._lost_at = 0.0
        self._noticed, self._ended = threading.Event(), threading.Event()
        # Set once this process has said itself how it ends.
        self._over = threading.Event()

    @abstractmethod
    def start(self) -> None:
        """Begins to watch and to be watched, in the background."""

    @abstractmethod
    def leave(self) -> None:
        """Leaves in good order: from here on, no process misses another here."""

    def fail(self) -> None:
        """Leaves for an error of its own, which is said after this.

        The others end of it. Unless all of them fail alike, JAX would wait for them
        when this process exits: it is ended then.
        """
        self._over.set()
        self._tell_failed()
        exits = threading.Timer(self._grace_s, self._end, [""])
        exits.daemon = True
        exits.start()

    def await_loss(self) -> None:
        """After an error that another's end may have caused: has it said, if so."""
        if self._noticed.wait(_ONE_CAUSE_S):
            self._ended.wait()

    @abstractmethod
    def _tell_failed(self) -> None: ...

    def _lose(self, index: int, host: str, *, grace_s: float) -> bool:
        """Notes a loss; whether it counts, rather than being the end of another."""
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


class CenterWatch(Watch):
    """Process 0's part: it hears of all, and tells all.

    Args:
        hosts: Name of every process's host by its number, its own included.
        server: Listening, where the others come to.
        token: That they have to know.
        grace_s: Seconds from a loss to the end of the others; this one goes last.
        end: Ends it.
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
        """Lets the others in; each is watched from then on."""
        _in_background(self._receive)

    def leave(self) -> None:
        """Tells all that this is a good end."""
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
        """Waits for the others, for a bounded time; strangers are passed over."""
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
        for index in others - self._members.keys():
            self._lose_and_tell(index)

    def _follow(self, index: int, connection: Connection) -> None:
        """Waits for a member's end, of one kind or the other."""
        if connection.receive(News) != News():
            self._lose_and_tell(index)
        connection.close()

    def _lose_and_tell(self, index: int) -> None:
        host = self._hosts[index]
        if self._lose(index, host, grace_s=self._grace_s):
            self._tell(News(index, host))


class MemberWatch(Watch):
    """The part of every other process: it hears of all through process 0.

    Args:
        index: Its number.
        connection: To process 0.
        center: Name of process 0's host.
        token: That process 0 asks for.
        grace_s: Seconds from a loss to the end of this process.
        end: Ends it.
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
        """Says who it is, and listens to process 0."""
        _keep_alive(self._connection.socket)
        self._connection.send(self._greeting)
        _in_background(self._listen)

    def leave(self) -> None:
        """Tells process 0 that this is a good end."""
        self._over.set()
        self._connection.send(News())
        self._connection.close()

    def _tell_failed(self) -> None:
        self._connection.close()

    def _listen(self) -> None:
        """Hears who is gone, until process 0 itself is."""
        while (news := self._connection.receive(News)) is not None:
            if news.lost is None:
                return
            self._lose(news.lost, news.host, grace_s=self._grace_s)
        # Killed without a word: JAX is about to abort this process, so it is now.
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
    """Has the kernel ask a silent other end whether it is there still."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in {
        "TCP_KEEPIDLE": _IDLE_S,
        "TCP_KEEPINTVL": _INTERVAL_S,
        "TCP_KEEPCNT": _UNANSWERED,
        # Of what was sent and never acknowledged: keep-alives wait for that.
        "TCP_USER_TIMEOUT": 1000 * SILENCE_S,
    }.items():
        if hasattr(socket, option):  # Linux has them all.
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _in_background(run: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=run, args=arguments, daemon=True).start()
