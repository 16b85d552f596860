"""Makes JAX strict, and gives it eight CPU devices, before anything imports it."""

import os
import tempfile

import hypothesis

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling is most of what the tests cost, and many compile the same program: once a
# session is enough. Child processes inherit it.
_CACHE = tempfile.TemporaryDirectory(prefix="vast-rl-jax-cache-")
os.environ["JAX_COMPILATION_CACHE_DIR"] = _CACHE.name
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import jax  # noqa: E402

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
