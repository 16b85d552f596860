"""Strangers at the ports of a run: what they say, all of it at once and again."""

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator

# What has killed or held up processes, or taken a place in the run, and the like of it.
WORDS = (
    *(b"5\n", b"1\n", b'[1, "x"]\n', b"[" * 100_000, b"[" * 4000 + b"\n", b"null\n"),
    *(b"GET / HTTP/1.1\r\n\r\n", b'"leaving"\n', b"{}\n", b"\n", b"", b"\xff\xfe\n"),
    b'{"token": "", "index": 1, "host": "x"}\n',
    b'{"token": "guess", "index": 1, "host": "x"}\n',
    b'{"token": ["guess"], "index": true, "host": null}\n',
    b'{"lost": null, "host": ""}\n',
    b'{"index": 1e400, "token": "\\ud800"}\n',
)


class Strangers:
    """Threads that knock at a port until they are told to stop.

    Attributes:
        words: What those say who say something and leave.
        knocks: Connections made by each kind.
    """

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._over = threading.Event()
        self.words = list(WORDS)
        self.knocks = dict.fromkeys(("words", "noise", "drip", "flood", "silent"), 0)
        self._threads = [
            threading.Thread(target=self._knock, args=(kind,)) for kind in self.knocks
        ]

    def _knock(self, kind: str) -> None:
        rng = random.Random(kind)
        say: Callable[[socket.socket, random.Random], None] = getattr(self, f"_{kind}")
        while not self._over.is_set():
            with (
                contextlib.suppress(OSError),  # Nobody there, or thrown out.
                socket.create_connection(self._address, timeout=10) as door,
            ):
                self.knocks[kind] += 1
                say(door, rng)
            self._over.wait(0.02)

    def _words(self, door: socket.socket, rng: random.Random) -> None:
        door.sendall(rng.choice(self.words))

    def _noise(self, door: socket.socket, rng: random.Random) -> None:
        door.sendall(rng.randbytes(rng.randrange(1, 3000)) + b"\n")

    def _drip(self, door: socket.socket, rng: random.Random) -> None:
        """A byte now and then: each time something has come, and never all of it."""
        for byte in b'{"token": "' + b"x" * 60:
            door.sendall(bytes([byte]))
            if self._over.wait(0.5):
                return

    def _flood(self, door: socket.socket, rng: random.Random) -> None:
        """A line without an end, 64 MiB of it unless it is thrown out."""
        block = b"[" * 2**16
        for _ in range(2**10):
            door.sendall(block)

    def _silent(self, door: socket.socket, rng: random.Random) -> None:
        """Thirty more that say nothing."""
        with contextlib.ExitStack() as stack:
            for _ in range(30):
                more = socket.create_connection(self._address, timeout=10)
                stack.enter_context(more)
            self._over.wait(3)


@contextlib.contextmanager
def knocking(address: tuple[str, int]) -> Iterator[Strangers]:
    """Strangers of every kind at a port, while the block runs."""
    strangers = Strangers(address)
    for thread in strangers._threads:
        thread.start()
    try:
        yield strangers
    finally:
        strangers._over.set()
        for thread in strangers._threads:
            thread.join(60)


def wait_for_all(strangers: Strangers) -> None:
    """Waits until each kind has knocked."""
    deadline = time.monotonic() + 60
    while not all(strangers.knocks.values()):
        assert time.monotonic() < deadline, strangers.knocks
        time.sleep(0.01)
