"""Finding and opening input files, on disk or gs://, and nothing of what they hold.

Cloud Storage is read through its own client, which retries, and which follows
``STORAGE_EMULATOR_HOST``.
"""

import fnmatch
import functools
import glob
import hashlib
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, TypeVar, cast

from pipeline.store.errors import MissingPackageError, UsageError
from pipeline.store.files import is_remote

VAL_SUFFIX = "-val"
# Of one request: a few of them a second fill a worker's link.
_REQUEST_BYTES = 4 << 20
# As many as Google's client keeps connections.
_AT_ONCE = 10
_WILDCARDS = "*?["

_Input = TypeVar("_Input")
_Found = TypeVar("_Found")


def find(pattern: str, suffixes: tuple[str, ...]) -> list[str]:
    """Finds the files that a path, folder or glob means.

    A path that is there is that file or folder, whatever its name looks like.

    Args:
        pattern: A local path or ``gs://bucket/path``: a file, a folder, or a glob
            (``*``, ``?`` and ``[...]``, within one folder or over several).
        suffixes: What the names of files in a folder have to end in.

    Returns:
        Files in order of their names, at least one.

    Raises:
        UsageError: If there is none.
    """
    if is_file(pattern):
        return [pattern]
    inside = f"{glob.escape(pattern.rstrip('/'))}/*"
    found = [path for path in _listed(inside) if path.endswith(suffixes)]
    what = f"a file, or a folder of {' or '.join(suffixes)} files"
    if not found and any(each in pattern for each in _WILDCARDS):
        found = [path for path in _listed(pattern) if path.endswith(suffixes)]
        what = f"at least one {' or '.join(suffixes)} file that matches"
    if not found:
        raise UsageError(f"{pattern}: expected {what}, found nothing; check the path")
    return sorted(found)


def split_of(paths: list[str]) -> dict[str, list[str]]:
    """Sorts files into splits by name; ``...-val`` beside a file belongs to it.

    Args:
        paths: What was asked for.

    Returns:
        ``train``, and ``val`` if there is any. Nothing but ``-val`` files is data to
        train on: they were asked for by name.
    """
    train = [path for path in paths if not _stem(path).endswith(VAL_SUFFIX)]
    if not train:
        return {"train": paths}
    val = {path for path in paths if _stem(path).endswith(VAL_SUFFIX)}
    beside = [val_path(path) for path in train]
    there = side_by_side(is_file, beside)
    val |= {path for path, is_there in zip(beside, there, strict=True) if is_there}
    return {"train": train, **({"val": sorted(val)} if val else {})}


def val_path(path: str) -> str:
    """Where OGBench keeps the validation split of a file.

    Example:
        >>> val_path("cube-single-play.npz")
        'cube-single-play-val.npz'
    """
    stem, suffix = os.path.splitext(path)
    return f"{stem}{VAL_SUFFIX}{suffix}"


def is_file(path: str) -> bool:
    """Tells whether there is a file of exactly this name."""
    return bool(_blob(path).exists()) if is_remote(path) else os.path.isfile(path)


def size(path: str) -> int:
    """Bytes of a file."""
    if not is_remote(path):
        return os.path.getsize(path)
    blob = _blob(path)
    blob.reload()
    return int(blob.size)


def open_file(path: str) -> BinaryIO:
    """Opens a file for reading at any place, in bounded memory.

    Args:
        path: Local path or ``gs://bucket/path``.

    Returns:
        A binary file that can be searched.

    Raises:
        UsageError: If there is no such file.
    """
    if is_remote(path):
        blob = _blob(path)
        # What is known of it from here on, its reader need not ask for.
        blob = blob.bucket.get_blob(blob.name)
        if blob is not None:
            return cast(BinaryIO, blob.open("rb", chunk_size=_REQUEST_BYTES))
    elif os.path.isfile(path):
        return open(path, "rb")
    raise UsageError(f"{path}: expected a file, found nothing; check the path")


def side_by_side(
    work: Callable[[_Input], _Found], inputs: Sequence[_Input]
) -> list[_Found]:
    """Does the same with each of many files, several at once.

    A bucket answers in tens of milliseconds, however many ask.

    Args:
        work: What to do, in any thread.
        inputs: With what.

    Returns:
        What it returns, in the order of the inputs.

    Raises:
        Exception: Of the first input, in their order, of which it raises one; those
            that were not begun then are left.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(work, inputs))


def digest(path: str) -> str:
    """Identifies a file's content: ``sha256:...`` of all its bytes."""
    with open_file(path) as stream:
        if isinstance(stream, io.BufferedReader):
            return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"
        found = hashlib.sha256()
        while piece := stream.read(_REQUEST_BYTES):
            found.update(piece)
    return f"sha256:{found.hexdigest()}"


def _stem(path: str) -> str:
    return os.path.splitext(path)[0]


def _listed(pattern: str) -> list[str]:
    """Files that match a glob."""
    if not is_remote(pattern):
        return [path for path in glob.glob(pattern) if os.path.isfile(path)]
    bucket, _, key = pattern.removeprefix("gs://").partition("/")
    prefix = key[: min((key.find(c) for c in _WILDCARDS if c in key), default=None)]
    names = [blob.name for blob in _client().list_blobs(bucket, prefix=prefix)]
    depth = key.count("/")
    return [
        f"gs://{bucket}/{name}"
        for name in names
        if name.count("/") == depth and fnmatch.fnmatchcase(name, key)
    ]


def _blob(path: str) -> Any:
    if not path.startswith("gs://"):
        raise UsageError(
            f"{path}: expected a local path or gs://bucket/path; other object stores "
            "are not supported"
        )
    bucket, _, key = path.removeprefix("gs://").partition("/")
    return _client().bucket(bucket).blob(key)


@functools.cache
def _client() -> Any:
    """One client a process: it holds the connections."""
    try:
        from google.cloud import storage
    except ImportError as error:
        raise MissingPackageError(
            f"reading gs:// needs google-cloud-storage ({error}); install it with "
            "`pip install 'vast-rl[cloud]'`"
        ) from error
    return storage.Client()
