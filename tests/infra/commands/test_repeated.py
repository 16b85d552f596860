"""A repeated launch on Kubernetes leaves running jobs alone and replaces others."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.cli import main
from tests.infra.command_lines import EVALUATE_GKE, FLINK_CLUSTER, GPU, SHARD, TPU

# Keeps the objects it is given, and refuses to change a job as Kubernetes does.
KUBECTL = """#!{python}
import json, pathlib, sys
import yaml
folder = pathlib.Path({folder!r})
with (folder / "log").open("a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
verb, *rest = sys.argv[1:]
if (folder / f"{{verb}}-fails").exists():
    sys.exit("some warning\\nerror: no " + verb)
if verb == "apply":
    assert rest == ["--filename", "-"]
    for each in yaml.safe_load_all(sys.stdin):
        file = folder / f"{{each['kind'].lower()}}-{{each['metadata']['name']}}.json"
        if each["kind"] in ("Job", "JobSet") and file.exists():
            if json.loads(file.read_text())["spec"] != each["spec"]:
                sys.exit("field is immutable")
            continue
        file.write_text(json.dumps(each))
    sys.exit()
kind, name, *options = rest
kind = {{"jobs.batch": "job", "jobsets.jobset.x-k8s.io": "jobset"}}[kind]
file = folder / f"{{kind}}-{{name}}.json"
assert options[:3] == ["--namespace", {namespace!r}, "--ignore-not-found"]
if verb == "get":
    assert options[3:] == ["--output", "json"]
    sys.stdout.write(file.read_text() if file.exists() else "")
else:
    assert (verb, options[3:]) == ("delete", ["--cascade=foreground"])
    file.unlink(missing_ok=True)
"""
LAUNCHES = {
    "train-gpu": (f"{GPU} --chips 8 --no-compile", "jobset", "default"),
    "train-tpu": (f"{TPU} --chips 16 --no-compile", "jobset", "default"),
    "evaluate": (EVALUATE_GKE, "job", "default"),
    "flink": (f"{SHARD} {FLINK_CLUSTER}", "job", "training"),
}


class Cluster:
    """A fake `kubectl` on PATH, with the objects of a cluster in a folder."""

    def __init__(self, folder: Path, launch: str) -> None:
        self.command, self.kind, namespace = LAUNCHES[launch]
        self.folder = folder
        program = folder / "kubectl"
        # The interpreter of these tests, which has a YAML parser.
        program.write_text(
            KUBECTL.format(
                python=sys.executable, folder=str(folder), namespace=namespace
            )
        )
        program.chmod(0o755)

    def launch(self, *more: str) -> int:
        return main([*self.command.replace("--dry-run", "").split(), *more])

    def verbs(self) -> list[str]:
        """Commands of kubectl since the last call."""
        log = self.folder / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return [line.split()[0] for line in lines]

    def job(self) -> dict[str, Any]:
        (file,) = self.folder.glob(f"{self.kind}-*.json")
        return json.loads(file.read_text())

    def change(self, **fields: Any) -> None:
        """Changes the job, as its controller would."""
        (file,) = self.folder.glob(f"{self.kind}-*.json")
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


@pytest.fixture
def cluster(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Cluster:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("infra.checks.bucket.require", lambda *_, **__: None)
    return Cluster(tmp_path, getattr(request, "param", "evaluate"))


def conditions(kind: str, status: str = "True") -> dict[str, Any]:
    started = {"type": "Suspended", "status": "False"}
    return {"conditions": [started, {"type": kind, "status": status}]}


everywhere = pytest.mark.parametrize("cluster", LAUNCHES, indirect=True)


@everywhere
def test_a_running_job_is_left_alone(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster.launch() == 0
    assert cluster.verbs() == ["get", "get", "apply"]
    before = cluster.job()
    # The same command, and one with other arguments, which Kubernetes would refuse.
    for more in ((), ("--", "--seed", "7") if cluster.kind == "job" else ()):
        capsys.readouterr()
        assert cluster.launch(*more) == 0
        assert cluster.verbs() == ["get"]
        assert cluster.job() == before
        assert "# left alone: job" in capsys.readouterr().err
    cluster.change(status=conditions("Failed", "False"))
    assert cluster.launch() == 0
    assert cluster.verbs() == ["get"]


@everywhere
@pytest.mark.parametrize("end", ["succeeded", "failed", "removed"])
def test_a_job_that_has_ended_is_replaced(
    cluster: Cluster, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster.launch() == 0
    cluster.verbs()
    if end == "removed":
        metadata = cluster.job()["metadata"]
        cluster.change(metadata={**metadata, "deletionTimestamp": "2026-01-01"})
    else:
        succeeded = "Completed" if cluster.kind == "jobset" else "Complete"
        kind = succeeded if end == "succeeded" else "Failed"
        cluster.change(status=conditions(kind))
    # Another image is a change that Kubernetes refuses for a job that exists.
    image = cluster.command.split("--image ")[1].split()[0]
    assert cluster.launch("--image", f"{image}-repaired") == 0
    assert cluster.verbs() == ["get", "get", "delete", "apply"]
    assert "has ended; a new one takes its place" in capsys.readouterr().err
    job = cluster.job()
    assert f"{image}-repaired" in str(job)
    assert "status" not in job
    assert "deletionTimestamp" not in job["metadata"]


@everywhere
def test_a_running_job_for_another_folder_is_in_the_way(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster.launch() == 0
    cluster.verbs()
    before, command = cluster.job(), cluster.command
    # The name of a job is the last part of its folder.
    for folder in ("vast-data/runs", "--out gs://vast-data/stores"):
        cluster.command = cluster.command.replace(folder, f"{folder}/more")
    assert cluster.command != command
    assert cluster.launch() == 2
    assert cluster.verbs() == ["get"]
    assert cluster.job() == before
    (said,) = [
        line
        for line in capsys.readouterr().err.splitlines()
        if "another folder" in line
    ]
    assert "/more/cube-" in said
    assert "give another --name" in said
    # Once it has ended, its name is free, as for the same folder.
    cluster.change(status=conditions("Failed"))
    assert cluster.launch() == 0
    assert cluster.verbs() == ["get", "get", "delete", "apply"]


def test_a_job_that_starts_during_the_checks_is_left_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cluster.launch() == 0
    cluster.change(status=conditions("Complete"))
    cluster.verbs()
    monkeypatch.setattr(
        "infra.checks.bucket.require", lambda *_, **__: cluster.change(status={})
    )
    assert cluster.launch() == 0
    assert cluster.verbs() == ["get", "get"]


@pytest.mark.parametrize(("verb", "code"), [("get", 2), ("delete", 1)])
def test_nothing_is_applied_if_kubectl_fails(
    cluster: Cluster, verb: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cluster.launch() == 0
    cluster.change(status=conditions("Complete"))
    cluster.verbs()
    (cluster.folder / f"{verb}-fails").touch()
    capsys.readouterr()
    assert cluster.launch() == code
    assert "apply" not in cluster.verbs()
    if verb == "get":
        last = capsys.readouterr().err.splitlines()[-1]
        assert "got exit code 1: error: no get; check the cluster" in last


@everywhere
def test_a_dry_run_asks_no_cluster(cluster: Cluster) -> None:
    assert main(cluster.command.split()) == 0
    assert cluster.verbs() == []
