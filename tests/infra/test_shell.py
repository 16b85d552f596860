"""Shell scripts, and the commands that SkyPilot runs on its machines."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from infra.targets import skypilot
from tests.infra.command_lines import EVALUATE, SKY, installed, submission

SCRIPTS = sorted(Path("infra").rglob("*.sh"))
SETUP = "infra/setup_bucket.sh"
ARGUMENTS = ("my-project", "europe-west4", "vast-data")


def check(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    program = installed("shellcheck")
    return subprocess.run(
        [program, *arguments], input=text, capture_output=True, text=True
    )


def test_scripts_are_found():
    assert {path.name for path in SCRIPTS} >= {"demo.sh", "setup_bucket.sh"}


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_shellcheck_has_nothing_to_say(script):
    done = check(str(script))
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    "command", [f"{SKY} --chips 16", f"{EVALUATE} --target sky"], ids=["train", "eval"]
)
def test_what_skypilot_runs_passes_too(command):
    task = yaml.safe_load(submission(command).document)
    for part in ("setup", "run"):
        # shellcheck cannot read the environment, which is made on the machine.
        done = check("--shell=bash", "--exclude=SC1090", "-", text=task[part])
        assert (done.returncode, done.stdout) == (0, "")


def test_shellcheck_can_fail():
    assert check("--shell=bash", "-", text="echo $1\n").returncode == 1


def test_processes_on_skypilots_nodes():
    """SkyPilot's variables, here those of node 1 of three, become ours."""
    task = yaml.safe_load(
        submission(
            f"{SKY} --chips 24 -- --mesh.fsdp 8 --trainer.seeds 3 --mesh.seed 3"
        ).document
    )
    assert task["envs"] == {"JAX_PLATFORMS": "cuda,cpu"}
    _, _, script = task["run"].partition("bin/activate\n")
    exports, _, _ = script.partition("exec ")
    done = subprocess.run(
        ["bash", "-euc", f"{exports}env"],
        env={
            "PATH": os.environ["PATH"],
            "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5\n10.0.0.6",
            "SKYPILOT_NUM_NODES": "3",
            "SKYPILOT_NODE_RANK": "1",
            "SKYPILOT_TASK_ID": "sky-2026-01-01-00-00-00-123456_run_1",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    given = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    assert {name: v for name, v in given.items() if name.startswith("VAST_")} == {
        "VAST_COORDINATOR_ADDRESS": "10.0.0.4:8476",
        "VAST_NUM_PROCESSES": "3",
        "VAST_PROCESS_ID": "1",
        "VAST_TOKEN": "sky-2026-01-01-00-00-00-123456_run_1",
    }
    assert skypilot.CONFIG in task["file_mounts"]


# Tests of the bucket's set-up, with a fake gcloud that records what it made.


def set_up(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", SETUP, *arguments],
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
    )


GCLOUD = f"""#!{sys.executable}
import json, pathlib, sys
record = pathlib.Path(__file__).with_name("record.json")
done = json.loads(record.read_text()) if record.exists() else []
words = sys.argv[1:]
if "describe" in words:
    at = words.index("describe")
    thing = words[at + 1].partition("@")[0]
    made = [each for each in done if "create" in each and thing in each]
    sys.exit(0 if made else 1)
done.append(words)
record.write_text(json.dumps(done))
"""


@pytest.fixture
def gcloud(tmp_path):
    (tmp_path / "gcloud").write_text(GCLOUD)
    (tmp_path / "gcloud").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"

    def run(*arguments: str) -> list[list[str]]:
        done = set_up(*arguments, PATH=path)
        assert (done.returncode, done.stderr) == (0, "")
        return yaml.safe_load((tmp_path / "record.json").read_text())

    return run


def test_a_second_set_up_makes_nothing_again(gcloud):
    first = gcloud(*ARGUMENTS)
    made = [words for words in first if "create" in words]
    # The first set-up makes two accounts, the bucket, four folders and a role.
    assert len(made) == 8
    again = gcloud(*ARGUMENTS)[len(first) :]
    assert [words for words in again if "create" in words] == []
    bindings = [words for words in first if "create" not in words]
    assert [words for words in again if "update" not in words] == bindings
    # The permissions of a role may have changed since it was made.
    (role,) = [words for words in made if "roles" in words]
    assert [words for words in again if "update" in words] == [
        ["update" if word == "create" else word for word in role]
    ]


def test_a_worker_has_no_right_to_storage_in_the_whole_project(gcloud):
    (role,) = [words for words in gcloud(*ARGUMENTS) if words[:2] == ["iam", "roles"]]
    (given,) = [word for word in role if word.startswith("--permissions=")]
    names = given.partition("=")[2].split(",")
    # Those of roles/dataflow.worker, 23, but for three that name storage.
    assert len(set(names)) == len(names) == 20
    assert {name.partition(".")[0] for name in names} == {
        *("autoscaling", "compute", "dataflow", "logging", "monitoring")
    }
    assert {"dataflow.workItems.lease", "compute.instances.delete"} < {*names}


def test_accounts_may_do_what_their_jobs_need_and_no_more(gcloud):
    granted = set()
    for words in gcloud(*ARGUMENTS, "training"):
        if not words[-1].startswith("--") or "create" in words:
            continue
        options = dict(word.split("=", 1) for word in words if word.startswith("--"))
        (resource,) = [w for w in words if w.startswith("gs://")] or [words[-4]]
        account = options["--member"].partition(":")[2].partition("@")[0]
        granted.add((account, resource, options["--role"]))
    storage = {each for each in granted if "roles/storage" in each[2]}
    assert storage == {
        ("vast-pipeline", "gs://vast-data/raw/", "roles/storage.objectViewer"),
        ("vast-pipeline", "gs://vast-data/tmp/", "roles/storage.objectUser"),
        ("vast-pipeline", "gs://vast-data/stores/", "roles/storage.objectUser"),
        ("vast-trainer", "gs://vast-data/stores/", "roles/storage.objectViewer"),
        ("vast-trainer", "gs://vast-data/runs/", "roles/storage.objectUser"),
        ("vast-pipeline", "gs://vast-data", "roles/storage.bucketViewer"),
        ("vast-trainer", "gs://vast-data", "roles/storage.bucketViewer"),
    }
    others = {(each[0], each[2]) for each in granted - storage}
    assert others == {
        ("vast-pipeline", "projects/my-project/roles/vastDataflowWorker"),
        *(
            (
                f"my-project.svc.id.goog[training/{name}]",
                "roles/iam.workloadIdentityUser",
            )
            for name in ("vast-pipeline", "vast-trainer")
        ),
    }


def test_a_dry_run_changes_nothing():
    done = set_up(*ARGUMENTS, DRY_RUN="1", REPOSITORY="vast")
    assert done.returncode == 0
    assert done.stdout.count("gcloud ") == 19
    assert "roles/artifactregistry.reader" in done.stdout


def test_what_is_missing_is_said_in_one_line(tmp_path):
    done = set_up("my-project")
    assert done.returncode == 2
    assert done.stderr == "error: expected PROJECT REGION BUCKET [NAMESPACE]\n"
    for name in ("bash",):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    done = set_up(*ARGUMENTS, PATH=str(tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("error: gcloud is not installed here")
