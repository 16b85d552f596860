"""The processors that this process may use."""

import os


def count_usable_cores() -> int:
    """Counts the processors that this process may run on."""
    # The affinity mask holds what a container or `taskset` allows; the count of the
    # machine does not.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
