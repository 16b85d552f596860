"""The devices of this machine that each job of a sweep may use.

GPUs are found without JAX, which would take their memory from the jobs.
"""

import itertools
import os
import shutil
import subprocess

from pipeline.store.errors import UsageError
from trainer.cores import count_usable_cores

_VISIBLE = "CUDA_VISIBLE_DEVICES"
# Number of threads of XLA on CPUs.
_THREADS = "PJRT_NPROC"
# Flag of XLA for CPUs: a matrix product is computed by one thread.
_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
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
        Variables of each job. GPUs are shared out evenly; without GPUs, the processors
        are, by numbers of threads.

    Raises:
        UsageError: If there are fewer GPUs than jobs.
    """
    if jobs == 1:
        return [{}]
    if not gpus:
        threads = max(1, count_usable_cores() // jobs)
        return [make_cpu_environment(threads) for _ in range(jobs)]
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


def make_cpu_environment(threads: int) -> dict[str, str]:
    """Makes the environment variables with which XLA computes with a number of threads.

    Args:
        threads: Number of threads, at least 1.

    Returns:
        The variables. XLA's own flags that are set already are kept.
    """
    # Otherwise every job has a thread for each processor. They hand small products to
    # one another, and where the jobs together have more threads than processors, they
    # wait for each other and take them from each other.
    variables = {_THREADS: str(threads)}
    if threads == 1:
        flags = f"{os.environ.get('XLA_FLAGS', '')} {_ONE_THREAD}".strip()
        variables["XLA_FLAGS"] = flags
    return variables
