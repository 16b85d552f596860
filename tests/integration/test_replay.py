"""Runs the processes of a JobSet on loopback, kills one, restarts and resumes them.

The test does the cluster's work, from the manifest alone: it gives every pod its
environment, with 127.0.0.1 for the coordinator's name, applies the set's policy on exit
codes, and ends all pods once the job has failed.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.targets.jobset import CONFIG_FILE, CONFIG_FOLDER
from pipeline.store import files
from tests.fake_gcs import serve
from tests.infra.command_lines import GPU, documents
from tests.optimised import QUICK
from tests.stores import write_store
from trainer.runs.folder import CHECKPOINTS, METRICS_FILE, RunFolder

INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
JOB = "metadata.labels['batch.kubernetes.io/controller-uid']"
HOSTS = 3  # One is lost; process 0 and another process notice it.
STORE, RUN = "gs://vast-data/stores/cube", "gs://vast-data/runs/replay"
# Saves are slower than updates: a run of 100 updates would end before the test sees its
# first save.
STEPS, CHECKPOINT_EVERY, LOG_EVERY = 400, 40, 10
CONFIG = f"""\
dataset = "cube-single-play"

[agent]
name = "iql"
width = 8
depth = 1

[trainer]
steps = {STEPS}
batch_size = 24
updates_per_call = 10
log_every = {LOG_EVERY}
checkpoint_every = {CHECKPOINT_EVERY}
"""
# The three processes may start slowly, on few cores.
PATIENCE_S = 240
# Seconds that pods have to notice that a peer is gone, before the cluster ends them.
NOTICE_S = 10


@dataclass(frozen=True)
class Cluster:
    """Runs the pods of a JobSet as processes.

    Attributes:
        job_set: The manifest.
        folder: Folder in place of the configuration's volume, and for logs.
    """

    job_set: Any
    folder: Path

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
                path = variable["valueFrom"]["fieldRef"]["fieldPath"]
                assert path in (INDEX, JOB)
                given[variable["name"]] = str(index) if path == INDEX else "made-up"
        host, _, _ = given["VAST_COORDINATOR_ADDRESS"].partition(":")
        assert host.endswith("-trainer-0-0." + self.job_set["metadata"]["name"])
        given["VAST_COORDINATOR_ADDRESS"] = f"127.0.0.1:{port}"
        arguments = [
            argument.replace(CONFIG_FOLDER, str(self.folder))
            for argument in container["args"]
        ]
        # Each process needs one device, not the eight of pytest, and one thread,
        # because the processes share the cores.
        flags = f"{QUICK} --xla_cpu_multi_thread_eigen=false"
        kept = {**os.environ, "XLA_FLAGS": flags, "OMP_NUM_THREADS": "1"}
        # A killed process may leave a damaged entry in its cache.
        kept["JAX_COMPILATION_CACHE_DIR"] = str(self.folder / "cache")
        with (self.folder / f"{index}.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, *container["command"][1:], *arguments],
                env={**kept, **given, "JAX_PLATFORMS": "cpu"},
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def means(self, code: int) -> str:
        """Action of the first rule in the job's policy that matches an exit code."""
        for rule in self._job()["podFailurePolicy"]["rules"]:
            if code in rule.get("onExitCodes", {}).get("values", ()):
                return str(rule["action"])
        return "Count"

    def logs(self) -> str:
        """The last lines of every pod, for a test that fails."""
        texts = [file.read_text()[-2000:] for file in sorted(self.folder.glob("*.log"))]
        return "\n----\n".join(texts)


@pytest.fixture
def bucket(tmp_path):
    """The bucket of the launch, on loopback, with its store."""
    local = write_store(tmp_path / "store", ((60,) * 12,), dataset="cube-single-play")
    with serve() as client:
        client.create_bucket("vast-data")
        for path in sorted(local.rglob("*")):
            if path.is_file():
                files.write(
                    STORE, path.relative_to(local).as_posix(), path.read_bytes()
                )
        yield


