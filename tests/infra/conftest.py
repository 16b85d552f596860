"""What the tests of launching share."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fake_gcs import serve


@pytest.fixture(scope="module")
def gcs() -> Iterator[Any]:
    """A client of a Cloud Storage server on loopback; no test after it sees it."""
    with serve() as client:
        yield client
