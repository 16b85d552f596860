"""Greetings: who has the token is heard, and whatever else comes is passed over."""

import contextlib
import json
import socket
import threading
import time
import tracemalloc
from dataclasses import asdict

import pytest

from tests.trainer.parallel.strangers import WORDS, knocking, wait_for_all
from trainer.parallel import messages
from trainer.parallel.messages import LONGEST_BYTES, Connection, Greeting, Greetings

TOKEN = "right"
RIGHT = Greeting(TOKEN, 1, "bee")


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def line(greeting: Greeting) -> bytes:
    return (json.dumps(asdict(greeting)) + "\n").encode()


def listen(server: socket.socket, *, patience_s: float = 60.0) -> Greetings:
    return Greetings(server, TOKEN, until=time.monotonic() + patience_s)


def say(server: socket.socket, words: bytes) -> socket.socket:
    door = socket.create_connection(server.getsockname(), timeout=60)
    door.sendall(words)
    return door


def closed(door: socket.socket) -> bool:
    try:
        return door.recv(1) == b""
    except ConnectionError:
        return True


def test_only_who_has_the_token_is_heard(server) -> None:
    doors = [say(server, words[:2000]) for words in WORDS if words.endswith(b"\n")]
    doors.append(say(server, line(Greeting("wrong", 1, "bee"))))
    doors.append(say(server, line(Greeting(TOKEN, 1, "x" * 300))))
    member = say(server, line(RIGHT))
    greetings = listen(server)
    coming = iter(greetings)
    connection, greeting = next(coming)
    assert greeting == RIGHT
    coming.close()
    assert greetings.strangers == len(doors)
    assert all(closed(door) for door in doors)
    member.sendall(line(RIGHT))  # The member's connection is open still.
    assert connection.receive(Greeting, until=time.monotonic() + 60) == RIGHT
    for door in (member, *doors):
        door.close()
    connection.close()


def test_greetings_are_heard_side_by_side_and_in_pieces(server) -> None:
    silent = [say(server, b"") for _ in range(20)]
    slow = say(server, line(RIGHT)[:10])
    quick = say(server, line(Greeting(TOKEN, 2, "cat")) + line(RIGHT))
    coming = iter(listen(server))
    connection, greeting = next(coming)
    assert greeting.index == 2
    # What came along with it is not lost.
    assert connection.receive(Greeting) == RIGHT
    slow.sendall(line(RIGHT)[10:])
    other, greeting = next(coming)
    assert greeting.index == 1
    coming.close()
    for each in (*silent, slow, quick, connection, other):
        each.close()


def test_a_connection_has_one_deadline_however_much_it_says(
    server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "GREETING_S", 0.5)
    over = threading.Event()
    door = say(server, b"")

    def drip() -> None:
        try:
            while not over.wait(0.05):
                door.sendall(b"x")
        except OSError:
            over.set()

    thread = threading.Thread(target=drip)
    thread.start()
    greetings = listen(server, patience_s=3)
    assert list(greetings) == []
    assert greetings.strangers == 1
    thread.join(60)
    assert over.is_set()
    door.close()


def test_a_line_without_end_takes_no_memory(server) -> None:
    door = say(server, b"")

    def flood() -> None:
        with contextlib.suppress(OSError):  # Thrown out.
            while True:
                door.sendall(b"[" * 2**16)

    thread = threading.Thread(target=flood)
    tracemalloc.start()
    try:
        thread.start()
        greetings = listen(server, patience_s=2)
        assert list(greetings) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert greetings.strangers == 1
    assert peak < 64 * LONGEST_BYTES
    door.close()


def test_one_stranger_too_many_takes_the_place_of_the_first(
    server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "_MOST", 3)
    silent = [say(server, b"") for _ in range(3)]
    greetings = listen(server)
    member = say(server, line(RIGHT))
    coming = iter(greetings)
    connection, greeting = next(coming)
    assert greeting == RIGHT
    assert greetings.strangers == 1
    assert closed(silent[0])
    coming.close()
    for each in (*silent, member, connection):
        each.close()


def test_a_member_is_heard_among_strangers_of_every_kind(server) -> None:
    greetings = listen(server)
    with knocking(server.getsockname()) as strangers:
        coming = iter(greetings)
        for index in (1, 2, 3):
            member = say(server, line(Greeting(TOKEN, index, "bee")))
            connection, greeting = next(coming)
            assert greeting.index == index
            member.close()
            connection.close()
            if index == 2:
                wait_for_all(strangers)
        coming.close()
    assert greetings.strangers >= 3


def test_messages_are_typed() -> None:
    one, other = socket.socketpair()
    sender, receiver = Connection(one), Connection(other)
    one.sendall(b'{"token": "", "index": true, "host": ""}\n')
    assert receiver.receive(Greeting) is None
    sender.send(RIGHT)
    assert receiver.receive(Greeting) == RIGHT
    sender.close()
    assert receiver.receive(Greeting) is None
    receiver.close()
    assert receiver.receive(Greeting) is None
