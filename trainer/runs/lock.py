"""One trainer a run's folder: a small file that says who trains there, and still does.

It is written under the condition that nobody else has written it meanwhile, on disk and
on gs://, and renewed while training goes on. Clocks of machines differ: whether a
trainer of another machine is still there is told by watching whether it renews.
"""

import dataclasses
import json
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rich.console import Console

from pipeline.output import say
from pipeline.store.claims import Owner
from pipeline.store.errors import DataFormatError
from pipeline.store.files import Content
from trainer.errors import RunLockedError, StorageError
from trainer.runs.folder import LOCK_FILE, RunFolder

# A trainer that has not renewed for so long is gone, or as good as.
RENEW_S, LAPSE_S = 15.0, 60.0
# Seconds between two looks at a lock that may lapse.
_LOOK_S = 1.0


class RunLock:
    """The lock of this process on a run's folder, until it is released.

    Args:
        folder: RUN.
        there: The lock file as it was read, to be replaced.

    Raises:
        RunLockedError: If somebody else was quicker.
    """

    def __init__(self, folder: RunFolder, there: Content) -> None:
        self._folder = folder
        self._there = there
        self._owner = Owner.current()
        self._token = secrets.token_hex(8)
        self._renewals = 0
        # The thread that renews and whoever asks look at the same file.
        self._busy = threading.Lock()
        self._over = threading.Event()
        if not self._renew():
            raise _refusal(folder, folder.read(LOCK_FILE).data)
        self._thread = threading.Thread(target=self._keep_renewing, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Ends a trainer that another one has taken the place of, before it writes.

        Raises:
            StorageError: Naming the other.
        """
        with self._busy:
            data = self._folder.read(LOCK_FILE).data
            if data == self._there.data:
                return
        self._over.set()
        owner = None if data is None else _read_owner(data)
        who = "another process, which has ended," if owner is None else str(owner)
        raise StorageError(
            f"{self._folder}: {who} has taken over; this one has saved nothing since, "
            "look at what that one does"
        )

    def release(self) -> None:
        """Lets others train there, if this process still may."""
        self._over.set()
        self._thread.join()
        with suppress(OSError):  # It lapses then.
            if self._folder.read(LOCK_FILE).data == self._there.data:
                self._folder.delete(LOCK_FILE, replacing=self._there)

    def _keep_renewing(self) -> None:
        while not self._over.wait(RENEW_S):
            # There are three more times until it lapses.
            with suppress(OSError), self._busy:
                if not self._renew():
                    return  # The next check says so.

    def _renew(self) -> bool:
        """Writes the lock anew; whether it was this process's to write."""
        value = {
            "owner": dataclasses.asdict(self._owner),
            "token": self._token,
            "renewals": self._renewals,
        }
        data = (json.dumps(value, indent=1) + "\n").encode()
        try:
            self._folder.commit(LOCK_FILE, data, replacing=self._there)
        except DataFormatError:  # Somebody else has.
            return False
        there = self._folder.read(LOCK_FILE)
        if there.data != data:
            return False
        self._there = there
        self._renewals += 1
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
        folder: RUN.
        take_over: Whether to take the place of a trainer that may still run.
        console: For why it waits.
        sleep: Waits, in seconds.
        now: Seconds of a clock that only goes on.

    Returns:
        The lock, to be released.

    Raises:
        RunLockedError: If another trainer is at work there, naming it.
    """
    there = folder.read(LOCK_FILE)
    if there.data is not None and not take_over:
        there = _await_lapse(folder, there, console, sleep, now)
    return RunLock(folder, there)


def _await_lapse(
    folder: RunFolder,
    there: Content,
    console: Console,
    sleep: Callable[[float], None],
    now: Callable[[], float],
) -> Content:
    """Waits until a lock lapses, unless its owner is known to be there or gone."""
    since, said = now(), False
    seen = there.data
    while there.data is not None:
        owner = _read_owner(there.data)
        if owner is not None and owner.is_gone():
            break
        if there.data != seen or (owner is not None and owner.is_here()):
            raise _refusal(folder, there.data)
        if now() - since > LAPSE_S:
            say(console, f"{owner or 'another process'} is gone: taking over")
            break
        if not said:
            say(
                console,
                f"{folder}: looking for up to {LAPSE_S:.0f} s whether it is still "
                f"trained by {owner or 'another process'}",
            )
            said = True
        sleep(_LOOK_S)
        there = folder.read(LOCK_FILE)
    return there


def _refusal(folder: RunFolder, data: bytes | None) -> RunLockedError:
    owner = None if data is None else _read_owner(data)
    who = "another process" if owner is None else str(owner)
    return RunLockedError(
        f"{folder}: is being trained by {who}; wait until that has ended, train into "
        "another --out, or add --take-over to go on in its place"
    )


def _read_owner(data: bytes) -> Owner | None:
    try:
        value: Any = json.loads(data)
        return Owner.decode(value["owner"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
