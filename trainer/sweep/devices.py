"""The devices of this machine that each job of a sweep may use.

GPUs are found without JAX, which would take their memory from the jobs.
"""

import itertools
import os
import shutil
import subprocess

from pipeline.store.errors import UsageError

_VISIBLE = "CUDA_VISIBLE_DEVICES"
# Flag of XLA for CPUs: a matrix product is computed by one thread.
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
_QUERY = ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader")
_QUERY_TIMEOUT_S = 30


def find_gpus() -> list[str]:
    """Lists the GPUs that JAX would see, as CUDA names them.

    Returns:
        Numbers or ids of the GPUs; empty on a machine without GPUs, and if
        ``JAX_PLATFORMS`` names another kind of device first.
    """
    platforms = os.environ.get("JAX_PLATFORMS") or "cuda"
    if platforms.split(",")[0] not in ("cuda", "gpu"):
        return []
    if _VISIBLE in os.environ:
        return [name for name in os.environ[_VISIBLE].split(",") if name.strip()]
    if shutil.which(_QUERY[0]) is None:
        return []
    try:
        listed = subprocess.run(
            _QUERY, capture_output=True, text=True, check=True, timeout=_QUERY_TIMEOUT_S
        )
    # The driver may be installed on a machine without a GPU; nvidia-smi then fails.
    except (OSError, subprocess.SubprocessError):
        return []
    return listed.stdout.split()


def make_environments(jobs: int, gpus: list[str]) -> list[dict[str, str]]:
    """Makes the environment variables with which each job uses its own devices.

    Args:
        jobs: Number of jobs that run side by side.
        gpus: GPUs of this machine.

    Returns:
        Variables of each job. GPUs are shared out evenly; without GPUs, XLA computes
        each of several jobs with one thread.

    Raises:
        UsageError: If there are fewer GPUs than jobs.
    """
    if jobs == 1:
        return [{}]
    if not gpus:
        # Products of narrow networks are too small to be split: two threads are hardly
        # faster than one, and two jobs with one thread each do twice the work.
        flags = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}".strip()
        return [{"XLA_FLAGS": flags} for _ in range(jobs)]
    # JAX reserves most of a GPU's memory, so two jobs cannot share one.
    if jobs > len(gpus):
        raise UsageError(
            f"--jobs: expected at most {len(gpus)}, one for each GPU of this machine "
            f"({', '.join(gpus)}), got {jobs}; or set JAX_PLATFORMS=cpu"
        )
    ends = [round(len(gpus) * job / jobs) for job in range(jobs + 1)]
    return [
        {_VISIBLE: ",".join(gpus[start:end])} for start, end in itertools.pairwise(ends)
    ]
