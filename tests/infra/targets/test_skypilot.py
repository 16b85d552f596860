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

from infra.targets import skypilot
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


# Parses the commands, and makes a record of a job as the queue prints it.
PARSE = """
import json, sys
from sky.client.cli.command import cli
from sky.schemas.api.responses import ManagedJobRecord
launch, queue = (json.loads(each) for each in sys.argv[1:])
for words in (launch, queue):
    command = cli.commands["jobs"].commands[words[2]]
    context = command.make_context(words[2], words[3:])
    print(json.dumps(context.params, default=str))
record = ManagedJobRecord(job_name="one", status="RUNNING")
print(json.dumps(record.model_dump(mode="json")))
"""


@pytest.fixture(scope="module")
def sky(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sky")
    uv = [sys.executable, "-m", "uv"]
    environment = folder / "environment"
    subprocess.run([*uv, "venv", "--quiet", str(environment)], check=True)
    python = str(environment / "bin" / "python")
    install = [*uv, "pip", "install", "--quiet", "--python", python, SKYPILOT]
    subprocess.run(install, check=True)

    def run(program, *arguments):
        return subprocess.run(
            [python, "-c", program, *arguments],
            env={"PATH": os.environ["PATH"], "HOME": str(folder)},
            capture_output=True,
            text=True,
        )

    return run


@pytest.fixture
def load(sky, tmp_path):
    def run(documents):
        paths = []
        for name, document in documents.items():
            path = tmp_path / f"{name}.yaml"
            path.write_text(document)
            paths.append(str(path))
        return sky(LOAD, *paths)

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


@pytest.mark.slow
def test_skypilot_takes_the_commands(sky):
    commands = (skypilot.LAUNCH, skypilot._QUEUE)
    done = sky(PARSE, *map(json.dumps, commands))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    launch, queue, record = map(json.loads, lines)
    assert (launch["yes"], launch["detach_run"]) == (True, True)
    assert queue["skip_finished"] is queue["all"] is True
    assert queue["output_format"] == "json"
    assert (record["job_name"], record["status"]) == ("one", "RUNNING")
