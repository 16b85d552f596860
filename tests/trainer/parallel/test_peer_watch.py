"""The watch over processes, each of them a thread here: who is missed, and by whom."""

import contextlib
import os
import queue
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.trainer.parallel.strangers import knocking, wait_for_all
from trainer.parallel import peer_watch
from trainer.parallel.messages import Connection, Greeting
from trainer.parallel.peer_watch import CenterWatch, MemberWatch, end_process

GRACE_S = 0.3
# Of tests in which nobody may wait it out, and what they wait at most themselves.
ENDLESS_S, PATIENCE_S = 600.0, 60.0
HOSTS = {0: "ant", 1: "bee", 2: "cat", 3: "dog"}


class Process:
    """A watched process that notes how it is ended, and can be killed.

    Attributes:
        watch: Its part.
        ended: What it was ended with.
    """

    def __init__(self, index: int, server: socket.socket, *, grace_s: float) -> None:
        self.ended: queue.Queue[str] = queue.Queue()
        self._server = server
        self._connection: socket.socket | None = None
        self.watch: CenterWatch | MemberWatch
        if index == 0:
            self.watch = CenterWatch(HOSTS, server, grace_s=grace_s, end=self.ended.put)
        else:
            self._connection = socket.create_connection(server.getsockname())
            self.watch = MemberWatch(
                index,
                self._connection,
                HOSTS[0],
                grace_s=grace_s,
                end=self.ended.put,
            )
        self.watch.start()

    def kill(self) -> None:
        """Does to its sockets what the kernel does to a killed process's."""
        # Its threads live on here, and are to say nothing of what they notice.
        self.watch._over.set()
        sockets = (
            [self._connection]
            if self._connection
            else [*(each.socket for each in self.watch._members.values()), self._server]
        )
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def line(self) -> str:
        return self.ended.get(timeout=PATIENCE_S)


def wait_until(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def processes(request: pytest.FixtureRequest) -> Iterator[list[Process]]:
    """Four of them, watched; the parameter is their grace."""
    grace_s = getattr(request, "param", GRACE_S)
    server = socket.create_server(("127.0.0.1", 0))
    four = [Process(index, server, grace_s=grace_s) for index in range(4)]
    wait_until(lambda: len(four[0].watch._members) == 3)
    yield four
    for each in reversed(four):
        each.watch.leave()


def test_a_killed_process_is_named_by_all_others(processes: list[Process]) -> None:
    killed = time.monotonic()
    processes[2].kill()
    for index in (1, 3, 0):
        assert processes[index].line() == (
            "error: process 2 on cat is gone; start all of them again to go on from "
            "the latest checkpoint"
        )
        assert time.monotonic() - killed >= GRACE_S


@pytest.mark.parametrize("processes", [ENDLESS_S], indirect=True)
def test_two_killed_at_once_are_both_named(
    processes: list[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    # At once, however late the second is noticed here.
    monkeypatch.setattr(peer_watch, "_ONE_CAUSE_S", ENDLESS_S)
    processes[1].kill()
    processes[3].kill()
    for index in (2, 0):
        watch = processes[index].watch
        wait_until(lambda lost=watch._lost: len(lost) == 2)
        watch._end_after(0)  # Its grace is over now.
        assert "processes 1 on bee and 3 on dog are gone" in processes[index].line()


@pytest.mark.parametrize("processes", [ENDLESS_S], indirect=True)
def test_without_process_0_the_others_end_at_once(processes: list[Process]) -> None:
    processes[0].kill()
    for index in (1, 2, 3):
        assert "process 0 on ant is gone" in processes[index].line()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0)])
def test_who_leaves_in_good_order_is_not_missed(
    processes: list[Process], order: tuple[int, ...]
) -> None:
    for index in order:
        processes[index].watch.leave()
        time.sleep(0.05)
        processes[index].kill()
    time.sleep(2 * GRACE_S + 1)
    assert all(each.ended.empty() for each in processes)


@pytest.mark.parametrize("failed", [0, 2])
def test_an_error_of_one_ends_all_and_the_others_name_it(
    processes: list[Process], failed: int
) -> None:
    processes[failed].watch.fail()
    others = [each for each in processes if each is not processes[failed]]
    for each in others:
        assert f"process {failed} on {HOSTS[failed]} is gone" in each.line()
    # Its own error is said already; JAX would hold it.
    assert processes[failed].line() == ""


