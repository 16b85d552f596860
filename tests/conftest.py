"""Makes JAX strict and gives it eight CPU devices, before a test imports JAX."""

import os
from pathlib import Path

import hypothesis

from tests.optimised import QUICK

os.environ["XLA_FLAGS"] = " ".join(
    (
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        QUICK,
    )
).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Many tests compile the same program. With a cache, each program is compiled only once
# for all workers, child processes and later runs of the tests.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".cache" / "jax")
)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax

# Hypothesis tries the same examples every time, without deadlines, because machines may
# be busy. `pytest --hypothesis-profile default` tries other examples.
hypothesis.settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("repeatable")

# [B, 1] minus [B] is a classic bug of critics: it must raise, not broadcast to [B, B].
jax.config.update("jax_numpy_rank_promotion", "raise")
