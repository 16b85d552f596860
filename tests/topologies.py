"""What tests with devices that are not there need."""

import pytest

from trainer.costs.topologies import find_libtpu

needs_libtpu = pytest.mark.skipif(
    find_libtpu() is None,
    reason="the compiler for TPUs, libtpu, is not installed: `make libtpu`",
)
