"""A JobSet's processes on loopback: trained, one killed, started again, resumed.

What a cluster does is done here by hand, from the manifest alone: every pod's
environment, with the coordinator's name answered by 127.0.0.1, and the set's policy on
exit codes.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.jobset import CONFIG_FILE, CONFIG_FOLDER, RUNS_FOLDER
from tests.infra.commands import GPU, documents
from tests.stores import write_store

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
HOSTS = 4
STEPS, CHECKPOINT_EVERY = 4000, 500
CONFIG = f"""\
dataset = "cube-single-play"

[agent]
name = "vast"
width = 16
depth = 2
flow_steps = 2
max_horizon = 5

[trainer]
steps = {STEPS}
batch_size = 32
updates_per_call = 50
log_every = 100
checkpoint_every = {CHECKPOINT_EVERY}
"""
# Long enough to find out that a peer is gone, which JAX gives 100 s by default.
PATIENCE_S = 300


@dataclass(frozen=True)
class Cluster:
    """What runs a JobSet's pods here.

    Attributes:
        job_set: The manifest.
        folder: Stands for the volumes of the pods.
        store: Stands for the store in the bucket.
    """

    job_set: Any
    folder: Path
    store: str

    def start(self) -> list[subprocess.Popen[str]]:
        """Starts every pod of the set's one job."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        count = self._job()["completions"]
        return [self._start_pod(index, port) for index in range(count)]

    def _job(self) -> Any:
        return self.job_set["spec"]["replicatedJobs"][0]["template"]["spec"]

    def _start_pod(self, index: int, port: int) -> subprocess.Popen[str]:
        container = self._job()["template"]["spec"]["containers"][0]
        given = {}
        for variable in container["env"]:
            if "value" in variable:
                given[variable["name"]] = variable["value"]
            else:
                assert variable["valueFrom"]["fieldRef"]["fieldPath"] == INDEX
                given[variable["name"]] = str(index)
        host, _, _ = given["VAST_COORDINATOR_ADDRESS"].partition(":")
        assert host.endswith("-trainer-0-0." + self.job_set["metadata"]["name"])
        given["VAST_COORDINATOR_ADDRESS"] = f"127.0.0.1:{port}"
        volumes = {
            f"{CONFIG_FOLDER}/{CONFIG_FILE}": str(self.folder / CONFIG_FILE),
            RUNS_FOLDER: str(self.folder / "runs"),
        }
        arguments = []
        for argument in container["args"]:
            for inside, here in volumes.items():
                argument = argument.replace(inside, here)
            arguments.append(self.store if "://" in argument else argument)
        # Of pytest's own devices each process needs one.
        kept = {n: v for n, v in os.environ.items() if n not in ("XLA_FLAGS",)}
        with (self.folder / f"{index}.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, *container["command"][1:], *arguments],
                env={**kept, **given, "JAX_PLATFORMS": "cpu"},
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def means(self, code: int) -> str:
        """What the job's policy does on an exit code: the first rule that matches."""
        for rule in self._job()["podFailurePolicy"]["rules"]:
            if code in rule.get("onExitCodes", {}).get("values", ()):
                return str(rule["action"])
        return "Count"

    def logs(self) -> str:
        """The last lines of every pod, for a test that fails."""
        texts = [file.read_text()[-2000:] for file in sorted(self.folder.glob("*.log"))]
        return "\n----\n".join(texts)


@pytest.fixture
def cluster(tmp_path):
    config = tmp_path / CONFIG_FILE
    config.write_text(CONFIG)
    (tmp_path / "runs").mkdir()
    store = write_store(tmp_path / "store", ((60,) * 12,), dataset="cube-single-play")
    command = GPU.replace("tests/infra/run.toml", str(config))
    # Four machines; of GPUs the processes here have none and need none.
    config_map, job_set = documents(
        f"{command} --chips {8 * HOSTS} --name replay --out gs://vast-data/runs/replay"
    )
    assert config_map["data"][CONFIG_FILE] == CONFIG
    made = Cluster(job_set, tmp_path, str(store))
    yield made
    for process in list(_STARTED):
        if process.poll() is None:
            process.kill()
        process.wait()
        _STARTED.remove(process)


_STARTED: list[subprocess.Popen[str]] = []


def start(cluster: Cluster) -> list[subprocess.Popen[str]]:
    pods = cluster.start()
    _STARTED.extend(pods)
    return pods


def wait(cluster: Cluster, pods: list[subprocess.Popen[str]]) -> list[int]:
    """Exit codes of all pods."""
    end = time.monotonic() + PATIENCE_S
    try:
        return [pod.wait(max(0.1, end - time.monotonic())) for pod in pods]
    except subprocess.TimeoutExpired:
        pytest.fail(f"pods still run after {PATIENCE_S} s:\n{cluster.logs()}")


def wait_for_checkpoint(cluster: Cluster, pods: list[subprocess.Popen[str]]) -> int:
    """The step of the first checkpoint that is there."""
    folder = cluster.folder / "runs" / "replay" / "checkpoints"
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        steps = [int(path.name) for path in folder.glob("*") if path.name.isdigit()]
        if steps:
            return max(steps)
        if any(pod.poll() is not None for pod in pods):
            break
        time.sleep(0.05)
    pytest.fail(f"no checkpoint was written:\n{cluster.logs()}")


def steps_logged(cluster: Cluster) -> list[int]:
    text = (cluster.folder / "runs" / "replay" / "metrics.jsonl").read_text()
    return [json.loads(line)["step"] for line in text.splitlines()]


@pytest.mark.slow
def test_a_set_that_lost_a_process_starts_again_and_resumes(cluster):
    pods = start(cluster)
    first = wait_for_checkpoint(cluster, pods)
    assert first < STEPS
    pods[2].kill()
    codes = wait(cluster, pods)
    assert codes[2] == -signal.SIGKILL
    # Its peers cannot go on, and none of them says that no restart helps: so the job
    # fails for its backoff limit, and the set is started again.
    others = codes[:2] + codes[3:]
    assert all(code != 0 for code in others), cluster.logs()
    assert all(cluster.means(abs(code)) != "FailJob" for code in others), codes
    assert cluster.job_set["spec"]["failurePolicy"]["maxRestarts"] > 0
    again = start(cluster)
    assert wait(cluster, again) == [0] * HOSTS, cluster.logs()
    steps = steps_logged(cluster)
    assert steps[-1] == STEPS
    assert steps == sorted(set(steps))
    assert "going on from the checkpoint of step" in cluster.logs()


@pytest.mark.slow
def test_a_set_told_to_stop_saves_and_is_replaced_without_counting(cluster):
    pods = start(cluster)
    wait_for_checkpoint(cluster, pods)
    # One pod is told, as when its node is taken away; all agree on the step to stop at.
    pods[1].send_signal(signal.SIGTERM)
    codes = wait(cluster, pods)
    assert {cluster.means(code) for code in codes} == {"Ignore"}, cluster.logs()
    again = start(cluster)
    assert wait(cluster, again) == [0] * HOSTS, cluster.logs()
    assert steps_logged(cluster)[-1] == STEPS
