"""Makes JAX strict, and gives it eight CPU devices, before anything imports it."""

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
# Many tests compile the same program: each is compiled once for all workers, for child
# processes, and for the next time the tests are run.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".cache" / "jax")
)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax

# The same examples every time, and none is wrong for being slow: machines are busy.
# Others are tried with `pytest --hypothesis-profile default`.
hypothesis.settings.register_profile(
    "repeatable",
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("repeatable")

# A [B, 1] minus a [B] is the classic critic bug: an error here, not a silent [B, B].
jax.config.update("jax_numpy_rank_promotion", "raise")
