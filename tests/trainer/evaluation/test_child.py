"""The child process: ending it never costs what it has sent."""

import signal
import time
from multiprocessing.connection import Connection

import pytest

from trainer.evaluation import child
from trainer.evaluation.child import Child


def answer_and_stay(connection: Connection) -> None:
    """Ends only when killed."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    connection.send("an answer")
    time.sleep(600)


def test_a_child_that_ends_late_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    stubborn = Child("stubborn", "a test", answer_and_stay, ())
    assert stubborn.receive(60) == "an answer"
    process = stubborn._process
    # As on a busy machine: the signal has not had its effect yet.
    monkeypatch.setattr(process, "kill", lambda: None)
    monkeypatch.setattr(child, "_STOP_TIMEOUT_S", 0.1)
    stubborn.close()
    assert process.is_alive()
    monkeypatch.undo()
    process.kill()
    process.join()