@pytest.fixture
def last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 0 goes so late that the others are ahead on a busy machine too."""
    monkeypatch.setattr(peer_watch, "_LAST_S", 5.0)


def test_process_0_goes_last(last: None, processes: list[Process]) -> None:
    processes[1].watch.fail()
    for index in (1, 2, 3):
        processes[index].line()
        assert processes[0].ended.empty()
    assert processes[0].line()


@pytest.mark.parametrize("processes", [10 * GRACE_S], indirect=True)
def test_an_error_of_all_is_said_by_each(processes: list[Process]) -> None:
    for each in processes:
        each.watch.fail()
        time.sleep(GRACE_S / 10)
    # Only what ends a process that JAX holds: none of them names another.
    assert {each.line() for each in processes} == {""}
    assert all(each.ended.empty() for each in processes)


def test_an_error_caused_by_a_loss_waits_for_its_name(
    processes: list[Process],
) -> None:
    processes[3].kill()
    processes[1].watch.await_loss()
    assert "process 3 on dog" in processes[1].line()
    processes[2].watch.leave()
    assert "process 3 on dog" in processes[0].line()


def test_an_error_that_no_loss_caused_is_not_held_up(processes: list[Process]) -> None:
    waits = threading.Thread(target=processes[1].watch.await_loss, daemon=True)
    waits.start()
    waits.join(PATIENCE_S)
    assert not waits.is_alive()
    assert processes[1].ended.empty()


def test_strangers_evict_nobody_and_end_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        ended: queue.Queue[str] = queue.Queue()
        hosts = {index: HOSTS[index] for index in range(3)}
        watch = CenterWatch(hosts, server, token="secret", grace_s=0.1, end=ended.put)

        def come(index: int) -> MemberWatch:
            member = MemberWatch(
                index,
                socket.create_connection(address),
                "ant",
                token="secret",
                grace_s=0.1,
                end=ended.put,
            )
            member.start()
            wait_until(lambda: index in watch._members)
            return member

        with knocking(address) as strangers:
            watch.start()
            members = [come(1)]
            wait_for_all(strangers)
            # Who knows the token and says a number that is there already.
            twice = Connection(socket.create_connection(address))
            twice.send(Greeting("secret", 1, "bee"))
            assert twice.receive(Greeting) is None
            twice.close()
            members.append(come(2))
            # The watch has begun, and is not to be reached any more.
            wait_until(lambda: server.fileno() == -1)
        time.sleep(0.5)
        assert ended.empty()
        for each in (*members, watch):
            each.leave()
        assert ended.empty()


@pytest.mark.parametrize("news", [b"[" * 9000, b"5\n", b'{"lost": true}\n', b"\xff\n"])
def test_a_member_that_says_what_is_no_news_is_lost(
    processes: list[Process], news: bytes
) -> None:
    processes[2]._connection.sendall(news)
    assert "process 2 on cat is gone" in processes[0].line()


def test_a_silent_machine_is_asked_whether_it_is_there(
    processes: list[Process],
) -> None:
    for connection in (
        processes[0].watch._members[1].socket,
        processes[1].watch._connection.socket,
    ):
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        idle, interval, count = (
            connection.getsockopt(socket.IPPROTO_TCP, option)
            for option in (
                socket.TCP_KEEPIDLE,
                socket.TCP_KEEPINTVL,
                socket.TCP_KEEPCNT,
            )
        )
        assert idle + interval * count + peer_watch.GRACE_S + peer_watch._LAST_S <= 25


PROCESS = """
import sys, time
from trainer.parallel.roll_call import Place, hold_roll_call
watch = hold_roll_call(Place(sys.argv[1], 2, int(sys.argv[2]), timeout=60))
watch.start()
print("watching", flush=True)
time.sleep(300)
"""


@pytest.fixture
def machine_apart() -> Iterator[str]:
    """A network namespace at the other end of a cable, ``NAME`` and ``NAMEb``."""
    name = f"vast{os.getpid() % 1_000_000}"
    commands = (
        f"ip netns add {name}",
        f"ip link add {name} type veth peer name {name}b netns {name}",
        f"ip address add 198.18.77.1/30 dev {name}",
        f"ip link set {name} up",
        f"ip -n {name} address add 198.18.77.2/30 dev {name}b",
        f"ip -n {name} link set {name}b up",
    )
    if shutil.which("ip") is None:
        pytest.skip("there is no ip to make a network namespace with")
    try:
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"no network namespace is to be had: {done.stderr}")
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@pytest.mark.slow
def test_a_machine_that_vanishes_without_a_word_is_named(machine_apart: str) -> None:
    """Its packets are dropped, and so are those to it: nothing says that it is gone."""
    with socket.create_server(("198.18.77.1", 0)) as server:
        address = f"198.18.77.1:{server.getsockname()[1]}"
    started = [
        subprocess.Popen(
            [*where, sys.executable, "-c", PROCESS, address, str(index)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index, where in enumerate(((), ("ip", "netns", "exec", machine_apart)))
    ]
    try:
        for each in started:
            assert each.stdout.readline() == "watching\n"
        time.sleep(2)  # The watch has begun, and says nothing as long as all is well.
        assert [each.poll() for each in started] == [None, None]
        since = time.monotonic()
        cut = f"ip -n {machine_apart} link set {machine_apart}b down"
        subprocess.run(cut.split(), check=True)
        for each, other in zip(started, (1, 0), strict=True):
            _, said = each.communicate(timeout=60)
            # On a machine with much else to do it is not ended to the second.
            assert time.monotonic() - since < 25 + 5
            assert each.returncode == 1
            assert f"error: process {other} on {socket.gethostname()} is gone" in said
    finally:
        for each in started:
            each.kill()
            each.communicate()


def test_the_end_is_exit_code_1_and_a_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)
    end_process("error: process 1 on bee is gone")
    end_process("")
    assert codes == [1, 1]
    assert capsys.readouterr().err == "error: process 1 on bee is gone\n"