@pytest.fixture
def cluster(tmp_path, bucket):
    config = tmp_path / CONFIG_FILE
    config.write_text(CONFIG)
    command = GPU.replace("tests/infra/run.toml", str(config))
    # The manifest asks for GPUs on three machines; the processes run on CPUs.
    config_map, _, job_set = documents(
        f"{command} --chips {8 * HOSTS} --name replay --out {RUN} --store {STORE}"
    )
    assert config_map["data"][CONFIG_FILE] == CONFIG
    yield Cluster(job_set, tmp_path)
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
    """Waits for all pods; returns their exit codes."""
    end = time.monotonic() + PATIENCE_S
    try:
        return [pod.wait(max(0.1, end - time.monotonic())) for pod in pods]
    except subprocess.TimeoutExpired:
        pytest.fail(f"pods still run after {PATIENCE_S} s:\n{cluster.logs()}")


def end(pods: list[subprocess.Popen[str]]) -> list[int]:
    """Ends the remaining pods of a failed job, as its controller does.

    Returns:
        Exit codes of the pods that ended by themselves.
    """
    limit = time.monotonic() + NOTICE_S
    while time.monotonic() < limit and any(pod.poll() is None for pod in pods):
        time.sleep(0.1)
    ended = [pod.returncode for pod in pods if pod.poll() is not None]
    for pod in pods:
        pod.kill()
    for pod in pods:
        pod.wait()
    return ended


def wait_for_checkpoint(cluster: Cluster, pods: list[subprocess.Popen[str]]) -> int:
    """Waits for a first checkpoint; returns the latest complete step."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        names = [name.split("/") for name in files.list_names(RUN, CHECKPOINTS)]
        # This object is written last, so it marks a complete step.
        steps = [int(name[0]) for name in names if name[1:] == ["commit_success.txt"]]
        if steps:
            return max(steps)
        if any(pod.poll() is not None for pod in pods):
            break
        time.sleep(0.2)
    pytest.fail(f"no checkpoint was written:\n{cluster.logs()}")


def steps_logged() -> list[int]:
    return [line["step"] for line in RunFolder.open(f"{RUN}").read_lines(METRICS_FILE)]


def test_a_set_that_lost_a_process_starts_again_and_resumes(cluster):
    pods = start(cluster)
    first = wait_for_checkpoint(cluster, pods)
    assert first < STEPS
    pods[2].kill()
    assert pods[2].wait() == -signal.SIGKILL
    # The job may lose no pod, but the set may be restarted.
    job, policy = cluster.job_set["spec"], cluster.job_set["spec"]["failurePolicy"]
    assert job["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] == 0
    assert policy["maxRestarts"] > 0
    # The other pods cannot continue, but no exit code of theirs may forbid a restart.
    others = end(pods[:2] + pods[3:])
    assert 0 not in others, cluster.logs()
    assert all(cluster.means(abs(code)) == "Count" for code in others), others
    again = start(cluster)
    assert wait(cluster, again) == [0] * HOSTS, cluster.logs()
    steps = steps_logged()
    assert steps == list(range(LOG_EVERY, STEPS + 1, LOG_EVERY))
    (resumed,) = re.findall(
        r"going on from the checkpoint of step (\d+)",
        (cluster.folder / "0.log").read_text(),
    )
    assert int(resumed) >= first


@pytest.mark.slow
def test_a_set_told_to_stop_saves_and_is_replaced_without_counting(cluster):
    pods = start(cluster)
    wait_for_checkpoint(cluster, pods)
    # One pod gets the signal, as if its node was taken away; all pods agree on a step
    # to stop at.
    pods[1].send_signal(signal.SIGTERM)
    codes = wait(cluster, pods)
    assert {cluster.means(code) for code in codes} == {"Ignore"}, cluster.logs()
    again = start(cluster)
    assert wait(cluster, again) == [0] * HOSTS, cluster.logs()
    assert steps_logged()[-1] == STEPS
