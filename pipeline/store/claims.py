"""Claims: small files that say which command is writing into the folder of a store.

Claims prevent duplicate work and name the process at work; the soundness of a store
does not rest on them. It rests on two other rules: two writers of the same part write
the same bytes (`pipeline.store.writer`), and a commit replaces only the version of a
file that it has read (`pipeline.store.files.commit`). So a claim may be wrong, for
example left by a killed process, without harm to data.
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
    """A process that is working in a folder.

    Attributes:
        host: Host name of the process.
        process: Process id.
        time: Start of the claim, in UTC.
        command: Command line of the process.
        life: Boot id of the machine, PID namespace, and start time of the process, on
            systems that have ``/proc``; empty elsewhere. They tell processes apart
            whose host name and process id are equal, since both are reused.
    """

    host: str
    process: int
    time: str
    command: str
    life: tuple[str, ...] = ()

    @classmethod
    def current(cls) -> "Owner":
        """Describes this process."""
        began = datetime.datetime.now(datetime.UTC)
        return cls(
            host=socket.gethostname(),
            process=os.getpid(),
            time=began.strftime("%Y-%m-%d %H:%M:%S UTC"),
            command=shlex.join(["python", *sys.orig_argv[1:]])[:400],
            life=_life(os.getpid()),
        )

    @classmethod
    def decode(cls, decoded: Any) -> "Owner | None":
        """Decodes an owner from JSON values; returns None if they describe none."""
        try:
            owner = dict(decoded)
            owner["life"] = tuple(map(str, owner["life"]))
            owner["process"] = int(owner["process"])
            return cls(**owner)
        except (KeyError, TypeError, ValueError):
            return None

    def is_here(self) -> bool:
        """Tells whether this machine can look the process up by its id."""
        here = _life(os.getpid())
        # The host name alone does not do: containers of one machine have process ids
        # of their own, and after a reboot all ids mean other processes.
        return self.host == socket.gethostname() and self.life[:2] == here[:2]

    def is_gone(self) -> bool:
        """Tells whether the process has certainly ended.

        Returns:
            False for a process of another machine, which this machine cannot look up.
        """
        if not self.is_here():
            return False
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except OSError:
            # Another user's process may not be signalled, which shows that it exists.
            return False
        # A process with this id exists; it is another one if it started at another
        # time.
        now = _life(self.process)
        return bool(now) and now != self.life

    def __str__(self) -> str:
        return (
            f"process {self.process} on {self.host} since {self.time} ({self.command})"
        )


@dataclass(frozen=True)
class Claim:
    """A claim that this command has taken.

    Attributes:
        root: Local path or ``gs://bucket/path`` of the store.
        name: Name of the claim file, relative to the root.
        data: Bytes of the claim file; the claim is valid while the file holds them.
    """

    root: str
    name: str
    data: bytes

    def stands(self) -> bool:
        """Tells whether no other command has taken the claim over."""
        return files.read(self.root, self.name).data == self.data

    def release(self) -> None:
        """Deletes the claim file, unless another command has taken the claim over."""
        current = files.read(self.root, self.name)
        if current.data == self.data:
            files.delete(self.root, self.name, replacing=current)

    def check(self) -> None:
        """Refuses to go on once another command has taken the claim over.

        Raises:
            DataFormatError: If another command has; the message names it.
        """
        current = files.read(self.root, self.name).data
        if current == self.data:
            return
        owner = None if current is None else _decode(current)[1]
        who = "another process, which has ended," if owner is None else str(owner)
        raise DataFormatError(
            f"{self.root}/{self.name}: expected the claim of this command, but {who} "
            "has taken over; this command has changed nothing that is committed, look "
            "at what the other one does"
        )


@contextmanager
def hold(
    root: str,
    name: str,
    asked: Collection[str],
    *,
    what: str,
    take_over: bool = False,
    settled: Collection[str] = (),
) -> Iterator[Claim]:
    """Holds a claim on a folder while the block runs, and releases it at its end.

    Args:
        root: Local path or ``gs://bucket/path`` of the store.
        name: Name of the claim file, relative to the root.
        asked: Digests of the parts to be written, in order.
        what: Noun for the written thing in errors, such as ``"store"``.
        take_over: Whether to take the claim of a process that may still run.
        settled: Digests of parts that are committed; a claim on nothing but those is
            left over and is replaced.

    Yields:
        The claim.

    Raises:
        DataFormatError: If a process that may still run holds the claim; if a command
            that writes something else was begun in the folder and not finished; or, in
            place of an error that the block raised, if another command has taken the
            claim over.
    """
    claim = _take(root, name, list(asked), what, take_over, frozenset(settled))
    try:
        with _released_by_signals(claim):
            yield claim
    except (OSError, DataFormatError):
        # A command that takes over deletes unfinished files, and this one then fails
        # over a missing file. The take-over is the cause, so it is reported instead.
        claim.check()
        raise
    finally:
        claim.release()


@contextmanager
def _released_by_signals(claim: Claim) -> Iterator[None]:
    """Releases a claim when SIGTERM or SIGHUP end the process during the block."""
    before: dict[int, Any] = {}

    def end(number: int, _: object) -> None:
        claim.release()
        # The signal is raised again with the previous handler, so that the process ends
        # at once. An exception would first wait for all workers that Beam has started.
        signal.signal(number, before[number])
        os.kill(os.getpid(), number)

    # Python allows only the main thread to install handlers.
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            # A command under `nohup` ignores SIGHUP and must go on doing so.
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, end)
    try:
        yield
    finally:
        for handled, handler in before.items():
            signal.signal(handled, handler)


def clear(root: str, name: str) -> None:
    """Deletes the claim file of a process that has certainly ended.

    A process that is killed between its commit and its release leaves one.

    Args:
        root: Local path or ``gs://bucket/path`` of the store.
        name: Name of the claim file, relative to the root.
    """
    current = files.read(root, name)
    if current.data is None:
        return
    owner = _decode(current.data)[1]
    if owner is not None and owner.is_gone():
        files.delete(root, name, replacing=current)


def _take(
    root: str,
    name: str,
    asked: list[str],
    what: str,
    take_over: bool,
    settled: frozenset[str],
) -> Claim:
    """Takes a claim for this process; the arguments are those of ``hold``."""
    owner = dataclasses.asdict(Owner.current())
    # Two threads of one process have equal owners; the token tells their claims apart.
    claimed = {"parts": asked, "owner": owner, "token": secrets.token_hex(8)}
    data = (json.dumps(claimed, indent=1) + "\n").encode()
    current = files.read(root, name)
    if not take_over:
        _check_free(f"{root}/{name}", current.data, asked, what, settled)
    # If another command commits a claim at the same moment, the second read below
    # finds that claim, and the error names its owner.
    with contextlib.suppress(DataFormatError):
        files.commit(root, name, data, replacing=current)
    now = files.read(root, name).data
    if now != data:
        _check_free(f"{root}/{name}", now, asked, what, settled)
        raise DataFormatError(
            f"{root}/{name}: expected the claim that was just written, got another "
            "command's; other commands begin and end here at this moment, repeat this "
            "one"
        )
    return Claim(root, name, data)


def _check_free(
    where: str,
    data: bytes | None,
    asked: list[str],
    what: str,
    settled: frozenset[str],
) -> None:
    """Refuses a claim that another process holds, and names that process."""
    if data is None:
        return
    parts, owner = _decode(data)
    if parts is not None and settled.issuperset(parts):
        return
    if parts == asked:
        # The claim of an ended process for the same parts is this command, begun
        # earlier: its finished parts are reused.
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
    """Decodes a claim file: the claimed digests and the owner, None where unknown."""
    try:
        claimed: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None, None
    if isinstance(claimed, list):
        return claimed, None  # Earlier releases wrote claims without an owner.
    try:
        return list(claimed["parts"]), Owner.decode(claimed["owner"])
    except (KeyError, TypeError):
        return None, None


def _life(process: int) -> tuple[str, ...]:
    """Reads boot id, PID namespace and start time of a process from ``/proc``.

    Returns:
        The three as text, or an empty tuple if there is no such process or ``/proc``.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        container = os.readlink("/proc/self/ns/pid")
        # The second field is the program's name in parentheses. It may contain spaces
        # and parentheses, so the fields are counted from the last one.
        stat = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ()
    state, started = stat[0], stat[19]
    # A zombie (Z) or dead (X) process has ended, although its id still exists until
    # its parent asks for its exit code.
    return (boot, container, "ended" if state in "ZX" else started)
