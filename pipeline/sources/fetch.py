"""Downloading OGBench's published files: resumable, and checked before they count.

A file being fetched is ``NAME.partial``; it gets its own name once it has the size
the server announced and its zip directory can be read.
"""

import contextlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pipeline.sources import npz
from pipeline.sources.options import MIRROR
from pipeline.store.errors import DataFormatError, UsageError

PARTIAL = ".partial"
_PIECE_BYTES = 1 << 20
_TIMEOUT_S = 30.0
_ATTEMPTS = 5


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
            where it stopped.
        DataFormatError: If what arrived is not what was announced, or no npz.
    """
    if os.path.exists(path):
        _check(path, path, remote)
        progress(remote.size_bytes)
        return False
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    partial = path + PARTIAL
    _forget_other_version(partial, remote)
    fruitless = 0
    while (there := _size(partial)) < remote.size_bytes:
        try:
            _receive(remote, partial, there, progress)
            stalled: Exception | None = None
        except (ConnectionError, http.client.HTTPException, TimeoutError) as error:
            stalled = error
        fruitless = fruitless + 1 if _size(partial) == there else 0
        if fruitless == _ATTEMPTS:
            raise ConnectionError(
                f"{remote.url}: expected {remote.size_bytes:,} bytes, got {there:,} "
                f"and then nothing in {_ATTEMPTS} attempts ({stalled}); repeat the "
                "command, it goes on where it stopped"
            )
        if stalled is not None:
            wait(min(30.0, 2.0**fruitless))
    _check(partial, path, remote)
    os.replace(partial, path)
    with contextlib.suppress(FileNotFoundError):
        os.remove(partial + ".version")
    progress(remote.size_bytes)
    return True


def _receive(
    remote: Remote, partial: str, there: int, progress: Callable[[int], None]
) -> None:
    """Appends what a server sends from a byte on, until it stops."""
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
        resumed = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        with open(partial, "ab" if resumed else "wb") as file:
            while piece := answer.read(_PIECE_BYTES):
                file.write(piece)
                progress(file.tell())


def _check(found: str, path: str, remote: Remote) -> None:
    """Refuses a file that is not what the server announced."""
    if _size(found) != remote.size_bytes:
        raise DataFormatError(
            f"{found}: expected {remote.size_bytes:,} bytes, as {remote.url} "
            f"announces, got {_size(found):,}; delete it and repeat the command"
        )
    try:
        npz.member_names(found)
    except DataFormatError as error:
        raise DataFormatError(
            f"{remote.url}: expected an npz archive, got {remote.size_bytes:,} bytes "
            f"of something else; delete {found} and choose another --mirror"
        ) from error


def _forget_other_version(partial: str, remote: Remote) -> None:
    """Drops a partial file of which the server has another version by now."""
    note = partial + ".version"
    known = ""
    if os.path.exists(note):
        with open(note) as file:
            known = file.read()
    if known != remote.version or _size(partial) > remote.size_bytes:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)
    with open(note, "w") as file:
        file.write(remote.version)


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
