"""The lock of a run's folder, which keeps a second trainer out.

Two trainers in one folder would delete each other's checkpoints. The lock is a small
file that names the process that trains there. It is written on the condition that no
other process has written it meanwhile, which works on disk and on gs://, and it is
renewed while training runs.
"""

import dataclasses
import json
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from rich.console import Console

from pipeline.output import say
from pipeline.store.claims import Owner
from pipeline.store.errors import DataFormatError
from pipeline.store.files import Content
from trainer.errors import RunLockedError, StorageError
from trainer.runs.folder import LOCK_FILE, RunFolder

# Seconds between renewals, and seconds without one after which a lock lapses: a trainer
# may miss three before it is taken for gone.
RENEW_S, LAPSE_S = 15.0, 60.0
# Seconds between two looks at a lock that may lapse.
_LOOK_S = 1.0
# Errors of reading a damaged lock file.
_DAMAGE = (ValueError, KeyError, TypeError, RecursionError)


class RunLock:
    """The lock of this process on a run's folder, until it is released.

    Args:
        folder: Folder of the run, RUN.
        content: The lock file as it was read, to be replaced.

    Raises:
        RunLockedError: If another process has taken the lock meanwhile.
    """

    def __init__(self, folder: RunFolder, content: Content) -> None:
        self._folder = folder
        self._content = content
        self._owner = Owner.current()
        # Random, since process ids are used again and machines may share names.
        self._token = secrets.token_hex(8)
        self._renewals = 0
        # Held by the renewing thread and by `check`, which compare the file with what
        # this process has written last.
        self._busy = threading.Lock()
        self._over = threading.Event()
        if not self._renew():
            raise _make_refusal(folder, folder.read(LOCK_FILE).data)
        self._thread = threading.Thread(target=self._keep_renewing, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Checks that this process still holds the lock; called before each save.

        Raises:
            StorageError: Names the process that has taken over.
        """
        with self._busy:
            content = self._folder.read(LOCK_FILE)
            if self._adopt(content):
                return
        self._over.set()
        owner = None if content.data is None else _read_owner(content.data)
        who = "another process, which has ended," if owner is None else str(owner)
        raise StorageError(
            f"{self._folder}: {who} has taken over; this process has saved nothing "
            "since, follow the training of that one"
        )

    def release(self) -> None:
        """Deletes the lock file, if this process still holds the lock."""
        self._over.set()
        self._thread.join()
        # If the file cannot be deleted, the lock lapses.
        with suppress(OSError):
            if self._adopt(self._folder.read(LOCK_FILE)):
                self._folder.delete(LOCK_FILE, replacing=self._content)

    def _keep_renewing(self) -> None:
        while not self._over.wait(RENEW_S):
            # A renewal that fails is tried again three times before the lock lapses.
            with suppress(OSError), self._busy:
                if not self._renew():
                    return  # Another process has the lock: the next `check` raises.

    def _renew(self) -> bool:
        """Writes the lock file again; says whether this process holds the lock."""
        # The number changes the file, so that others see that it was renewed.
        self._renewals += 1
        value = {
            "owner": dataclasses.asdict(self._owner),
            "token": self._token,
            "renewals": self._renewals,
        }
        data = (json.dumps(value, indent=1) + "\n").encode()
        # Refused if somebody has written the file: another process, or this one in a
        # renewal that took effect though it seemed to fail.
        with suppress(DataFormatError):
            self._folder.commit(LOCK_FILE, data, replacing=self._content)
        # Read back for the generation or time stamp that the next renewal replaces.
        return self._adopt(self._folder.read(LOCK_FILE))

    def _adopt(self, content: Content) -> bool:
        """Notes the lock file's content if this process wrote it; says whether so."""
        if content.data is None or _read_token(content.data) != self._token:
            return False
        self._content = content
        return True


def lock_run(
    folder: RunFolder,
    *,
    take_over: bool = False,
    console: Console,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> RunLock:
    """Takes the lock of a run's folder.

    Args:
        folder: Folder of the run, RUN.
        take_over: Whether to replace a trainer that may still be running.
        console: Console for the reason of a wait.
        sleep: Function that waits for a number of seconds.
        now: Monotonic clock, in seconds.

    Returns:
        The lock, which the caller releases.

    Raises:
        RunLockedError: If another trainer is at work there; the message names it.
    """
    content = folder.read(LOCK_FILE)
    if content.data is not None and not take_over:
        content = _await_lapse(folder, content, console, sleep, now)
    return RunLock(folder, content)


def _await_lapse(
    folder: RunFolder,
    content: Content,
    console: Console,
    sleep: Callable[[float], None],
    now: Callable[[], float],
) -> Content:
    """Waits until a lock lapses, unless its owner is known to run or to be gone."""
    # Clocks of machines differ, so no time stamp is compared: a trainer on another
    # machine is alive if it renews the file while this process watches.
    since, said = now(), False
    first_seen = content.data
    while content.data is not None:
        owner = _read_owner(content.data)
        # On its own machine a dead owner is known to be gone, and need not lapse.
        if owner is not None and owner.is_gone():
            break
        if content.data != first_seen or (owner is not None and owner.is_here()):
            raise _make_refusal(folder, content.data)
        if now() - since > LAPSE_S:
            say(console, f"{owner or 'another process'} is gone: taking over")
            break
        if not said:
            say(
                console,
                f"{folder}: watching for up to {LAPSE_S:.0f} s whether "
                f"{owner or 'another process'} still trains there",
            )
            said = True
        sleep(_LOOK_S)
        content = folder.read(LOCK_FILE)
    return content


def _make_refusal(folder: RunFolder, data: bytes | None) -> RunLockedError:
    owner = None if data is None else _read_owner(data)
    who = "another process" if owner is None else str(owner)
    return RunLockedError(
        f"{folder}: is being trained by {who}; wait until that has ended, train into "
        "another --out, or add --take-over to go on in its place"
    )


def _read_owner(data: bytes) -> Owner | None:
    # None for a damaged file: its lock lapses like any other.
    with suppress(*_DAMAGE):
        return Owner.decode(json.loads(data)["owner"])
    return None


def _read_token(data: bytes) -> str | None:
    with suppress(*_DAMAGE):
        token: str = json.loads(data)["token"]
        return token
    return None
