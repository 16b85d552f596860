"""Launches print what they would submit, and refuse mistakes.

Golden files hold whole dry runs. UPDATE_GOLDEN=1 rewrites them after an intended
change.
"""

import dataclasses
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import tyro
import yaml

from infra.cli import main
from infra.submission import Submission, format_command, launch, make_command
from pipeline import front_door
from pipeline.beam import runners
from pipeline.cli import PROGRAM
from pipeline.output import Output
from tests.infra.command_lines import (
    DATAFLOW,
    EVALUATE,
    EVALUATE_GKE,
    FLINK,
    FLINK_CLUSTER,
    GPU,
    PIPELINE,
    SHARD,
    SKY,
    SPARK,
    TPU,
    TRAIN,
    VERSION,
    documents,
    printed,
    refused,
)

GOLDEN = Path(__file__).parents[1] / "golden"
DRY_RUNS = {
    "pipeline-local": f"{SHARD} --target local --max-workers 2 --rows 3000000",
    "pipeline-flink": f"{SHARD} {FLINK} --max-workers 8",
    "pipeline-flink-cluster": f"{SHARD} {FLINK_CLUSTER} --rows 100000000",
    "pipeline-spark": f"{SHARD} {SPARK}",
    "pipeline-dataflow-shard": f"{SHARD} {DATAFLOW} --rows 100000000",
    "pipeline-dataflow-collect": (
        f"{PIPELINE} --episodes 100000 {DATAFLOW} --max-workers 100 --subnetwork vast"
    ),
    "train-local": f"{TRAIN} --target local --out runs/one -- --agent.width 1024",
    "train-local-gs": f"{TRAIN} --target local",
    "train-gke": f"{GPU} --chips 16 --spot",
    "train-tpu": f"{TPU} --chips 16 --updates-per-s 200 -- --trainer.seeds 8",
    "train-sky": f"{SKY} --chips 16 --spot",
    "evaluate-local": f"{EVALUATE} --target local --run runs/one",
    "evaluate-local-gs": f"{EVALUATE} --target local",
    "evaluate-gke": f"{EVALUATE_GKE} -- --all-steps",
    "evaluate-sky": f"{EVALUATE} --target sky --region gcp/europe-west4",
}


@pytest.mark.parametrize("name", DRY_RUNS)
def test_dry_runs_are_as_reviewed(name, capsys):
    output, error = printed(capsys, DRY_RUNS[name])
    shown = f"$ python -m infra {DRY_RUNS[name]}\n{error}{output}".replace(
        VERSION, "VERSION"
    )
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        file.write_text(shown)
    assert shown == file.read_text()


def test_there_is_no_golden_of_nothing():
    assert {file.stem for file in GOLDEN.iterdir()} == set(DRY_RUNS)


@pytest.mark.parametrize(
    "name",
    [n for n in DRY_RUNS if n.startswith("pipeline") and not n.endswith("cluster")],
)
def test_the_pipeline_takes_the_command_that_is_printed(name, capsys):
    words = shlex.split(printed(capsys, DRY_RUNS[name])[0].replace("\\\n", " "))
    assert words[:3] == ["python", "-m", "pipeline"]
    command, beam = front_door.parse(PROGRAM, words[3:])
    assert command.out == "gs://vast-data/stores/cube-triple-play"
    options = runners.make_options(1, beam)
    given = runners.given_options(options)
    names = {part.split("=")[0].removeprefix("--") for part in beam}
    # All of these are options of Beam, which would drop unknown ones.
    renamed = {"no_use_public_ips": "use_public_ips"}
    assert {renamed.get(each, each) for each in names} <= set(given)
    if "dataflow" in name:
        assert given["use_public_ips"] is False
        assert given["autoscaling_algorithm"] == "THROUGHPUT_BASED"
        assert "use_runner_v2" in given["experiments"]


def test_the_trainer_takes_the_command_that_is_printed(capsys):
    from trainer.commands.train import Train

    printed_here = printed(capsys, DRY_RUNS["train-local"])[0]
    words = shlex.split(printed_here.replace("\\\n", " "))
    assert words[:4] == ["python", "-m", "trainer", "train"]
    parsed, rest = tyro.cli(Train, args=words[4:], return_unknown_args=True)
    assert str(parsed.config) == "tests/infra/run.toml"
    assert rest == ["--agent.width", "1024"]
    job = documents(DRY_RUNS["train-tpu"])[-1]
    pod = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["command"] == ["python", "-m", "trainer", "train"]
    parsed, rest = tyro.cli(Train, args=container["args"], return_unknown_args=True)
    assert parsed.store == "gs://vast-data/stores/cube-single-play"
    assert rest == ["--trainer.seeds", "8"]


