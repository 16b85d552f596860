"""The lock on a run's folder: who has it, who is refused, and when it lapses."""

import contextlib
import dataclasses
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pipeline.store.claims import Owner
from tests.fake_gcs import failing, forget_clients, serve
from trainer.errors import RunLockedError, StorageError
from trainer.runs import lock as locks
from trainer.runs.folder import LOCK_FILE, RunFolder
from trainer.runs.lock import LAPSE_S, RENEW_S, RunLock, lock_run

QUIET = Console(quiet=True)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.open(tmp_path / "run")


@pytest.fixture(params=["disk", "bucket"])
def any_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RunFolder]:
    if request.param == "disk":
        yield RunFolder.open(tmp_path / "run")
        return
    forget_clients()
    # The server alone passes over preconditions of requests that come at once.
    with serve() as client, failing(refused=0, cut=0):
        client.create_bucket("locks")
        forget_clients()
        yield RunFolder.open("gs://locks/run")
    forget_clients()


class Clock:
    """Time that passes by sleeping alone, and what happens meanwhile."""

    def __init__(self, *happens) -> None:
        self.time = 0.0
        self._happens = dict(happens)

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        for when in [when for when in self._happens if when <= self.time]:
            self._happens.pop(when)()

    def lock(self, folder: RunFolder, console: Console = QUIET) -> RunLock:
        return lock_run(
            folder, console=console, sleep=self.sleep, now=lambda: self.time
        )


def leave(folder: RunFolder, **changes: object) -> None:
    """The lock of a trainer that has gone without a word, or of a machine far away."""
    owner = dataclasses.replace(Owner.current(), **changes)
    value = {"owner": dataclasses.asdict(owner), "renewals": time.monotonic_ns()}
    folder.write(LOCK_FILE, json.dumps(value).encode())


def test_a_second_trainer_is_refused_and_told_of_the_first(
    any_folder: RunFolder,
) -> None:
    first = lock_run(any_folder, console=QUIET)
    for _ in range(2):
        with pytest.raises(RunLockedError) as refused:
            lock_run(any_folder, console=QUIET)
        message = str(refused.value)
        assert f"is being trained by process {os.getpid()} on " in message
        assert f"{socket.gethostname()} since 20" in message
        assert "add --take-over" in message
        assert "\n" not in message
    first.check()
    first.release()
    assert any_folder.read(LOCK_FILE).data is None
    lock_run(any_folder, console=QUIET).release()


def test_of_many_at_once_one_gets_it(any_folder: RunFolder) -> None:
    locked: list[RunLock] = []
    refused: list[str] = []
    start = threading.Barrier(6)

    def one() -> None:
        start.wait()
        try:
            locked.append(lock_run(any_folder, console=QUIET))
        except RunLockedError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=one) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (len(locked), len(refused)) == (1, 5)
    locked[0].check()
    locked[0].release()


def test_a_trainer_that_takes_over_ends_the_other_before_it_saves(
    any_folder: RunFolder,
) -> None:
    first = lock_run(any_folder, console=QUIET)
    second = lock_run(any_folder, take_over=True, console=QUIET)
    with pytest.raises(StorageError, match=f"process {os.getpid()} on .* has taken"):
        first.check()
    first.release()  # Of what is the other's now, nothing.
    second.check()
    second.release()
    assert any_folder.read(LOCK_FILE).data is None
    third = lock_run(any_folder, console=QUIET)
    any_folder.write(LOCK_FILE, b"{}")
    with pytest.raises(StorageError, match="another process, which has ended,"):
        third.check()


@pytest.mark.parametrize("lost", ["answer", "look"])
def test_a_renewal_whose_success_is_not_seen_is_no_takeover(
    any_folder: RunFolder, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    lock = lock_run(any_folder, console=QUIET)
    before = any_folder.read(LOCK_FILE).data

    def fail(*_: object, **__: object) -> None:
        raise OSError("timed out")

    def commit(folder: RunFolder, *given: Any, **options: Any) -> None:
        real(folder, *given, **options)
        fail()

    real = RunFolder.commit
    with monkeypatch.context() as patched:
        if lost == "answer":
            patched.setattr(RunFolder, "commit", commit)
        else:
            patched.setattr(RunFolder, "read", fail)
        with pytest.raises(OSError, match="timed out"):
            lock._renew()
    assert any_folder.read(LOCK_FILE).data != before
    # The next renewal replaces what was written, whether a save comes before it or not.
    if lost == "answer":
        lock.check()
    assert lock._renew()
    lock.check()
    lock.release()
    assert any_folder.read(LOCK_FILE).data is None


def test_a_killed_trainer_of_this_machine_is_succeeded_at_once(
    folder: RunFolder,
) -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    leave(folder, process=child.pid)
    clock = Clock()
    clock.lock(folder).release()
    assert clock.time == 0


def test_a_trainer_elsewhere_is_there_as_long_as_it_renews(folder: RunFolder) -> None:
    leave(folder, host="far-away", process=17)
    said = io.StringIO()
    clock = Clock((RENEW_S, lambda: leave(folder, host="far-away", process=17)))
    with pytest.raises(RunLockedError, match="trained by process 17 on far-away since"):
        clock.lock(folder, Console(file=said, width=500))
    assert RENEW_S <= clock.time < RENEW_S + 2
    assert "watching for up to 60 s whether" in said.getvalue()


@pytest.mark.parametrize("damaged", [False, True])
def test_a_trainer_elsewhere_that_does_not_renew_is_succeeded(
    folder: RunFolder, damaged: bool
) -> None:
    leave(folder, host="far-away")
    if damaged:
        folder.write(LOCK_FILE, b"[" * 100_000)
    clock = Clock()
    lock = clock.lock(folder)
    assert LAPSE_S < clock.time < LAPSE_S + 2
    lock.check()
    lock.release()
    # It would have renewed several times.
    assert LAPSE_S >= 3 * RENEW_S


def test_a_trainer_elsewhere_that_ends_is_succeeded(folder: RunFolder) -> None:
    leave(folder, host="far-away")
    clock = Clock((3.0, lambda: (folder.path / LOCK_FILE).unlink()))
    clock.lock(folder).release()
    assert clock.time < 5


def test_a_lock_is_renewed_until_another_has_it(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "RENEW_S", 0.02)
    first = lock_run(folder, console=QUIET)

    def wait_for_renewals(count: int) -> None:
        deadline = time.monotonic() + 60
        while json.loads(folder.read(LOCK_FILE).data or b"")["renewals"] < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    wait_for_renewals(3)
    for _ in range(20):  # Whatever the thread does meanwhile.
        first.check()
    monkeypatch.setattr(locks, "RENEW_S", 600.0)
    # Taken over between two renewals: the next leaves it alone.
    second = None
    while second is None:
        with contextlib.suppress(RunLockedError):  # It renewed at that moment.
            second = lock_run(folder, take_over=True, console=QUIET)
    taken = folder.read(LOCK_FILE).data
    first._thread.join(1)
    assert folder.read(LOCK_FILE).data == taken
    with pytest.raises(StorageError):
        first.check()
    second.check()
    first.release()
    second.release()
