"""Task files for SkyPilot, which finds machines on any cloud.

A managed job is started again by SkyPilot when its machines are taken away, and when
it ends with exit code 75, told to stop and saved; neither counts as an error. The
machines run SkyPilot's own images and install this checkout by its lock file: as a
runtime, SkyPilot takes only containers whose user may become root, and ours may not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.estimates.machines import Slice
from infra.submission import format_command
from infra.targets.jobset import COORDINATOR_PORT, SAVED

# Where SkyPilot puts the configuration.
CONFIG = "/tmp/vast-rl/run.toml"

_INSTALL = """\
uv venv --quiet --python 3.11 ~/vast-rl
source ~/vast-rl/bin/activate
uv pip install --quiet --constraint infra/constraints.txt \\
  --constraint infra/containers/accelerators.txt \\
  '.[trainer,eval,report]' gcsfs google-cloud-storage{extra}
"""
_ACTIVATE = "source ~/vast-rl/bin/activate\n"
# Node 0 is the first of the list. One node is one process. The task's id is the same on
# all of them, and holds a time in microseconds.
_PROCESSES = f"""\
VAST_COORDINATOR_ADDRESS="$(head -n 1 <<<"$SKYPILOT_NODE_IPS"):{COORDINATOR_PORT}"
VAST_NUM_PROCESSES="$SKYPILOT_NUM_NODES"
VAST_PROCESS_ID="$SKYPILOT_NODE_RANK"
VAST_TOKEN="$SKYPILOT_TASK_ID"
export VAST_COORDINATOR_ADDRESS VAST_NUM_PROCESSES VAST_PROCESS_ID VAST_TOKEN
"""


@dataclass(frozen=True)
class SkyTask:
    """What a task file is made from.

    Attributes:
        name: Of the job.
        region: As ``gcp/europe-west4``, or None for wherever machines are found.
        command: To run on every node.
    """

    name: str
    region: str | None
    command: tuple[str, ...]


def training_task(
    task: SkyTask,
    chips: Slice,
    *,
    files: Mapping[str, Path],
    spot: bool,
    max_restarts: int,
) -> dict[str, Any]:
    """Makes a task that trains.

    Args:
        task: What is common to all.
        chips: That train.
        files: Files here by where SkyPilot copies them; the configuration to `CONFIG`.
        spot: Whether on machines that can be taken away.
        max_restarts: Restarts that count.

    Returns:
        The task, as SkyPilot's YAML has it.
    """
    accelerator = f"{chips.accelerator.sky}:{chips.chips_per_host}"
    script = _PROCESSES if chips.hosts > 1 else ""
    return {
        "name": task.name,
        "workdir": ".",
        "num_nodes": chips.hosts,
        "resources": {
            **_where(task),
            "accelerators": accelerator,
            "use_spot": spot,
            "job_recovery": {
                "max_restarts_on_errors": max_restarts,
                "recover_on_exit_codes": [SAVED],
            },
        },
        "file_mounts": {there: str(here) for there, here in files.items()},
        "setup": _INSTALL.format(extra=" 'jax[cuda12]'"),
        "run": f"{_ACTIVATE}{script}exec {format_command(task.command)}\n",
    }


def evaluation_task(task: SkyTask, *, cpus: int, memory_gb: int) -> dict[str, Any]:
    """Makes a task that evaluates, on CPUs."""
    return {
        "name": task.name,
        "workdir": ".",
        "resources": {
            **_where(task),
            "cpus": f"{cpus}+",
            "memory": f"{memory_gb}+",
        },
        "envs": {"JAX_PLATFORMS": "cpu"},
        "setup": _INSTALL.format(extra=""),
        "run": f"{_ACTIVATE}exec {format_command(task.command)}\n",
    }


def google_region(region: str | None) -> str | None:
    """The region of Google's that a bucket has to be in, if it is one of Google's.

    Example:
        >>> google_region("gcp/europe-west4"), google_region("aws/eu-west-1")
        ('europe-west4', None)
    """
    cloud, _, name = (region or "").partition("/")
    return name if cloud == "gcp" and name else None


def _where(task: SkyTask) -> dict[str, Any]:
    return {} if task.region is None else {"infra": task.region}
