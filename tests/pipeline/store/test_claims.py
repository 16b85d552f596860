import dataclasses
import json
import os
import signal
import subprocess
import sys

import pytest

from pipeline.store import claims, files
from pipeline.store.claims import Owner
from pipeline.store.errors import DataFormatError

NAME = "shard.json"
ASKED = ["sha256:a", "sha256:b"]


@pytest.fixture
def root(tmp_path):
    return str(tmp_path)


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def held(root, asked=ASKED, **options):
    return claims.hold(root, NAME, asked, what="store", **options)


def leave(root, *, asked=ASKED, **changes):
    """The claim of a process that has gone without a word."""
    owner = dataclasses.replace(Owner.current(), **changes)
    value = {"parts": asked, "owner": dataclasses.asdict(owner)}
    files.write(root, NAME, json.dumps(value).encode())


def test_a_twin_is_refused_and_told_whose_twin_it_is(root):
    with held(root) as claim:
        assert claim.stands()
        with pytest.raises(DataFormatError) as caught, held(root):
            pass
    message = str(caught.value)
    owner = Owner.current()
    assert f"process {os.getpid()} on {owner.host} since 20" in message
    assert "pytest" in message  # The command.
    assert "this store is being written by" in message
    assert "--take-over" in message
    assert "\n" not in message
    with held(root):
        pass


def test_another_store_is_refused_whoever_has_begun_it(root, sleeper):
    leave(root, process=sleeper.pid, life=claims._life(sleeper.pid))
    sleeper.kill()
    sleeper.wait()
    refused = "another store has been begun here and not finished, by process"
    with pytest.raises(DataFormatError, match=refused), held(root, ["sha256:c"]):
        pass
    with held(root, ["sha256:c"], take_over=True) as claim:
        assert claim.stands()


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, OSError, ValueError, DataFormatError, SystemExit]
)
def test_no_failure_leaves_a_claim(root, error):
    def fail():
        with held(root) as claim:
            assert claim.stands()
            raise error

    with pytest.raises(error):
        fail()
    assert files.read(root, NAME).data is None
    assert os.listdir(root) == []


TERMINATED = """
import os, signal, sys
from pipeline.store import claims

with claims.hold(sys.argv[1], "shard.json", ["sha256:a"], what="store") as claim:
    with claims.hold(sys.argv[1], "append.json", ["sha256:a"], what="append"):
        assert claim.stands()
        print(sorted(os.listdir(sys.argv[1])))
        sys.stdout.flush()
        os.kill(os.getpid(), int(sys.argv[2]))
        signal.pause()
"""


@pytest.fixture(params=[signal.SIGTERM, signal.SIGHUP])
def number(request):
    """A signal that ends this process and those it starts, also under nohup."""
    before = signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, before)


def test_a_signal_that_ends_a_process_leaves_no_claim(root, number):
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED, root, str(number.value)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -number, done.stderr
    assert done.stdout == "['append.json', 'shard.json']\n"
    assert os.listdir(root) == []
    before = signal.getsignal(number)
    with held(root):
        assert signal.getsignal(number) is not before
    assert signal.getsignal(number) is before


def test_who_was_taken_over_from_is_told_and_leaves_the_claim_alone(root):
    with held(root) as first:
        with held(root, take_over=True) as second:
            assert not first.stands()
            with pytest.raises(DataFormatError, match=r"process \d+ .* has taken over"):
                first.check()
            second.check()
        with pytest.raises(DataFormatError, match=r"which has ended, has taken over"):
            first.check()
        files.write(root, NAME, b"of a third one")
    assert files.read(root, NAME).data == b"of a third one"


@pytest.mark.parametrize("error", [OSError("no such file"), DataFormatError("gone")])
def test_what_fails_because_of_who_took_over_is_told_as_that(root, error):
    def lose():
        with held(root):
            leave(root, process=1 << 21, host="elsewhere")
            raise error

    with pytest.raises(
        DataFormatError, match=r"2097152 on elsewhere .* has taken over"
    ):
        lose()
    assert files.read(root, NAME).data is not None


def test_a_killed_process_is_taken_over_from_without_a_word(root, sleeper):
    leave(root, process=sleeper.pid, life=claims._life(sleeper.pid))
    with pytest.raises(DataFormatError, match=f"process {sleeper.pid}"), held(root):
        pass
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    # Its parent has not asked about it yet, so that its number is still taken.
    with held(root) as claim:
        assert claim.stands()


@pytest.mark.parametrize(
    ("changes", "gone"),
    [
        ({}, False),
        ({"process": 1 << 22}, True),  # Above any number that Linux gives.
        ({"process": 1 << 22, "host": "elsewhere"}, False),
        ({"process": 1 << 22, "life": ("another", "start", "1")}, False),
        ({"life": (*claims._life(os.getpid())[:2], "1")}, True),
    ],
    ids=["this one", "ended", "elsewhere", "restarted machine", "number used again"],
)
def test_only_who_has_certainly_ended_is_gone(changes, gone):
    owner = dataclasses.replace(Owner.current(), **changes)
    assert owner.is_gone() is gone


def test_claims_of_before_name_nobody(root):
    files.write(root, NAME, json.dumps(ASKED).encode())
    with (
        pytest.raises(DataFormatError, match="does not say which"),
        held(root, ["sha256:c"]),
    ):
        pass
    with held(root) as claim:
        assert claim.stands()


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[" * 100_000, b'{"parts": 1, "owner": 2}', b'"x"']
)
def test_a_claim_that_cannot_be_read_is_no_traceback(root, data):
    files.write(root, NAME, data)
    with pytest.raises(DataFormatError, match="--take-over"), held(root):
        pass
    with held(root, take_over=True) as claim:
        assert claim.stands()


def test_what_is_committed_hinders_nobody(root):
    leave(root)
    with held(root, ["sha256:c"], settled=["sha256:0", *ASKED]) as claim:
        assert claim.stands()


def test_only_what_the_dead_have_left_is_cleared(root):
    claims.clear(root, NAME)
    leave(root)
    claims.clear(root, NAME)
    assert files.read(root, NAME).data is not None
    leave(root, process=1 << 22)
    claims.clear(root, NAME)
    assert files.read(root, NAME).data is None
