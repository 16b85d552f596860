"""Downloads OGBench's published files; an interrupted download can be resumed.

A download writes ``NAME.partial`` under a lock. The file is renamed to ``NAME`` once it
has the size that the server announced and the CRC-32 of every member is right. A
damaged ``NAME`` is fetched again, and replaced when the new file is complete.
"""

import contextlib
import fcntl
import http.client
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from pipeline.sources import npz
from pipeline.sources.options import MIRROR
from pipeline.store.errors import DataFormatError, UsageError

PARTIAL = ".partial"
_PIECE_BYTES = 1 << 20
_TIMEOUT_S = 30.0
_ATTEMPTS = 5
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


@dataclass(frozen=True)
class Remote:
    """A file on a server.

    Attributes:
        url: Address of the file.
        size_bytes: Size that the server announces, in bytes.
        version: Entity tag or date of the file, which shows that the file has changed;
            empty if the server gives neither.
    """

    url: str
    size_bytes: int
    version: str


def look_up(url: str) -> Remote:
    """Asks a server for the size of a file.

    Args:
        url: Address of the file.

    Returns:
        Size and version of the file.

    Raises:
        UsageError: If the address is malformed, or the server has no such file.
        ConnectionError: If the server cannot be reached.
        DataFormatError: If the server does not announce the size.
    """
    if "://" not in url:
        raise UsageError(
            f"--mirror: expected an address such as {MIRROR}, got {url}; correct it"
        )
    request = urllib.request.Request(url, method="HEAD")
    with _reached(url), urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
        length = answer.headers.get("Content-Length")
        version = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
    if length is None:
        raise DataFormatError(
            f"{url}: expected a server that announces the size of a file, got no "
            "Content-Length; choose another --mirror"
        )
    return Remote(url, int(length), version or "")


def fetch(
    remote: Remote,
    path: str,
    *,
    progress: Callable[[int], None] = lambda size_bytes: None,
    wait: Callable[[float], None] = time.sleep,
) -> bool:
    """Downloads a file, or the bytes of it that are still missing.

    Args:
        remote: The file on the server, from `look_up`.
        path: Local path to download to.
        progress: Called with the number of bytes that have arrived so far.
        wait: Sleeps for the given seconds between attempts; tests replace it.

    Returns:
        False if the whole file was already there.

    Raises:
        ConnectionError: If the connection breaks again and again (a repeated command
            resumes the download), or if bytes were damaged on the way (a repeated
            command downloads the file anew).
        DataFormatError: If the bytes are no npz or of another size than announced, or
            if another download of the file is running.
        OSError: If the disk is full or fails.
    """
    if os.path.exists(path):
        if _size(path) != remote.size_bytes:
            raise DataFormatError(
                f"{path}: expected {remote.size_bytes:,} bytes, as {remote.url} "
                f"announces, got {_size(path):,}; delete it and repeat the command"
            )
        # A file of the right size may still be damaged, and the error of whatever reads
        # it advises to fetch it again: so its checksums are compared here, and a
        # damaged file falls through to the download.
        with contextlib.suppress(DataFormatError):
            npz.check_sums(path)
            progress(remote.size_bytes)
            return False
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    partial = path + PARTIAL
    with _locked(partial) as file:
        _forget_other_version(file, partial, remote)
        # Only attempts that bring no byte count: a slow, flaky link may break hundreds
        # of times over a large file and still finish.
        fruitless = 0
        while (received := _size(partial)) < remote.size_bytes:
            try:
                _receive(remote, file, received, progress)
                stalled: Exception | None = None
            except (ConnectionError, http.client.HTTPException, TimeoutError) as error:
                stalled = error
            fruitless = fruitless + 1 if _size(partial) <= received else 0
            if fruitless == _ATTEMPTS:
                raise ConnectionError(
                    f"{remote.url}: expected {remote.size_bytes:,} bytes, got "
                    f"{received:,} and then nothing in {_ATTEMPTS} attempts "
                    f"({stalled}); repeat the command, it goes on where it stopped"
                )
            if stalled is not None:
                wait(min(30.0, 2.0**fruitless))
        _check_arrived(file, partial, remote)
        os.replace(partial, path)
    with contextlib.suppress(FileNotFoundError):
        os.remove(partial + ".version")
    progress(remote.size_bytes)
    return True


