"""Small files of a store, on disk or gs://, read and committed whole.

TensorStore's key-value layer serves both: its writes are atomic, and a write can be
made conditional on what was there before, with a lock and a rename on disk and with
a generation precondition on Cloud Storage. Knows nothing of what the files say.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorstore as ts

from pipeline.store.errors import DataFormatError, UsageError

# As long as another process may take to commit a file that this one commits too.
_COMMIT_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Content:
    """A small file as it was read.

    Attributes:
        data: Its bytes, or None where there is no such file.
        generation: Opaque version to make a later write conditional on; it is
            meaningful for an absent file too.
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
        path: Folder within it, with forward slashes.

    Returns:
        A TensorStore key-value store spec.

    Raises:
        UsageError: If the scheme is neither a local path nor ``gs://``.
    """
    folder = "/".join(part.strip("/") for part in (path,) if part)
    if root.startswith("gs://"):
        follow_emulator()
        bucket, _, prefix = root.removeprefix("gs://").partition("/")
        key = "/".join(part for part in (prefix.strip("/"), folder) if part)
        return {"driver": "gcs", "bucket": bucket, "path": f"{key}/" if key else ""}
    if is_remote(root):
        raise UsageError(
            f"{root}: expected a local path or gs://bucket/path; other object stores "
            "are not supported"
        )
    local = os.path.join(os.path.abspath(root), folder)
    # A file is written beside its place, under a name of the writer's own, and renamed:
    # no lock is needed for that, and nobody waits for a process that is stopped.
    locking = {"mode": "none"}
    path = local.rstrip("/") + "/"
    return {"driver": "file", "path": path, "file_io_locking": locking}


def follow_emulator() -> bool:
    """Points TensorStore at the emulator that Google's own clients are pointed at.

    ``STORAGE_EMULATOR_HOST`` is the one setting for all of them. TensorStore sends its
    credentials to whatever it is pointed at, so it is given none.

    Returns:
        Whether there is an emulator.
    """
    emulator = os.environ.get("STORAGE_EMULATOR_HOST")
    if not emulator:
        return False
    url = emulator if "://" in emulator else f"http://{emulator}"
    os.environ["TENSORSTORE_GCS_HTTP_URL"] = url
    os.environ["GOOGLE_AUTH_TOKEN_FOR_TESTING"] = "emulator"
    return True


def open_folder(root: str, path: str = "") -> ts.KvStore:
    """Opens a folder of small files."""
    return ts.KvStore.open(kvstore_spec(root, path)).result()


@contextmanager
def storage_errors(where: str) -> Iterator[None]:
    """Raises as OSError what TensorStore reports of a disk or a bucket.

    It has ValueError for all of it, which says of arguments elsewhere that they are
    wrong: nobody would try again.

    Args:
        where: What was read or written, for the error.
    """
    try:
        yield
    except ValueError as error:
        raise OSError(f"{where}: {error}") from error


@contextmanager
def _holding(root: str, name: str) -> Iterator[ts.KvStore]:
    """Opens the folder of a small file, for one thing to be done with that file."""
    folder = open_folder(root)
    with storage_errors(os.path.join(root, name)):
        yield folder


def read(root: str, name: str) -> Content:
    """Reads one small file.

    Args:
        root: Local path or ``gs://bucket/path``.
        name: File within it.

    Returns:
        Its bytes, or None as bytes where it does not exist, and its generation.
    """
    with _holding(root, name) as folder:
        result = folder.read(name).result()
    present = result.state == "value"
    return Content(result.value if present else None, result.stamp.generation)


def write(root: str, name: str, data: bytes) -> None:
    """Writes one small file atomically, replacing what was there."""
    with _holding(root, name) as folder:
        folder.write(name, data).result()


def commit(root: str, name: str, data: bytes, *, replacing: Content) -> None:
    """Writes one small file only if it is still what it was when it was read.

    Args:
        root: Local path or ``gs://bucket/path``.
        name: File within it.
        data: New content.
        replacing: What ``read`` returned. Of two writers with the same, one wins.

    Raises:
        DataFormatError: If somebody else has written it meanwhile.
    """
    if _replace(root, name, data, replacing):
        return
    if read(root, name).data == data:
        return  # A retry of a commit that did go through, or an equal twin.
    raise changed_meanwhile(root, name)


def changed_meanwhile(root: str, name: str) -> DataFormatError:
    """The error of a file that another process has written since it was read."""
    return DataFormatError(
        f"{os.path.join(root, name)}: another run has committed this file meanwhile; "
        "nothing was overwritten. Look at what it wrote, or choose another folder"
    )


def delete(root: str, name: str, *, replacing: Content | None = None) -> None:
    """Deletes one small file; one that does not exist is no error.

    Args:
        root: Local path or ``gs://bucket/path``.
        name: File within it.
        replacing: What ``read`` returned, to leave alone what somebody else has
            written meanwhile.
    """
    if replacing is not None:
        _replace(root, name, None, replacing)
        return
    with _holding(root, name) as folder:
        folder.write(name, None).result()


def _replace(root: str, name: str, data: bytes | None, replacing: Content) -> bool:
    """Writes or deletes a file if it is what it was; tells whether it was."""
    spec = kvstore_spec(root)
    if spec["driver"] == "file":
        # What was read is compared and replaced under a lock of the system's.
        spec["file_io_locking"] = {"mode": "os"}
    where = os.path.join(root, name)
    with storage_errors(where):
        folder = ts.KvStore.open(spec).result()
        request = folder.write(name, data, if_equal=replacing.generation)
        try:
            written = request.result(timeout=_COMMIT_TIMEOUT_S)
        except TimeoutError:
            raise OSError(
                f"{where}: another process has held this file for "
                f"{_COMMIT_TIMEOUT_S:g} s; end that process, then repeat the command"
            ) from None
    return bool(written.generation)


def copy(root: str, name: str, to_root: str, to_name: str) -> None:
    """Gives another place the bytes of a file, atomically.

    On one disk that is a second name for them, where the disk can give one: nothing is
    copied, and whoever replaces or deletes one of the files leaves the other as it is.

    Args:
        root: Local path or ``gs://bucket/path``.
        name: File within it.
        to_root: Where to, likewise.
        to_name: File within that; what is there is replaced.

    Raises:
        DataFormatError: If there is no such file.
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
        except OSError:  # Another disk, or one that cannot; or there is no such file.
            pass
    found = read(root, name).data
    if found is None:
        raise DataFormatError(
            f"{os.path.join(root, name)}: is missing; run `python -m pipeline verify` "
            "on the store, then fetch or write it again"
        )
    write(to_root, to_name, found)


