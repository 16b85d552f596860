"""Finds and opens input files on a local disk or gs://.

This module knows nothing of what the files contain. Cloud Storage is read through
Google's own client, which retries failed requests and follows
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
# Bytes of one read request to a bucket: a few such requests a second saturate a
# worker's network link, and smaller ones would pay the latency more often.
_REQUEST_BYTES = 4 << 20
# Google's client keeps at most 10 connections; more threads would wait for one.
_AT_ONCE = 10
_WILDCARDS = "*?["
# Names in a folder that an error lists at most.
_SHOWN = 5

_Input = TypeVar("_Input")
_Result = TypeVar("_Result")


def find(
    pattern: str, suffixes: tuple[str, ...], *, others: tuple[str, ...] = ()
) -> list[str]:
    """Finds the files that a path, folder or glob names.

    A pattern that exists as a file or folder is never read as a glob: real names may
    contain brackets.

    Args:
        pattern: A local path or ``gs://bucket/path``: a file, a folder, or a glob
            (``*``, ``?`` and ``[...]``, within one folder or over several).
        suffixes: Endings of the file names to take from a folder or glob.
        others: Files by which the caller knows other folders, for the error.

    Returns:
        Paths in order of their names, at least one.

    Raises:
        UsageError: If no file is found.
    """
    if is_file(pattern):
        return [pattern]
    inside = f"{glob.escape(pattern.rstrip('/'))}/*"
    paths = [path for path in _list_files(inside) if path.endswith(suffixes)]
    what = f"a file, or a folder of {' or '.join(suffixes)} files"
    advice = "check the path"
    if others:
        what += f" or with {' or '.join(others)}"
        advice += ", or see `python -m pipeline inputs` for the kinds"
    if not paths and any(wildcard in pattern for wildcard in _WILDCARDS):
        paths = [path for path in _list_files(pattern) if path.endswith(suffixes)]
        what = f"at least one {' or '.join(suffixes)} file that matches"
    if not paths:
        raise UsageError(
            f"{pattern}: expected {what}, found {describe_path(pattern)}; {advice}"
        )
    return sorted(paths)


def group_by_split(paths: list[str]) -> dict[str, list[str]]:
    """Sorts files into splits by name: ``X-val`` is the validation split of ``X``.

    Args:
        paths: Files that the user named; ``-val`` files beside them are added.

    Returns:
        Files of ``train``, and of ``val`` if there are any. If the user named ``-val``
        files alone, they are data to train on.
    """
    train = [path for path in paths if not _stem(path).endswith(VAL_SUFFIX)]
    if not train:
        return {"train": paths}
    val = {path for path in paths if _stem(path).endswith(VAL_SUFFIX)}
    beside = [val_path(path) for path in train]
    exist = map_concurrently(is_file, beside)
    val |= {path for path, exists in zip(beside, exist, strict=True) if exists}
    return {"train": train, **({"val": sorted(val)} if val else {})}


def val_path(path: str) -> str:
    """Returns the path at which OGBench keeps the validation split of a file.

    Example:
        >>> val_path("cube-single-play.npz")
        'cube-single-play-val.npz'
    """
    stem, suffix = os.path.splitext(path)
    return f"{stem}{VAL_SUFFIX}{suffix}"


def is_file(path: str) -> bool:
    """Tells whether a file of exactly this name exists."""
    return bool(_blob(path).exists()) if is_remote(path) else os.path.isfile(path)


def size(path: str) -> int:
    """Returns the size of a file in bytes."""
    if not is_remote(path):
        return os.path.getsize(path)
    blob = _blob(path)
    blob.reload()
    return int(blob.size)


def open_file(path: str) -> BinaryIO:
    """Opens a file for reading at any position, in bounded memory.

    Args:
        path: Local path or ``gs://bucket/path``.

    Returns:
        A seekable binary file.

    Raises:
        UsageError: If there is no such file.
    """
    if is_remote(path):
        blob = _blob(path)
        # get_blob fetches the metadata once. Without it the reader would ask for the
        # size again, one more round trip for each file.
        blob = blob.bucket.get_blob(blob.name)
        if blob is not None:
            return cast(BinaryIO, blob.open("rb", chunk_size=_REQUEST_BYTES))
    elif os.path.isfile(path):
        return open(path, "rb")
    raise UsageError(f"{path}: expected a file, found nothing; check the path")


def describe_path(path: str) -> str:
    """Describes what is at a path where something else was expected, for errors.

    Args:
        path: The path; those in a bucket are not looked at.

    Returns:
        Text to follow "found".
    """
    if is_remote(path) or not os.path.isdir(path):
        return "nothing"
    names = sorted(os.listdir(path))
    shown = ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")
    return f"a folder of {shown}" if names else "an empty folder"


def map_concurrently(
    work: Callable[[_Input], _Result], inputs: Sequence[_Input]
) -> list[_Result]:
    """Calls a function for each of many files, several at once in threads.

    A bucket takes tens of milliseconds to answer a request, however many requests are
    open. At 50 ms a request, planning 200 files took 15 s this way, and 20 files one
    after another took 33 s (tests/benchmarks).

    Args:
        work: Function of one input; it must be safe to call in several threads.
        inputs: Inputs of the function, a call for each.

    Returns:
        The results, in the order of the inputs.

    Raises:
        Exception: The exception of the first input, in their order, for which ``work``
            raises one. Inputs that were not begun by then are skipped.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(work, inputs))


def digest(path: str) -> str:
    """Computes ``sha256:...`` of all bytes of a file."""
    with open_file(path) as stream:
        # file_digest needs a real file; readers of a bucket do not fulfil its protocol.
        if isinstance(stream, io.BufferedReader):
            return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"
        sha256 = hashlib.sha256()
        while piece := stream.read(_REQUEST_BYTES):
            sha256.update(piece)
    return f"sha256:{sha256.hexdigest()}"


def _stem(path: str) -> str:
    """Returns a path without its suffix."""
    return os.path.splitext(path)[0]


def _list_files(pattern: str) -> list[str]:
    """Lists the files that match a glob."""
    if not is_remote(pattern):
        return [path for path in glob.glob(pattern) if os.path.isfile(path)]
    bucket, _, key = pattern.removeprefix("gs://").partition("/")
    prefix = key[: min((key.find(c) for c in _WILDCARDS if c in key), default=None)]
    names = [blob.name for blob in _client().list_blobs(bucket, prefix=prefix)]
    # fnmatch lets `*` match slashes, and a glob on disk does not: compare the depth.
    depth = key.count("/")
    return [
        f"gs://{bucket}/{name}"
        for name in names
        if name.count("/") == depth and fnmatch.fnmatchcase(name, key)
    ]


def _blob(path: str) -> Any:
    """Returns the client's handle of an object in a bucket, without any request."""
    if not path.startswith("gs://"):
        raise UsageError(
            f"{path}: expected a local path or gs://bucket/path, got the scheme "
            f"{path.partition('://')[0]!r}; copy the files to one of the two"
        )
    bucket, _, key = path.removeprefix("gs://").partition("/")
    return _client().bucket(bucket).blob(key)


@functools.cache
def _client() -> Any:
    """Creates the client, once per process because it holds the connections."""
    try:
        from google.cloud import storage
    except ImportError as error:
        raise MissingPackageError(
            f"reading gs:// needs google-cloud-storage ({error}); install it with "
            "`pip install 'vast-rl[cloud]'`"
        ) from error
    return storage.Client()
