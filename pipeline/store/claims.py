"""Claims: small files that say which command is at work in the folder of a store.

They spare work and name who does it. What keeps a store sound is something else:
writers cannot harm each other (`pipeline.store.writer`), and a commit replaces nothing
that it has not seen (`pipeline.store.files.commit`).
"""

import contextlib
import dataclasses
import datetime
import json
import os
import secrets
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.store import files
from pipeline.store.errors import DataFormatError


@dataclass(frozen=True)
class Owner:
    """A process that is at work in a folder.

    Attributes:
        host: Name of its machine.
        process: Number of the process.
        time: When it began, UTC.
        command: Its command line.
        life: Which start of which process of which start of the machine it is, where
            the system tells: numbers and names of machines are used again.
    """

    host: str
    process: int
    time: str
    command: str
    life: tuple[str, ...] = ()

    @classmethod
    def current(cls) -> "Owner":
        """This process."""
        began = datetime.datetime.now(datetime.UTC)
        return cls(
            host=socket.gethostname(),
            process=os.getpid(),
            time=began.strftime("%Y-%m-%d %H:%M:%S UTC"),
            command=shlex.join(["python", *sys.orig_argv[1:]])[:400],
            life=_life(os.getpid()),
        )

    @classmethod
    def decode(cls, value: Any) -> "Owner | None":
        """Reads plain values of one; None if they are none."""
        try:
            owner = dict(value)
            owner["life"] = tuple(map(str, owner["life"]))
            owner["process"] = int(owner["process"])
            return cls(**owner)
        except (KeyError, TypeError, ValueError):
            return None

    def is_here(self) -> bool:
        """Whether it is a process of this machine, since it was started."""
        here = _life(os.getpid())
        # Of one container, too.
        return self.host == socket.gethostname() and self.life[:2] == here[:2]

    def is_gone(self) -> bool:
        """Whether it has certainly ended: only its own machine can tell."""
        if not self.is_here():
            return False
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        now = _life(self.process)
        return bool(now) and now != self.life

    def __str__(self) -> str:
        return (
            f"process {self.process} on {self.host} since {self.time} ({self.command})"
        )


@dataclass(frozen=True)
class Claim:
    """A claim of this command.

    Attributes:
        root: The store.
        name: The file that holds it.
        data: What the file holds as long as the claim stands.
    """

    root: str
    name: str
    data: bytes

    def stands(self) -> bool:
        """Whether nobody has taken over."""
        return files.read(self.root, self.name).data == self.data

    def release(self) -> None:
        """Leaves the folder to whoever comes next, unless that one is there already."""
        there = files.read(self.root, self.name)
        if there.data == self.data:
            files.delete(self.root, self.name, replacing=there)

    def check(self) -> None:
        """Ends a command that another one has taken the place of.

        Raises:
            DataFormatError: Naming it.
        """
        there = files.read(self.root, self.name).data
        if there == self.data:
            return
        owner = None if there is None else _decode(there)[1]
        who = "another process, which has ended," if owner is None else str(owner)
        raise DataFormatError(
            f"{self.root}/{self.name}: {who} has taken over; this command has changed "
            "nothing that is committed, look at what that one does"
        )


@contextmanager
def held(
    root: str,
    name: str,
    asked: Collection[str],
    *,
    what: str,
    take_over: bool = False,
    settled: Collection[str] = (),
) -> Iterator[Claim]:
    """Claims a folder while its block runs, however that ends.

    Args:
        root: The store.
        name: File of the claim.
        asked: Digests of what is to be written, in order.
        what: What that is, for errors, such as ``"store"``.
        take_over: Whether to go on in the place of a process that may still run.
        settled: Digests of what is committed; a claim of those hinders nobody.

    Yields:
        The claim.

    Raises:
        DataFormatError: If another process is at work there and not known to have
            ended, or if something else was begun there; and in place of what failed,
            if another process has taken over meanwhile.
    """
    claim = _take(root, name, list(asked), what, take_over, frozenset(settled))
    try:
        with _released_by_signals(claim):
            yield claim
    except (OSError, DataFormatError):
        # What was missing was cleared away by whoever took over: that is what to say.
        claim.check()
        raise
    finally:
        claim.release()


@contextmanager
def _released_by_signals(claim: Claim) -> Iterator[None]:
    """Has SIGTERM and SIGHUP release a claim before they end the process."""
    before: dict[int, Any] = {}

    def end(number: int, _: object) -> None:
        claim.release()
        # At once, as without us: an error would wait for all that Beam has started.
        signal.signal(number, before[number])
        os.kill(os.getpid(), number)

    # Python tells signals to the main thread alone.
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            # Of `nohup`, a signal that is ignored stays so.
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for each, there in before.items():
            signal.signal(each, there)


def clear(root: str, name: str) -> None:
    """Deletes a claim whose process was killed after its store was committed."""
    there = files.read(root, name)
    if there.data is None:
        return
    owner = _decode(there.data)[1]
    if owner is not None and owner.is_gone():
        files.delete(root, name, replacing=there)


def _take(
    root: str,
    name: str,
    asked: list[str],
    what: str,
    take_over: bool,
    settled: frozenset[str],
) -> Claim:
    owner = dataclasses.asdict(Owner.current())
    # Of two threads of one process, too, each has a claim of its own.
    value = {"parts": asked, "owner": owner, "token": secrets.token_hex(8)}
    data = (json.dumps(value, indent=1) + "\n").encode()
    there = files.read(root, name)
    if not take_over:
        _check_free(f"{root}/{name}", there.data, asked, what, settled)
    # Of two at once one is quicker.
    with contextlib.suppress(DataFormatError):
        files.commit(root, name, data, replacing=there)
    now = files.read(root, name).data
    if now != data:
        _check_free(f"{root}/{name}", now, asked, what, settled)
        raise DataFormatError(
            f"{root}/{name}: other commands begin and end here at this moment; repeat "
            "this one"
        )
    return Claim(root, name, data)


def _check_free(
    where: str,
    data: bytes | None,
    asked: list[str],
    what: str,
    settled: frozenset[str],
) -> None:
    """Refuses what another process has begun, and says which."""
    if data is None:
        return
    parts, owner = _decode(data)
    if parts is not None and settled.issuperset(parts):
        return
    if parts == asked:
        if owner is None or owner.is_gone():
            return
        raise DataFormatError(
            f"{where}: this {what} is being written by {owner}; wait until that has "
            "ended, or add --take-over to go on in its place"
        )
    by = "a command that does not say which" if owner is None else str(owner)
    raise DataFormatError(
        f"{where}: another {what} has been begun here and not finished, by {by}; "
        "repeat that command, choose another folder, or add --take-over if that "
        f"{what} is given up"
    )


def _decode(data: bytes) -> tuple[list[str] | None, Owner | None]:
    """What is claimed, and by whom; None for what cannot be told."""
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None, None
    if isinstance(value, list):
        return value, None  # Of before claims had owners.
    try:
        return list(value["parts"]), Owner.decode(value["owner"])
    except (KeyError, TypeError):
        return None, None


def _life(process: int) -> tuple[str, ...]:
    """Start of the machine, container and start of a process; empty if none runs."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        container = os.readlink("/proc/self/ns/pid")
        # The name, in brackets, may hold anything.
        told = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ()
    state, started = told[0], told[19]
    # One that was killed and that nobody has asked about yet has ended too.
    return (boot, container, "ended" if state in "ZX" else started)
