"""Task files are read by SkyPilot's own loader.

SkyPilot requires older packages than ours (click below 8.2), so it is installed in an
environment of its own, which has to be downloaded.
"""

import json
import os
import subprocess
import sys

import pytest
import yaml

from tests.infra.command_lines import EVALUATE, SKY, submission

SKYPILOT = "skypilot==0.14.1"
TASKS = {
    "two": f"{SKY} --chips 16 --spot",
    "one": f"{SKY} --chips 1 --region gcp/europe-west4",
    "evaluate": f"{EVALUATE} --target sky",
}
LOAD = """
import json, sys
import sky
for path in sys.argv[1:]:
    task = sky.Task.from_yaml(path)
    (resources,) = task.resources
    print(json.dumps({
        "name": task.name,
        "nodes": task.num_nodes,
        "accelerators": resources.accelerators,
        "cpus": resources.cpus,
        "spot": resources.use_spot,
        "recovery": resources.job_recovery,
        "region": resources.region,
        "mounts": sorted(task.storage_mounts),
        "files": task.file_mounts,
    }))
"""


@pytest.fixture(scope="module")
def load(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sky")
    uv = [sys.executable, "-m", "uv"]
    environment = folder / "environment"
    subprocess.run([*uv, "venv", "--quiet", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    install = [*uv, "pip", "install", "--quiet", "--python", python, SKYPILOT]
    subprocess.run(install, check=True)

    def run(documents):
        paths = []
        for name, document in documents.items():
            path = folder / f"{name}.yaml"
            path.write_text(document)
            paths.append(str(path))
        return subprocess.run(
            [python, "-c", LOAD, *paths],
            env={"PATH": os.environ["PATH"], "HOME": str(folder)},
            capture_output=True,
            text=True,
        )

    return run


@pytest.mark.slow
def test_skypilot_takes_the_task_files(load):
    done = load({name: submission(command).document for name, command in TASKS.items()})
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    two, one, evaluate = map(json.loads, lines)
    assert two["nodes"] == 2
    assert two["accelerators"] == {"H100": 8}
    assert two["spot"] is True
    assert two["recovery"]["recover_on_exit_codes"] == [75]
    assert two["recovery"]["max_restarts_on_errors"] == 10
    assert two["mounts"] == []
    assert two["files"] == {"/tmp/vast-rl/run.toml": "tests/infra/run.toml"}
    assert (one["nodes"], one["region"]) == (1, "europe-west4")
    assert evaluate["accelerators"] is None
    assert evaluate["cpus"] == "8+"


@pytest.mark.slow
def test_skypilots_loader_can_refuse(load):
    task = yaml.safe_load(submission(TASKS["two"]).document)
    task["resources"]["acelerators"] = task["resources"].pop("accelerators")
    done = load({"wrong": yaml.safe_dump(task)})
    assert done.returncode != 0
    assert "acelerators" in done.stderr