def _receive(
    remote: Remote, file: BinaryIO, received: int, progress: Callable[[int], None]
) -> None:
    """Appends bytes from the server until the file is complete or the answer ends.

    Args:
        remote: The file on the server.
        file: The partial file, open for appending.
        received: Bytes that the partial file already holds.
        progress: Called with the number of bytes that have arrived so far.
    """
    request = urllib.request.Request(remote.url)
    if received:
        request.add_header("Range", f"bytes={received}-")
        if remote.version:
            # If the file has changed on the server, If-Range makes it send the whole
            # new file instead of a tail that does not fit the bytes already here.
            request.add_header("If-Range", remote.version)
    with (
        _reached(remote.url),
        urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer,
    ):
        if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
            _check_range(remote, received, answer.headers.get("Content-Range"))
        elif received:
            _write(file, None)
            received = 0
        # Some servers send more bytes than they announced, which are not of this file.
        while left := remote.size_bytes - received:
            piece = answer.read(min(_PIECE_BYTES, left))
            if not piece:
                return
            _write(file, piece)
            received += len(piece)
            progress(received)


def _check_range(remote: Remote, first: int, content_range: str | None) -> None:
    """Refuses an answer with other bytes of the file than were requested."""
    match = _CONTENT_RANGE.fullmatch(content_range or "")
    sizes = ("*", str(remote.size_bytes))
    if match is None or int(match[1]) != first or match[2] not in sizes:
        raise DataFormatError(
            f"{remote.url}: expected bytes {first:,} on of {remote.size_bytes:,}, got "
            f"Content-Range {content_range!r}; choose another --mirror"
        )


def _write(file: BinaryIO, piece: bytes | None) -> None:
    """Appends bytes to a file; None empties the file instead."""
    try:
        if piece is None:
            file.truncate(0)
        else:
            file.write(piece)
            file.flush()
    except OSError as error:
        raise OSError(
            f"{file.name}: could not be written ({error}); make room and repeat the "
            "command, it goes on where it stopped"
        ) from error


def _check_arrived(file: BinaryIO, partial: str, remote: Remote) -> None:
    """Refuses a complete file that is no npz or damaged, and empties it."""
    try:
        npz.list_members(partial)
    except DataFormatError as error:
        _write(file, None)
        raise DataFormatError(
            f"{remote.url}: expected an npz archive, got {remote.size_bytes:,} bytes "
            "of something else; choose another --mirror"
        ) from error
    try:
        npz.check_sums(partial)
    except DataFormatError as error:
        _write(file, None)
        raise ConnectionError(
            f"{remote.url}: bytes were damaged on their way ({error}); repeat the "
            "command, it fetches the file anew"
        ) from error


@contextlib.contextmanager
def _locked(partial: str) -> Iterator[BinaryIO]:
    """Opens a partial file and locks it against other downloads.

    Yields:
        The file, open for appending.

    Raises:
        DataFormatError: If another process holds the lock.
    """
    with open(partial, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The lock belongs to the inode and not to the name. If another download
            # renamed the file between `open` and `flock`, this lock protects nothing.
            exists = os.path.exists(partial)
            mine = exists and os.path.samestat(
                os.stat(partial), os.fstat(file.fileno())
            )
        except BlockingIOError:
            mine = False
        if not mine:
            raise DataFormatError(
                f"{partial}: another fetch of this file is under way; wait for it, or "
                "fetch into another folder"
            )
        yield file


def _forget_other_version(file: BinaryIO, partial: str, remote: Remote) -> None:
    """Empties a partial file if the server now has another version of the file."""
    note = partial + ".version"
    known = ""
    if os.path.exists(note):
        with open(note, errors="replace") as written:
            known = written.read()
    if known != remote.version or _size(partial) > remote.size_bytes:
        _write(file, None)
    with open(note, "w") as written:
        written.write(remote.version)


def _size(path: str) -> int:
    """Returns the size of a file in bytes; 0 if it does not exist."""
    return os.path.getsize(path) if os.path.exists(path) else 0


@contextlib.contextmanager
def _reached(url: str) -> Iterator[None]:
    """Turns urllib's errors into one line with advice.

    Raises:
        UsageError: If the server does not have the file.
        ConnectionError: If the server answers another error, or cannot be reached.
    """
    try:
        yield
    except urllib.error.HTTPError as error:
        what = f"{error.code} {error.reason}"
        if error.code == http.HTTPStatus.NOT_FOUND:
            raise UsageError(
                f"{url}: expected a file, the server has none ({what}); check the "
                "name, or choose another --mirror"
            ) from error
        raise ConnectionError(
            f"{url}: expected a file, the server answered {what}; repeat the command "
            "later, or choose another --mirror"
        ) from error
    except urllib.error.URLError as error:
        raise ConnectionError(
            f"{url}: cannot be reached ({error.reason}); connect this machine to the "
            "network, choose another --mirror, or fetch the file elsewhere and put it "
            "here"
        ) from error
