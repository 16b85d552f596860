"""Makes task files for SkyPilot, which finds machines on any cloud.

SkyPilot starts a managed job again if its machines are taken away, or if it ends with
exit code 75, which says that it was told to stop and has saved. Neither counts as an
error.
"""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import LaunchError
from infra.estimates.machines import Slice
from infra.submission import ask, format_command, require_program
from infra.targets.jobset import COORDINATOR_PORT, SAVED

# Without --detach-run, the command streams the job's log until the job has ended, and a
# sweep would launch its next cell only then.
LAUNCH = ("sky", "jobs", "launch", "--yes", "--detach-run", "{}")
_QUEUE = ("sky", "jobs", "queue", "--skip-finished", "--all", "--output", "json")
# SkyPilot's error when its controller of jobs does not run, as before the first job.
_NO_JOBS = "No in-progress managed jobs"
# Path that SkyPilot copies the configuration to.
CONFIG = "/tmp/vast-rl/run.toml"

# Machines run SkyPilot's own images and install this checkout by its lock file. Our
# images cannot be used: SkyPilot only accepts containers whose user may become root.
_INSTALL = """\
uv venv --quiet --python 3.11 ~/vast-rl
source ~/vast-rl/bin/activate
uv pip install --quiet --constraint infra/constraints.txt \\
  --constraint infra/containers/accelerators.txt \\
  '.[trainer,eval,report]' gcsfs google-cloud-storage{extra}
"""
_ACTIVATE = "source ~/vast-rl/bin/activate\n"
# Each node runs one process, and node 0 is the first of the list. The task's id serves
# as the token of the run: it is the same on all nodes, and contains a time in
# microseconds, which strangers cannot know.
_PROCESSES = f"""\
VAST_COORDINATOR_ADDRESS="$(head -n 1 <<<"$SKYPILOT_NODE_IPS"):{COORDINATOR_PORT}"
VAST_NUM_PROCESSES="$SKYPILOT_NUM_NODES"
VAST_PROCESS_ID="$SKYPILOT_NODE_RANK"
VAST_TOKEN="$SKYPILOT_TASK_ID"
export VAST_COORDINATOR_ADDRESS VAST_NUM_PROCESSES VAST_PROCESS_ID VAST_TOKEN
"""


@dataclass(frozen=True)
class SkyTask:
    """Settings that all task files have.

    Attributes:
        name: Name of the job.
        region: Cloud and region, such as ``gcp/europe-west4``; None for any.
        command: Command to run on every node.
    """

    name: str
    region: str | None
    command: tuple[str, ...]


def make_training_task(
    task: SkyTask,
    chips: Slice,
    *,
    files: Mapping[str, Path],
    spot: bool,
    max_restarts: int,
) -> dict[str, Any]:
    """Makes a task that trains.

    Args:
        task: Settings of the task.
        chips: Chips to train on.
        files: Files here, by the paths that SkyPilot copies them to, such as `CONFIG`.
        spot: Whether to use machines that can be taken away.
        max_restarts: Largest number of restarts after errors.

    Returns:
        The task, for SkyPilot's YAML.
    """
    accelerator = f"{chips.accelerator.sky}:{chips.chips_per_host}"
    script = _PROCESSES if chips.hosts > 1 else ""
    return {
        "name": task.name,
        "workdir": ".",
        "num_nodes": chips.hosts,
        "resources": {
            **_region(task),
            "accelerators": accelerator,
            "use_spot": spot,
            "job_recovery": {
                "max_restarts_on_errors": max_restarts,
                "recover_on_exit_codes": [SAVED],
            },
        },
        # With a list JAX fails if it cannot use the GPUs, instead of using processors.
        "envs": {"JAX_PLATFORMS": "cuda,cpu"},
        "file_mounts": {target: str(source) for target, source in files.items()},
        "setup": _INSTALL.format(extra=" 'jax[cuda12]'"),
        "run": f"{_ACTIVATE}{script}exec {format_command(task.command)}\n",
    }


def make_evaluation_task(task: SkyTask, *, cpus: int, memory_gb: int) -> dict[str, Any]:
    """Makes a task that evaluates on CPUs.

    Args:
        task: Settings of the task.
        cpus: Least number of cores.
        memory_gb: Least memory in GB.

    Returns:
        The task, for SkyPilot's YAML.
    """
    return {
        "name": task.name,
        "workdir": ".",
        "resources": {
            **_region(task),
            # At least so many: clouds have machines of few sizes.
            "cpus": f"{cpus}+",
            "memory": f"{memory_gb}+",
        },
        "envs": {"JAX_PLATFORMS": "cpu"},
        "setup": _INSTALL.format(extra=""),
        "run": f"{_ACTIVATE}exec {format_command(task.command)}\n",
    }


def list_active_jobs() -> set[str]:
    """Asks SkyPilot for the names of this user's jobs that have not ended.

    Returns:
        The names.

    Raises:
        LaunchError: If SkyPilot is not installed, or does not list its jobs.
    """
    require_program(_QUEUE[0])
    asked, _ = ask(_QUEUE)
    said = f"{asked.stdout}\n{asked.stderr}"
    if asked.returncode != 0 and _NO_JOBS in said:
        return set()
    try:
        asked.check_returncode()
        # SkyPilot may print lines about its server before the list.
        lines = asked.stdout.splitlines()
        start = next(n for n, line in enumerate(lines) if line.strip() in ("[", "[]"))
        jobs = json.loads("\n".join(lines[start:]))
        return {job["job_name"] for job in jobs}
    except (
        subprocess.CalledProcessError,
        StopIteration,
        ValueError,
        TypeError,
        KeyError,
    ) as error:
        raise LaunchError(
            f"`{' '.join(_QUEUE)}`: expected a list of the jobs that run already, got "
            f"exit code {asked.returncode}: {said.strip()[-200:]!r}; install SkyPilot "
            "0.14 or newer, or see what the command says"
        ) from error


def find_google_region(region: str | None) -> str | None:
    """Finds the Google Cloud region of a task, which its buckets must have, too.

    Args:
        region: Cloud and region, such as ``gcp/europe-west4``.

    Returns:
        The region; None for other clouds or any region.

    Example:
        >>> find_google_region("gcp/europe-west4"), find_google_region("aws/eu-west-1")
        ('europe-west4', None)
    """
    cloud, _, name = (region or "").partition("/")
    return name if cloud == "gcp" and name else None


def _region(task: SkyTask) -> dict[str, Any]:
    return {} if task.region is None else {"infra": task.region}
