"""Processes meeting: all of them or a clear word of who is missing, in bounded time."""

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Callable

import pytest

from pipeline.store.errors import UsageError
from tests.trainer.parallel.strangers import knocking, wait_for_all
from trainer.errors import HostsError
from trainer.parallel.peer_watch import PeerWatch
from trainer.parallel.roll_call import Place, find_bind_address, hold_roll_call

VARIABLES = {
    "VAST_COORDINATOR_ADDRESS": "10.0.0.1:8476",
    "VAST_NUM_PROCESSES": "4",
    "VAST_PROCESS_ID": "3",
}


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def meet(
    places: list[Place], *, after_first: Callable[[], None] = lambda: None
) -> dict[int, str]:
    """Calls the roll in a thread for each place: what each was told, '' for well.

    Nobody leaves before all have met.
    """
    told: list[tuple[int, str]] = []
    watches: list[PeerWatch] = []

    def one(place: Place) -> None:
        try:
            watches.append(hold_roll_call(place))
            told.append((place.index, ""))
        except HostsError as error:
            told.append((place.index, str(error)))

    threads = [threading.Thread(target=one, args=(place,)) for place in places]
    threads[0].start()
    after_first()
    for thread in threads[1:]:
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
    given = {"VAST_TOKEN": "secret", "VAST_BIND_ADDRESS": "0.0.0.0"}
    place = Place.read({**VARIABLES, **given})
    assert (place.token, place.bind) == ("secret", "0.0.0.0")
    assert "secret" not in repr(place)  # It may be logged.


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"VAST_PROCESS_ID": ""}, "VAST_PROCESS_ID: expected it beside"),
        ({"VAST_PROCESS_ID": "4"}, "expected 0 to 3"),
        ({"VAST_NUM_PROCESSES": "four"}, "expected host:port and numbers"),
        ({"VAST_COORDINATOR_ADDRESS": "10.0.0.1"}, "expected host:port and numbers"),
        ({"VAST_TOKEN": "x" * 257}, "VAST_TOKEN: expected at most 256 characters"),
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
    assert any("got 1 twice" in message for message in told.values())


def test_without_process_0_the_others_say_where_they_looked() -> None:
    address = free_address()
    told = meet([Place(address, 2, 1, timeout=1)])
    assert f"found no process 0 at {address} within 1 s" in told[1]


def test_who_has_another_token_is_passed_over_and_told_why() -> None:
    address = free_address()
    told = meet(
        [
            Place(address, 3, 0, timeout=4, token="right"),
            Place(address, 3, 1, timeout=4, token="right"),
            Place(address, 3, 2, timeout=1, token="wrong"),
        ]
    )
    for index in (0, 1):
        assert "2 of 3 processes (numbered from 0) did not come" in told[index]
        assert "connections without this run's VAST_TOKEN were dropped" in told[index]
    assert "does process 0 have another VAST_TOKEN?" in told[2]


@pytest.mark.parametrize("token", ["", "secret"])
def test_all_meet_in_time_among_strangers(token: str) -> None:
    """Without a token, too, unless a stranger says what a member does."""
    address = free_address()
    host, port = address.split(":")
    places = [Place(address, 2, index, timeout=60, token=token) for index in (0, 1)]
    with knocking((host, int(port))) as strangers:
        # Some of them know what members of a run without a token say.
        if not token:
            strangers.words = [word for word in strangers.words if b"token" not in word]
        told = meet(places, after_first=lambda: wait_for_all(strangers))
    assert told == {0: "", 1: ""}


def test_process_0_listens_where_it_is_asked_to_alone() -> None:
    _, port = free_address().split(":")
    asked = Place(f"127.0.0.1:{port}", 2, 0)
    assert find_bind_address(asked) == f"127.0.0.1:{port}"
    assert find_bind_address(Place(f"[::1]:{port}", 2, 0)) == f"[::1]:{port}"
    everywhere = dataclasses.replace(asked, bind="0.0.0.0")
    assert find_bind_address(everywhere) == f"0.0.0.0:{port}"
    # Of the machine's own addresses, all of which lead here if it listens everywhere.
    other = ("127.0.0.2", int(port))
    for place, reached in ((asked, False), (everywhere, True)):
        thread = threading.Thread(
            target=meet, args=([dataclasses.replace(place, timeout=3)],)
        )
        thread.start()
        answers = []
        while thread.is_alive():
            with contextlib.suppress(OSError):
                socket.create_connection(other, timeout=1).close()
                answers.append(other)
            thread.join(0.1)
        assert bool(answers) == reached


def test_an_address_of_another_machine_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match=r"cannot listen at 192\.0\.2\.1:8476"):
        hold_roll_call(Place("192.0.2.1:8476", 2, 0, timeout=1))
    with pytest.raises(UsageError, match="VAST_BIND_ADDRESS"):
        hold_roll_call(Place("no-such-host.invalid:8476", 2, 0, timeout=1))


def test_a_name_may_lead_to_a_former_address_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pod that replaces another one starts before all caches know its address."""
    port = int(free_address().split(":")[1])
    # The first is an address of no machine here, as that of a pod that has ended.
    answers = ["192.0.2.1", "127.0.0.1"]
    resolve = socket.getaddrinfo

    def look_up(host: str, *arguments, **options):
        if host == "set-trainer-0-0.set":
            host = answers.pop(0) if len(answers) > 1 else answers[0]
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    place = Place(f"set-trainer-0-0.set:{port}", 2, 0, timeout=30)
    assert meet([place, Place(f"127.0.0.1:{port}", 2, 1)]) == {0: "", 1: ""}
    assert answers == ["127.0.0.1"]
    # But not for ever.
    monkeypatch.setattr("trainer.parallel.roll_call._STALE_S", 0.5)
    answers[:] = ["192.0.2.1"]
    with pytest.raises(UsageError, match=r"set-trainer-0-0\.set"):
        hold_roll_call(place)
