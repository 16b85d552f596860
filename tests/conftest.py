"""Makes JAX strict, and gives it eight CPU devices, before anything imports it."""

import os
import tempfile

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

# A [B, 1] minus a [B] is the classic critic bug: an error here, not a silent [B, B].
jax.config.update("jax_numpy_rank_promotion", "raise")
