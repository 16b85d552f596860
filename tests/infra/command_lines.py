"""Command lines of launches, for several tests."""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from infra.cli import PROGRAM, main
from infra.commands.launch import Launch
from infra.submission import Submission, read_version
from pipeline import front_door

VERSION = read_version()
REGISTRY = "europe-docker.pkg.dev/my-project/vast"

TRAIN = (
    "launch train tests/infra/run.toml --task 1 --dry-run "
    "--store gs://vast-data/stores/cube-single-play "
    "--out gs://vast-data/runs/cube-single-1"
)
GPU = (
    f"{TRAIN} --target gke --accelerator h100 --region europe-west4 "
    f"--image {REGISTRY}/vast-rl-trainer-cuda:{VERSION}"
)
TPU = (
    f"{TRAIN} --target tpu --accelerator v6e --region europe-west4 "
    f"--image {REGISTRY}/vast-rl-trainer-tpu:{VERSION}"
)
SKY = f"{TRAIN} --target sky --accelerator h100"
EVALUATE = "launch evaluate --dry-run --run gs://vast-data/runs/cube-single-1"
EVALUATE_GKE = (
    f"{EVALUATE} --target gke --region europe-west4 "
    f"--image {REGISTRY}/vast-rl-trainer-cuda:{VERSION}"
)
PIPELINE = (
    "launch pipeline --dataset cube-triple-play --dry-run "
    "--out gs://vast-data/stores/cube-triple-play"
)
SHARD = f"{PIPELINE} --input gs://vast-data/raw"
DATAFLOW = (
    "--target dataflow --project my-project --region europe-west4 "
    f"--image {REGISTRY}/vast-rl-pipeline:{VERSION} "
    "--service-account vast-pipeline@my-project.iam.gserviceaccount.com"
)
FLINK = "--target flink --job-endpoint flink:8099 --flink-master flink:8081"
FLINK_CLUSTER = (
    "--target flink --region europe-west4 --namespace training "
    f"--image {REGISTRY}/vast-rl-pipeline:{VERSION}"
)
SPARK = "--target spark --job-endpoint spark:8099 --workers-at /opt/bin/vast-rl-worker"


def printed(capsys: Any, command: str) -> tuple[str, str]:
    """Runs a command that must succeed; returns its output and standard error."""
    capsys.readouterr()
    code = main(command.split())
    output, error = capsys.readouterr()
    assert code == 0, error
    return output, error


def refused(capsys: Any, command: str) -> str:
    """Runs a command that must be refused; returns its one line of error."""
    capsys.readouterr()
    code = main(command.split())
    output, error = capsys.readouterr()
    assert code == 2, output
    assert output == ""
    lines = [line for line in error.splitlines() if not line.startswith("#")]
    assert len(lines) == 1
    return lines[0].removeprefix("error: ")


def submission(command: str) -> Submission:
    """The submission of a launch."""
    parsed, arguments = front_door.parse(PROGRAM, command.split())
    assert isinstance(parsed, Launch)
    return parsed.stage.make_submission(arguments)


def documents(command: str) -> list[Any]:
    """The YAML documents that a launch would submit."""
    document = submission(command).document
    assert document is not None
    return list(yaml.safe_load_all(document))


def installed(program: str) -> str:
    """Path of a program of the environment, which need not be activated."""
    here = str(Path(sys.executable).parent)
    found = shutil.which(program, path=os.pathsep.join((here, os.environ["PATH"])))
    assert found is not None, f"{program}: not installed; `make setup` does"
    return found
