"""Downloading OGBench's published files: resumable, and checked before they count.

A file being fetched is ``NAME.partial``, which is locked meanwhile; it gets its own
name once it has the size the server announced and every member its checksum. A file
that is damaged is fetched again, and replaced when that is done.
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
        url: Where it is.
        size_bytes: As the server announces it.
        version: Its entity tag or date, to notice that it changed; may be empty.
    """

    url: str
    size_bytes: int
    version: str


def look_up(url: str) -> Remote:
    """Asks a server for the size of a file.

    Args:
        url: Where the file is.

    Returns:
        What the server says of it.

    Raises:
        UsageError: If that is no address, or the server has no such file.
        ConnectionError: If the server cannot be reached.
        DataFormatError: If it does not announce the size.
    """
    if "://" not in url:
        raise UsageError(f"--mirror: expected an address such as {MIRROR}, got {url}")
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
    """Downloads one file, or what is missing of it.

    Args:
        remote: From `look_up`.
        path: Where to.
        progress: Called with the bytes that are there so far.
        wait: Sleeps between attempts.

    Returns:
        False if the whole file was there already.

    Raises:
        ConnectionError: If the connection breaks again and again; repeating goes on
            where it stopped. If what arrived is damaged; repeating fetches it anew.
        DataFormatError: If what arrived is not what was announced, or no npz; if
            another fetch is under way.
        OSError: If there is no room for it.
    """
    if os.path.exists(path):
        if _size(path) != remote.size_bytes:
            raise DataFormatError(
                f"{path}: expected {remote.size_bytes:,} bytes, as {remote.url} "
                f"announces, got {_size(path):,}; delete it and repeat the command"
            )
        # As large as it should be, and damaged: what reads it says to fetch it again.
        with contextlib.suppress(DataFormatError):
            npz.check_sums(path)
            progress(remote.size_bytes)
            return False
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    partial = path + PARTIAL
    with _locked(partial) as file:
        _forget_other_version(file, partial, remote)
        fruitless = 0
        while (there := _size(partial)) < remote.size_bytes:
            try:
                _receive(remote, file, there, progress)
                stalled: Exception | None = None
            except (ConnectionError, http.client.HTTPException, TimeoutError) as error:
                stalled = error
            fruitless = fruitless + 1 if _size(partial) <= there else 0
            if fruitless == _ATTEMPTS:
                raise ConnectionError(
                    f"{remote.url}: expected {remote.size_bytes:,} bytes, got "
                    f"{there:,} and then nothing in {_ATTEMPTS} attempts ({stalled}); "
                    "repeat the command, it goes on where it stopped"
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
    remote: Remote, file: BinaryIO, there: int, progress: Callable[[int], None]
) -> None:
    """Appends what a server sends from a byte on, until it stops or that is all."""
    request = urllib.request.Request(remote.url)
    if there:
        request.add_header("Range", f"bytes={there}-")
        if remote.version:
            # A file that has changed comes whole, not as a tail of another one.
            request.add_header("If-Range", remote.version)
    with (
        _reached(remote.url),
        urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer,
    ):
        if answer.status == http.HTTPStatus.PARTIAL_CONTENT:
            _check_range(remote, there, answer.headers.get("Content-Range"))
        elif there:
            _write(file, None)
            there = 0
        # Some servers send more than they said: it is none of this file.
        while left := remote.size_bytes - there:
            piece = answer.read(min(_PIECE_BYTES, left))
            if not piece:
                return
            _write(file, piece)
            there += len(piece)
            progress(there)


def _check_range(remote: Remote, there: int, said: str | None) -> None:
    """Refuses another piece of the file than was asked for."""
    found = _CONTENT_RANGE.fullmatch(said or "")
    sizes = ("*", str(remote.size_bytes))
    if found is None or int(found[1]) != there or found[2] not in sizes:
        raise DataFormatError(
            f"{remote.url}: expected bytes {there:,} on of {remote.size_bytes:,}, got "
            f"Content-Range {said!r}; choose another --mirror"
        )


def _write(file: BinaryIO, piece: bytes | None) -> None:
    """Appends bytes, or with None begins anew."""
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
    """Refuses a file that is not what the server announced, and begins anew."""
    try:
        npz.member_names(partial)
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
            f"{remote.url}: bytes were damaged on their way ({error})"
        ) from error


@contextlib.contextmanager
def _locked(partial: str) -> Iterator[BinaryIO]:
    """Opens a partial file for this fetch alone.

    The lock is of the file and not of its name: whoever waited for one that has been
    given its own name meanwhile holds nothing.
    """
    with open(partial, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            there = os.path.exists(partial)
            mine = there and os.path.samestat(os.stat(partial), os.fstat(file.fileno()))
        except BlockingIOError:
            mine = False
        if not mine:
            raise DataFormatError(
                f"{partial}: another fetch of this file is under way; wait for it, or "
                "fetch into another folder"
            )
        yield file


def _forget_other_version(file: BinaryIO, partial: str, remote: Remote) -> None:
    """Drops a partial file of which the server has another version by now."""
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
    return os.path.getsize(path) if os.path.exists(path) else 0


@contextlib.contextmanager
def _reached(url: str) -> Iterator[None]:
    """Says in one line what a server answered, or that there was none."""
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
