"""Lack of memory is one line with advice, and other errors of devices pass."""

import jax
import numpy as np
import pytest

from trainer.errors import EXIT_FAILED, OutOfMemoryError
from trainer.training.memory import explain_lack_of_memory

OOM = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.\nBFC: ..."


def test_a_device_without_memory_is_one_line() -> None:
    with (
        pytest.raises(OutOfMemoryError, match=r"memory of a device.* 9 bytes"),
        explain_lack_of_memory("run"),
    ):
        raise jax.errors.JaxRuntimeError(OOM)
    assert OutOfMemoryError.exit_code == EXIT_FAILED


def test_a_machine_without_memory_is_one_line() -> None:
    with (
        pytest.raises(
            OutOfMemoryError, match=r"this machine .*memory_limit_bytes"
        ) as e,
        explain_lack_of_memory("run"),
    ):
        np.empty(1 << 60, np.uint8)
    assert "Unable to allocate" in str(e.value)
    assert "\n" not in str(e.value)


def test_other_errors_of_devices_pass() -> None:
    with pytest.raises(jax.errors.JaxRuntimeError), explain_lack_of_memory("run"):
        raise jax.errors.JaxRuntimeError("INTERNAL: a bug, not RESOURCE\n_EXHAUSTED")
