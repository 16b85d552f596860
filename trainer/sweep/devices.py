"""What of this machine each job of a sweep may use, found without touching it."""

import itertools
import os
import shutil
import subprocess

from pipeline.store.errors import UsageError

_VISIBLE = "CUDA_VISIBLE_DEVICES"
# For XLA: products on CPUs are not split among threads.
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"
_QUERY = ("nvidia-smi", "--query-gpu=index", "--format=csv,noheader")
_QUERY_TIMEOUT_S = 30


def find_gpus() -> list[str]:
    """Lists the GPUs that JAX would see, as CUDA names them.

    Returns:
        Numbers or ids; none on machines without, or where JAX is told to use others.
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
    except (OSError, subprocess.SubprocessError):  # A driver without a device.
        return []
    return listed.stdout.split()


def make_environments(jobs: int, gpus: list[str]) -> list[dict[str, str]]:
    """What each of several jobs is told to use.

    Args:
        jobs: That run side by side.
        gpus: Of this machine.

    Returns:
        Environment variables of each job. With GPUs these are shared out evenly; on
        CPUs XLA takes one thread in each job, if there are several: the products of a
        narrow network are too small to be split, so two threads are hardly faster than
        one, and processes side by side are.

    Raises:
        UsageError: If there are fewer GPUs than jobs: a job takes a GPU's memory whole.
    """
    if jobs == 1:
        return [{}]
    if not gpus:
        flags = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}".strip()
        return [{"XLA_FLAGS": flags} for _ in range(jobs)]
    if jobs > len(gpus):
        raise UsageError(
            f"--jobs: expected at most {len(gpus)}, one for each GPU of this machine "
            f"({', '.join(gpus)}), got {jobs}; or set JAX_PLATFORMS=cpu"
        )
    ends = [round(len(gpus) * job / jobs) for job in range(jobs + 1)]
    return [
        {_VISIBLE: ",".join(gpus[start:end])} for start, end in itertools.pairwise(ends)
    ]
