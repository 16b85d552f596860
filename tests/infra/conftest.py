"""Fixtures for the tests of launching."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fake_gcs import serve


@pytest.fixture(scope="module")
def gcs() -> Iterator[Any]:
    """A client of a Cloud Storage server on loopback, which ends with the module."""
    with serve() as client:
        yield client