def test_a_job_carries_its_configuration():
    config_map = documents(DRY_RUNS["train-gke"])[0]
    text = Path("tests/infra/run.toml").read_text()
    assert config_map["data"] == {"run.toml": text}


def mounted(config_map, job_set, folder):
    """Writes a ConfigMap's files to the paths of a pod's volume."""
    pod = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    volume = next(each for each in pod["volumes"] if each["name"] == "config")
    data = config_map["data"]
    items = volume["configMap"].get("items", [{"key": k, "path": k} for k in data])
    assert {item["key"] for item in items} == set(data)
    for item in items:
        file = folder / item["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(data[item["key"]])
    return pod["containers"][0]["args"]


@pytest.mark.parametrize(
    "passed",
    [
        "--agent fql --agent.width 256 --trainer.steps 2000000",
        "--agent vast --agent.depth 2",
        "--profile gs://vast-data/trace --trainer.seeds 8",
    ],
)
def test_a_job_resolves_what_was_resolved_here(passed, tmp_path):
    from trainer import config as configuration
    from trainer.commands.train import Train

    command = f"{GPU} --chips 8".replace(
        "tests/infra/run.toml", "configs/cube-single-play.toml"
    )
    config_map, _, job_set = documents(f"{command} -- {passed}")
    arguments = mounted(config_map, job_set, tmp_path)
    there, overrides = tyro.cli(
        Train,
        args=[each.replace("/etc/vast-rl", str(tmp_path)) for each in arguments],
        return_unknown_args=True,
    )
    resolved = configuration.resolve(
        there.config,
        task=there.task,
        agent=there.agent,
        overrides=overrides,
        prog="there",
    )
    here, overrides = tyro.cli(
        Train,
        args=[
            *[
                "configs/cube-single-play.toml",
                "--store",
                "s",
                "--task",
                "1",
                "--out",
                "o",
            ],
            *passed.split(),
        ],
        return_unknown_args=True,
    )
    expected = configuration.resolve(
        here.config, task=1, agent=here.agent, overrides=overrides, prog="here"
    )
    assert resolved.config == expected.config
    assert overrides  # Otherwise a file would be compared with itself.
    if "fql" in passed:
        assert resolved.config.agent.name == "fql"
        assert resolved.config.trainer.batch_size == 256  # From baselines/fql.toml.
        assert resolved.baseline == tmp_path / "baselines" / "fql.toml"
    else:
        assert set(config_map["data"]) == {"run.toml"}


def test_no_option_of_the_trainer_is_taken_for_an_override():
    from infra.commands.train import _Passed
    from trainer.commands.train import Train

    options = {field.name for field in dataclasses.fields(Train)}
    passed = {field.name for field in dataclasses.fields(_Passed)}
    assert options - {"config", "store", "task", "out"} == passed


def test_a_task_file_brings_an_agents_settings(capsys):
    command = f"{SKY} --chips 8 -- --agent qc".replace(
        "tests/infra/run.toml", "configs/cube-single-play.toml"
    )
    (task,) = documents(command)
    assert task["file_mounts"] == {
        "/tmp/vast-rl/run.toml": "configs/cube-single-play.toml",
        "/tmp/vast-rl/baselines/qc.toml": "configs/baselines/qc.toml",
    }
    assert "--agent qc" in task["run"]


def test_an_agent_that_does_not_exist_is_refused(capsys):
    line = refused(capsys, f"{GPU} --chips 8 -- --agent sac")
    assert line.startswith("--agent: expected one of vast, ")
    assert "value-flows" in line


IMAGE = f"--image r/x:{VERSION}"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (f"{GPU} --chips 12", "--chips: h100 comes in"),
        (f"{GPU} --chips 24", "trainer.batch_size is 512, which 24 devices"),
        (
            f"{GPU} --chips 8 -- --mesh.seed 3",
            "mesh: expected seed * data * fsdp * tensor to be",
        ),
        (f"{GPU} --chips 8 -- --mesh.seed 8", "trainer.seeds is 1, which 8 devices"),
        (
            f"{GPU} --chips 8 -- --trainer.microbatches 128",
            "trainer.batch_size / trainer.microbatches is 4, which 8 devices",
        ),
        (
            f"{GPU} --chips 8 -- --mesh.fsdp 8 --mesh.data 1 --agent.width 100",
            "agent.width is 100, which 8 devices (mesh tensor * fsdp)",
        ),
        (GPU, "--accelerator and --chips: expected with --target gke"),
        (f"{GPU} --chips 8 --accelerator v6e", "got 'v6e'"),
        (f"{GPU} --chips 8 --image r/x:0.0.0", "does not hold the version here"),
        (f"{GPU} --chips 8 --region us-central1-a", "give its region, us-central1"),
        (f"{GPU} --chips 8 --name Cube", "--name: expected small letters"),
        (f"{GPU} --chips 16 --name {'x' * 46}", "at most 45 characters"),
        (f"{GPU} --chips 8 --task 0", "expected a task number from 1"),
        (f"{GPU} --chips 8 --store gs://x/y", "has 1 characters"),
        (
            f"{GPU} --chips 8 --out gs://vast-data",
            "the run's folder as gs://bucket/RUN",
        ),
        (f"{GPU} --chips 8 --updates-per-s 0", "a rate above 0"),
        (f"{GPU} --chips 8 --updates-per-s nan", "a rate above 0"),
        (f"{GPU} --chips 8 --max-restarts -1", "at least 0 each, got -1 and 120"),
        (f"{GPU} --chips 8 --grace-s -5", "at least 0 each, got 10 and -5"),
        (f"{TRAIN} --target gke --accelerator h100 --chips 8 {IMAGE}", "--region"),
        (
            f"{TRAIN.replace('run.toml', 'rn.toml')} --target local --out x",
            "no such configuration file",
        ),
        (f"{TRAIN} --target local --out s3://vast/x", "expected gs://bucket/path"),
        (f"{EVALUATE} --target local --run gs://x/y", "has 1 characters"),
        (f"{EVALUATE} --target gke {IMAGE}", "--region: expected a region"),
        (f"{EVALUATE} --target gke --region europe-west4", "--image: expected"),
        (f"{EVALUATE} --target local --episodes 0", "at least 1 each, got 0"),
        (f"{PIPELINE} --target local", "either --input to shard or --episodes"),
        (f"{SHARD} --episodes 3 --target local", "either --input to shard"),
        (f"{SHARD} --target local --max-workers 0", "at least 1"),
        (f"{SHARD} --target local --rows 0", "--rows: expected at least 1, got 0"),
        (f"{SHARD} --target spark", "--job-endpoint: expected HOST:PORT"),
        (f"{SHARD} --target spark --job-endpoint x", "--job-endpoint: expected HOST"),
        (f"{SHARD} {SPARK} --flink-master x:1", "with --target flink alone"),
        (f"{SHARD} --target flink --job-endpoint x:1", "--flink-master: expected HOST"),
        (f"{SHARD} {FLINK} --workers-at pool:50000", "one pool cannot serve several"),
        (f"{SHARD} {FLINK} --workers-at localhost", "--workers-at: expected HOST:PORT"),
        (f"{SHARD} --target flink", "--image: expected REGISTRY/NAME"),
        (f"{SHARD} {FLINK_CLUSTER} --input data", "where Flink's workers cannot read"),
        (f"{SHARD} {FLINK_CLUSTER} --name {'x' * 46}", "at most 45 characters"),
        (f"{SHARD} {FLINK_CLUSTER} --namespace A", "--namespace: expected small"),
        (f"{SHARD} {DATAFLOW} --machine-type big", "such as n2-standard-2"),
        (f"{SHARD} {DATAFLOW} --subnetwork a/b", "--subnetwork: expected its name"),
        (f"{SHARD} {DATAFLOW} --max-workers 1001", "takes up to 1,000, got 1,001"),
        (f"{SHARD} {DATAFLOW} --service-account me@example.com", "NAME@PROJECT"),
        (f"{SHARD} {DATAFLOW} --input data", "is on this machine"),
        (f"{SHARD} {DATAFLOW} --input gs://vast-*/raw", "the bucket's name 'vast-*'"),
        (f"{SHARD} {DATAFLOW} --out stores/x", "expected gs://bucket/path"),
        (f"{SHARD} {DATAFLOW} --temp gs://Tmp/x", "small letters"),
        (f"{PIPELINE} {DATAFLOW} --episodes 3 --dataset cub-triple-play", "unknown"),
        ("scale -- --more", "takes no arguments after --, got --more"),
    ],
)
def test_what_cannot_succeed_is_refused_in_one_line(command, reason, capsys):
    assert reason in refused(capsys, command)


