"""Processes meeting: all of them or a clear word of who is missing, in bounded time."""

import contextlib
import socket
import threading

import pytest

from trainer.errors import HostsError
from trainer.parallel.peer_watch import Watch
from trainer.parallel.roll_call import Place, roll_call

VARIABLES = {
    "VAST_COORDINATOR_ADDRESS": "10.0.0.1:8476",
    "VAST_NUM_PROCESSES": "4",
    "VAST_PROCESS_ID": "3",
}


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def meet(places: list[Place]) -> dict[int, str]:
    """Calls the roll in a thread for each place: what each was told, '' for well."""
    told: list[tuple[int, str]] = []
    watches: list[Watch] = []

    def one(place: Place) -> None:
        try:
            watches.append(roll_call(place))
            told.append((place.index, ""))
        except HostsError as error:
            told.append((place.index, str(error)))

    threads = [threading.Thread(target=one, args=(place,)) for place in places]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    for watch in watches:
        watch.leave()
    assert len(told) == len(places)
    return dict(told)


def test_variables_are_read() -> None:
    assert Place.read({}) is None
    assert Place.read(VARIABLES) == Place("10.0.0.1:8476", 4, 3, 300.0)
    assert Place.read({**VARIABLES, "VAST_START_TIMEOUT": "5"}).timeout == 5


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"VAST_PROCESS_ID": ""}, "VAST_PROCESS_ID: expected it beside"),
        ({"VAST_PROCESS_ID": "4"}, "expected 0 to 3"),
        ({"VAST_NUM_PROCESSES": "four"}, "expected host:port and numbers"),
        ({"VAST_COORDINATOR_ADDRESS": "10.0.0.1"}, "expected host:port and numbers"),
    ],
)
def test_variables_that_cannot_be_are_refused(changed: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Place.read({**VARIABLES, **changed})


def test_all_meet_whoever_comes_first_and_the_port_is_free_again() -> None:
    address = free_address()
    for _ in range(2):  # Started again at once, as after a preemption.
        places = [Place(address, 4, index, timeout=90) for index in (3, 1, 0, 2)]
        assert meet(places) == {0: "", 1: "", 2: "", 3: ""}
    host, port = address.split(":")
    socket.create_server((host, int(port))).close()


def test_everyone_learns_who_is_missing() -> None:
    address = free_address()
    told = meet([Place(address, 4, index, timeout=4) for index in (0, 2)])
    for message in told.values():
        assert "1, 3 of 4 processes" in message
        assert "0 on " in message
        assert "2 on " in message


def test_two_of_one_number_are_told_apart() -> None:
    address = free_address()
    told = meet(
        [Place(address, 3, index, timeout=30) for index in (0, 1)]
        + [Place(address, 3, 1, timeout=30)]
    )
    assert any("process 1 is there twice" in message for message in told.values())


def test_without_process_0_the_others_say_where_they_looked() -> None:
    address = free_address()
    told = meet([Place(address, 2, 1, timeout=1)])
    assert f"found no process 0 at {address} within 1 s" in told[1]


def test_a_stranger_at_the_door_is_passed_over() -> None:
    address = free_address()
    host, port = address.split(":")
    watches: list[Watch] = []
    first = threading.Thread(
        target=lambda: watches.append(roll_call(Place(address, 2, 0, timeout=90)))
    )
    first.start()
    knocked = False
    while not knocked:
        assert first.is_alive()
        with (
            contextlib.suppress(OSError),  # Not listening yet.
            socket.create_connection((host, int(port)), timeout=1) as door,
        ):
            door.sendall(b"GET / HTTP/1.1\r\n\r\n")
            knocked = True
    watches.append(roll_call(Place(address, 2, 1, timeout=90)))
    first.join(timeout=120)
    assert len(watches) == 2
    for watch in watches:
        watch.leave()
