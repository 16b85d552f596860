"""A mark for tests that compile for TPUs, which need not be present."""

import pytest

from trainer.costs.topologies import find_libtpu

needs_libtpu = pytest.mark.skipif(
    find_libtpu() is None,
    reason="the compiler for TPUs, libtpu, is not installed: `make libtpu`",
)
