"""Reads, writes and commits small files of a store, on a local disk or on gs://.

TensorStore's key-value layer serves both places. Its writes are atomic, and a write can
be made conditional on the version of the file that was read before: by a lock and a
rename on disk, by a generation precondition on Cloud Storage. This module knows nothing
of what the files contain.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorstore as ts

from pipeline.store.errors import DataFormatError, UsageError

# A commit on a disk holds its lock for as long as it writes one file. A lock held for
# half a minute belongs to a process that was stopped, and waiting on would never end.
_COMMIT_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Content:
    """The content of a small file, and which version of the file it is.

    Attributes:
        data: The bytes of the file, or None if the file does not exist.
        generation: Opaque version, on which a later write can be made conditional; an
            absent file has a version too.
    """

    data: bytes | None
    generation: bytes


def is_remote(root: str) -> bool:
    """Tells whether a path names an object store (``gs://bucket/path``)."""
    return "://" in root


def kvstore_spec(root: str, path: str = "") -> dict[str, Any]:
    """Describes a folder of a store to TensorStore.

    Args:
        root: Local path or ``gs://bucket/path``.
        path: Folder relative to the root, with forward slashes.

    Returns:
        A TensorStore key-value store spec.

    Raises:
        UsageError: If the scheme is neither a local path nor ``gs://``, or the path is
            not in UTF-8.
    """
    folder = "/".join(part.strip("/") for part in (path,) if part)
    if root.startswith("gs://"):
        follow_emulator()
        bucket, _, prefix = root.removeprefix("gs://").partition("/")
        key = "/".join(part for part in (prefix.strip("/"), folder) if part)
        return {"driver": "gcs", "bucket": bucket, "path": f"{key}/" if key else ""}
    if is_remote(root):
        raise UsageError(
            f"{root}: expected a local path or gs://bucket/path, got the scheme "
            f"{root.partition('://')[0]!r}; copy the files to one of the two"
        )
    local = os.path.join(os.path.abspath(root), folder)
    # TensorStore writes a file under a temporary name that is the writer's own, then
    # renames it. Such writes need no lock, and without one no writer has to wait for a
    # process that was stopped while it held the lock. Only conditional writes lock,
    # see `_replace`.
    locking = {"mode": "none"}
    path = local.rstrip("/") + "/"
    # Python reads other bytes of a name as surrogates, which no encoding has.
    if any("\udc80" <= character <= "\udcff" for character in path):
        raise UsageError(
            f"{root!r}: expected a path in UTF-8, which TensorStore needs, got "
            f"{path!r}; rename the folder, or choose another one"
        )
    return {"driver": "file", "path": path, "file_io_locking": locking}


def follow_emulator() -> bool:
    """Points TensorStore at the emulator that ``STORAGE_EMULATOR_HOST`` names, if any.

    Google's own client libraries follow that variable, and TensorStore does not.
    TensorStore would send the user's credentials to the emulator, so it is given a
    made-up token instead.

    Returns:
        Whether the variable names an emulator.
    """
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if not emulator:
        return False
    url = emulator if "://" in emulator else f"http://{emulator}"
    os.environ["TENSORSTORE_GCS_HTTP_URL"] = url
    os.environ["GOOGLE_AUTH_TOKEN_FOR_TESTING"] = "emulator"
    return True


def open_folder(root: str, path: str = "") -> ts.KvStore:
    """Opens a folder of small files as a TensorStore key-value store."""
    return ts.KvStore.open(kvstore_spec(root, path)).result()


@contextmanager
def storage_errors(where: str) -> Iterator[None]:
    """Raises OSError where TensorStore reports a failing disk or bucket.

    TensorStore raises ValueError for every failure. In this project a ValueError is a
    bug, while an OSError is a fault of storage, after which a launcher may repeat the
    command.

    Args:
        where: Path that the block reads or writes, for the error.

    Raises:
        OSError: If the block raised a ValueError.
    """
    try:
        yield
    # A mistake of the user is a ValueError, too, and no fault of storage.
    except UsageError:
        raise
    except ValueError as error:
        advice = ""
        if "PERMISSION_DENIED" in str(error):
            advice = "; check the permissions, or work on a copy"
        raise OSError(f"{where}: {error}{advice}") from error


@contextmanager
def _open_for(root: str, name: str) -> Iterator[ts.KvStore]:
    """Opens a folder for one operation on a file, which errors then name."""
    folder = open_folder(root)
    with storage_errors(os.path.join(root, name)):
        yield folder


def read(root: str, name: str) -> Content:
    """Reads one small file.

    Args:
        root: Local path or ``gs://bucket/path``.
        name: File name relative to the root.

    Returns:
        The content and generation of the file, which need not exist.

    Raises:
        OSError: If the disk or the bucket fails.
    """
    with _open_for(root, name) as folder:
        result = folder.read(name).result()
    present = result.state == "value"
    return Content(result.value if present else None, result.stamp.generation)


def write(root: str, name: str, data: bytes) -> None:
    """Writes one small file atomically, replacing a file of the same name."""
    with _open_for(root, name) as folder:
        folder.write(name, data).result()


def write_local(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes one small file on disk atomically, so that half of it never has its name.

    Args:
        path: Local path; missing folders are made.
        data: Bytes of the file.

    Raises:
        OSError: If the disk is full or fails; the message names the file.
    """
    folder, name = os.path.split(os.path.abspath(path))
    write(folder, name, data)


def commit(root: str, name: str, data: bytes, *, replacing: Content) -> None:
    """Writes one small file only if it has not changed since it was read.

    Args:
        root: Local path or ``gs://bucket/path``.
        name: File name relative to the root.
        data: New bytes of the file.
        replacing: The result of ``read``. If several processes commit on the same
            result, exactly one of them succeeds.

    Raises:
        DataFormatError: If another process has written the file since, unless it wrote
            the same bytes.
        OSError: If the disk or the bucket fails.
    """
    if _replace(root, name, data, replacing):
        return
    # The same bytes are no conflict. TensorStore repeats a request whose answer was
    # lost although the write succeeded, and a second run of the same command writes an
    # equal manifest.
    if read(root, name).data == data:
        return
    raise make_changed_error(root, name)


def make_changed_error(root: str, name: str) -> DataFormatError:
    """Builds the error for a file that another process changed since it was read."""
    return DataFormatError(
        f"{os.path.join(root, name)}: expected the file as it was read, got one that "
        "another run has committed meanwhile; nothing was overwritten, look at what "
        "that run wrote, or choose another folder"
    )


def delete(root: str, name: str, *, replacing: Content | None = None) -> None:
    """Deletes one small file, which need not exist.

    Args:
        root: Local path or ``gs://bucket/path``.
        name: File name relative to the root.
        replacing: The result of ``read``: the file is kept if another process has
            written it since. None deletes the file in any case.
    """
    if replacing is not None:
        _replace(root, name, None, replacing)
        return
    with _open_for(root, name) as folder:
        folder.write(name, None).result()


def _replace(root: str, name: str, data: bytes | None, replacing: Content) -> bool:
    """Writes or deletes a file if its generation is unchanged; returns whether it was.

    Args:
        root: Local path or ``gs://bucket/path``.
        name: File name relative to the root.
        data: New bytes of the file; None deletes it.
        replacing: The result of ``read``.
    """
    spec = kvstore_spec(root)
    # Uploading a manifest of 100 MB may take minutes, and a bucket has no locks.
    timeout_s = None
    if spec["driver"] == "file":
        # A local file system has no conditional write: TensorStore compares and renames
        # while it holds a lock of the operating system.
        spec["file_io_locking"] = {"mode": "os"}
        timeout_s = _COMMIT_TIMEOUT_S
    where = os.path.join(root, name)
    with storage_errors(where):
        folder = ts.KvStore.open(spec).result()
        request = folder.write(name, data, if_equal=replacing.generation)
        try:
            written = request.result(timeout=timeout_s)
        except TimeoutError:
            raise OSError(
                f"{where}: expected to lock this file within {_COMMIT_TIMEOUT_S:g} s, "
                "but another process has held its lock for longer; end that process, "
                "then repeat the command"
            ) from None
    return bool(written.generation)


def copy(root: str, name: str, to_root: str, to_name: str) -> None:
    """Copies a file atomically, on one disk as a hard link where the disk has links.

    A hard link copies no bytes. Later commands replace or delete files and never write
    into one, so that a change of either name leaves the other as it is.

    Args:
        root: Local path or ``gs://bucket/path`` to copy from.
        name: File name relative to that root.
        to_root: Local path or ``gs://bucket/path`` to copy to.
        to_name: File name relative to that root; an existing file is replaced.

    Raises:
        DataFormatError: If there is no such file.
        OSError: If a disk or a bucket fails.
    """
    if not is_remote(root) and not is_remote(to_root):
        source = os.path.join(kvstore_spec(root)["path"], name)
        target = os.path.join(kvstore_spec(to_root)["path"], to_name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        try:
            os.link(os.path.realpath(source), target)
            return
        except FileExistsError:
            if os.path.samefile(source, target):
                return
        except OSError:
            # The target is on another disk, the disk has no hard links, or the source
            # is missing. Reading it below tells which.
            pass
    data = read(root, name).data
    if data is None:
        raise DataFormatError(
            f"{os.path.join(root, name)}: expected a file of the store, got none; run "
            "`python -m pipeline verify` on the store, then fetch or write it again"
        )
    write(to_root, to_name, data)


def list_names(root: str, path: str = "") -> list[str]:
    """Lists every file below a folder.

    Args:
        root: Local path or ``gs://bucket/path``.
        path: Folder relative to the root; it need not exist.

    Returns:
        Names relative to the folder, sorted, with forward slashes. Temporary files of
        killed writers are left out; ``walk_names`` has them.
    """
    with storage_errors(os.path.join(root, path)):
        listed = open_folder(root, path).list().result()
    return sorted(name.decode() for name in listed)


def walk_names(root: str, path: str = "") -> Iterable[str]:
    """Walks through every file below a folder, temporary files included.

    Args:
        root: Local path or ``gs://bucket/path``; it need not exist.
        path: Folder relative to the root.

    Returns:
        Names relative to that folder, with forward slashes.
    """
    if is_remote(root):
        return list_names(root, path)
    # TensorStore's listing of a disk hides the temporary files of killed writers, and
    # those are what callers look for in order to delete them.
    return _walk(kvstore_spec(root, path)["path"])


def find_foreign(root: str, is_ours: Callable[[str], bool]) -> str | None:
    """Searches a folder for a file that does not belong to this project.

    Args:
        root: Local path or ``gs://bucket/path``; it need not exist.
        is_ours: Tells by the name relative to the root whether a file is ours.

    Returns:
        The name of the first foreign file, or None.
    """
    return next((name for name in walk_names(root) if not is_ours(name)), None)


def delete_where(root: str, path: str, is_ours: Callable[[str], bool]) -> None:
    """Deletes files below a folder, and on a disk the folders that this leaves empty.

    Args:
        root: Local path or ``gs://bucket/path``.
        path: Folder relative to the root; it need not exist.
        is_ours: Tells by the name relative to that folder whether to delete a file.
            Every other file stays, and so do its folders.
    """
    with storage_errors(os.path.join(root, path)):
        if is_remote(root):
            folder = open_folder(root, path)
            names = [name for name in list_names(root, path) if is_ours(name)]
            for deletion in [folder.write(name, None) for name in names]:
                deletion.result()
            return
    top = kvstore_spec(root, path)["path"].rstrip("/")
    for name in [name for name in _walk(top) if is_ours(name)]:
        place = os.path.join(top, name)
        with contextlib.suppress(FileNotFoundError):
            os.remove(place)
        # Going up from the deleted file removes only folders that this deletion has
        # emptied; a folder that was empty before may be the user's.
        with contextlib.suppress(OSError):
            while place != top:
                place = os.path.dirname(place)
                os.rmdir(place)


def _walk(top: str) -> Iterator[str]:
    """Yields the names of all files below a local folder, without following links."""
    for folder, folders, names in os.walk(top):
        # os.walk descends in the order of this list, so that sorting it sorts the walk.
        folders.sort()
        # A link to a folder counts as a file: it may be a user's, and a folder that
        # holds one is not empty.
        links = [name for name in folders if os.path.islink(f"{folder}/{name}")]
        for name in sorted([*names, *links]):
            yield os.path.relpath(os.path.join(folder, name), top).replace(os.sep, "/")