def test_a_program_that_is_missing_is_named(capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    command = f"{GPU} --chips 8".replace("--dry-run", "")
    assert refused(capsys, command).startswith("kubectl: not installed here; see http")
    command = f"{SKY} --chips 8".replace("--dry-run", "")
    assert refused(capsys, command).startswith("sky: not installed here; see pip")


@pytest.fixture
def recorder(tmp_path, monkeypatch):
    """Makes a kubectl and a sky that record what they submit and exit with 7."""
    script = f"""#!{sys.executable}
import pathlib, sys
if sys.argv[1] == "get":
    sys.exit()
record = pathlib.Path({str(tmp_path)!r})
record.joinpath("arguments").write_text(" ".join(sys.argv[1:]))
with sys.stdin if sys.argv[-1] == "-" else open(sys.argv[-1]) as document:
    record.joinpath("document").write_text(document.read())
sys.exit(7)
"""
    for name in ("kubectl", "sky"):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("infra.checks.bucket.require", lambda *args, **kwargs: None)
    return tmp_path


@pytest.mark.parametrize(("command", "verb"), [(GPU, "apply"), (SKY, "jobs launch")])
def test_what_a_dry_run_shows_is_what_is_submitted(command, verb, recorder, capsys):
    command = f"{command} --chips 8"
    shown, _ = printed(capsys, command)
    assert main(command.replace("--dry-run", "").split()) == 7
    assert (recorder / "arguments").read_text().startswith(verb)
    document = (recorder / "document").read_text()
    assert document == shown
    assert list(yaml.safe_load_all(document))


def test_a_bucket_that_cannot_be_used_stops_the_launch(recorder, monkeypatch, capsys):
    from infra.errors import LaunchError

    asked = []

    def require(path, *, region, write):
        asked.append((path, region, write))
        if write:
            raise LaunchError(f"{path}: no")

    monkeypatch.setattr("infra.checks.bucket.require", require)
    command = f"{GPU} --chips 8".replace("--dry-run", "")
    assert refused(capsys, command) == "gs://vast-data/runs/cube-single-1: no"
    assert asked == [
        ("gs://vast-data/stores/cube-single-play", "europe-west4", False),
        ("gs://vast-data/runs/cube-single-1", "europe-west4", True),
    ]
    assert not (recorder / "arguments").exists()


@pytest.mark.parametrize("target", ["local", "dataflow", "flink"])
@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ("/raw", "/raw"),
        ("/raw/", "/raw/"),
        ("/raw/one.npz", "/raw/one.npz"),
        ("/raw/*.npz", "/raw"),
        ("/raw/part-?/*.npz", "/raw"),
        ("/raw/part-[12].npz", "/raw"),
        ("/*.npz", ""),
        ("", ""),
    ],
)
def test_the_folder_of_an_input_is_checked_and_none_above_it(
    target, given, folder, recorder, monkeypatch
):
    options = {"local": "--target local", "dataflow": DATAFLOW, "flink": FLINK_CLUSTER}
    looked = []
    monkeypatch.setattr(
        "infra.checks.bucket.require",
        lambda path, *, region, write: looked.append((path, write)),
    )
    monkeypatch.setattr("infra.submission._run", lambda submission: 0)
    command = f"{PIPELINE} {options[target]} --input gs://vast-data{given}"
    assert main(command.replace("--dry-run", "").split()) == 0
    assert looked == [
        (f"gs://vast-data{folder}", False),
        ("gs://vast-data/stores/cube-triple-play", True),
    ]


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        (
            TRAIN,
            [("stores/cube-single-play", False), ("runs/cube-single-1", True)],
        ),
        (f"{TRAIN} --out runs/one", [("stores/cube-single-play", False)]),
        (EVALUATE, [("runs/cube-single-1", True)]),
    ],
)
def test_what_runs_here_may_use_buckets_that_can_be_used(command, asked, monkeypatch):
    looked, ran = [], []
    monkeypatch.setattr(
        "infra.checks.bucket.require",
        lambda path, *, region, write: looked.append((path, region, write)),
    )
    monkeypatch.setattr("infra.submission._run", lambda each: ran.append(each) or 0)
    local = f"{command.replace('--dry-run', '')} --target local"
    assert main(local.split()) == 0
    # Buckets may be in any region, because this machine is in none.
    assert looked == [(f"gs://vast-data/{path}", None, write) for path, write in asked]
    assert len(ran) == 1


def test_a_command_of_ours_is_run_and_its_exit_code_handed_on():
    code = 75
    submission = Submission(
        command=(sys.executable, "-c", f"raise SystemExit({code})"),
        document=None,
        costs=(),
    )
    assert launch(submission, Output.silent(), dry_run=False) == code


def test_commands_survive_a_shell():
    command = make_command("trainer", "x y", "--out", "a'b", "--", "--z=$HOME")
    text = format_command(command).replace("\\\n", " ")
    assert shlex.split(text) == ["python", *command[1:]]


def test_launching_loads_neither_beam_nor_jax_until_it_must():
    program = "import sys, infra.cli; print(' '.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert {"infra.targets.jobset", "tyro"} <= loaded
    assert not {"apache_beam", "jax", "mujoco", "google.cloud.storage"} & loaded


def test_a_dry_run_loads_no_jax():
    """A machine that launches needs no JAX, and the extra `launch` installs none."""
    program = (
        "import sys; from infra.cli import main;"
        f"code = main({f'{GPU} --chips 8 -- --agent.width 64'.split()!r});"
        "sys.exit(code or 3 * ('jax' in sys.modules or 'grain' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