def list_names(root: str, path: str = "") -> list[str]:
    """Lists every file below a folder, relative to it, in order.

    Args:
        root: Local path or ``gs://bucket/path``.
        path: Folder within it; one that does not exist holds no files.

    Returns:
        Names with forward slashes.
    """
    with storage_errors(os.path.join(root, path)):
        listed = open_folder(root, path).list().result()
    return sorted(name.decode() for name in listed)


def walk_names(root: str, path: str = "") -> Iterable[str]:
    """Goes through every file below a folder, with what TensorStore left behind.

    Args:
        root: Local path or ``gs://bucket/path``; it need not exist.
        path: Folder within it.

    Returns:
        Names relative to that folder, with forward slashes.
    """
    if is_remote(root):
        return list_names(root, path)
    # TensorStore's own listing leaves out what a killed writer did not finish.
    return _walk(kvstore_spec(root, path)["path"])


def find_foreign(root: str, is_ours: Callable[[str], bool]) -> str | None:
    """Looks for a file that is not ours in a folder.

    Args:
        root: Local path or ``gs://bucket/path``; it need not exist.
        is_ours: Whether a file is ours, by its name below the root.

    Returns:
        The name of one that is not; None if there is none.
    """
    return next((name for name in walk_names(root) if not is_ours(name)), None)


def delete_where(root: str, path: str, is_ours: Callable[[str], bool]) -> None:
    """Deletes files below a folder, and of a disk the folders that are then empty.

    Args:
        root: Local path or ``gs://bucket/path``.
        path: Folder within it; one that does not exist is no error.
        is_ours: Whether to delete a file, by its name below that folder. Everything
            else stays, and so do the folders that it is in.
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
        # Those that this has emptied and no other.
        with contextlib.suppress(OSError):
            while place != top:
                place = os.path.dirname(place)
                os.rmdir(place)


def _walk(top: str) -> Iterator[str]:
    """Names of all files below a folder of this machine, links not followed."""
    for folder, folders, names in os.walk(top):
        folders.sort()
        links = [each for each in folders if os.path.islink(f"{folder}/{each}")]
        for name in sorted([*names, *links]):
            yield os.path.relpath(os.path.join(folder, name), top).replace(os.sep, "/")
