import os
import subprocess
import sys
from pathlib import Path

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import (
    DebugOptions,
    GoogleCloudOptions,
    StandardOptions,
    WorkerOptions,
)
from apache_beam.options.pipeline_options_validator import PipelineOptionsValidator

from pipeline.beam import pipelines, runners
from pipeline.cli import main
from pipeline.store.errors import DataFormatError, WorkerError

LENGTHS = (5, 5, 7, 4, 1, 6)
DATAFLOW = (
    "--runner=DataflowRunner",
    "--project=some-project",
    "--region=europe-west4",
    "--temp_location=gs://some-bucket/tmp",
    "--sdk_container_image=europe-docker.pkg.dev/some-project/images/vast-rl:1",
    "--experiments=use_runner_v2",
    "--machine_type=n2-standard-2",
    "--max_num_workers=20",
)


@pytest.fixture
def options():
    return runners.make_options(4, DATAFLOW)


def test_dataflow_s_options_reach_dataflow(options, monkeypatch):
    # The only check of the options that asks Google.
    monkeypatch.setattr(
        GoogleCloudOptions, "_warn_if_soft_delete_policy_enabled", lambda *a: None
    )
    pytest.importorskip("apache_beam.runners.dataflow.dataflow_runner")
    assert not runners.is_local(options)
    assert options.view_as(StandardOptions).runner == "DataflowRunner"
    assert options.view_as(GoogleCloudOptions).region == "europe-west4"
    worker = options.view_as(WorkerOptions)
    assert worker.max_num_workers == 20
    assert worker.sdk_container_image.endswith("vast-rl:1")
    assert "use_runner_v2" in options.view_as(DebugOptions).experiments
    runner = beam.runners.runner.create_runner("DataflowRunner")
    assert PipelineOptionsValidator(options, runner).validate() == []


def test_a_pipeline_is_staged_and_read_back(make_npz, make_plan, options):
    plan = make_plan(make_npz(LENGTHS))
    root = beam.Pipeline(runner="FnApiRunner")
    pipelines.define_sharding(root, plan, runs=len(plan.parts))
    proto = root.to_runner_api()
    names = {step.unique_name for step in proto.components.transforms.values()}
    assert {"Parts", "WriteParts", "CommitStore"} <= names
    again = beam.Pipeline.from_runner_api(proto, root.runner, options)
    assert again.to_runner_api().components.transforms.keys()
    # The job holds plans and no rows, so it stays small.
    assert proto.ByteSize() < 100_000


@pytest.mark.parametrize(
    ("runner", "reason"),
    [
        ("Nonsense", "Unexpected pipeline runner: Nonsense"),
        ("no_such_package.Runner", "No module named 'no_such_package'"),
        ("pipeline.beam.runners.Runner", "has no attribute 'Runner'"),
    ],
)
def test_a_runner_that_there_is_not_is_one_line(
    make_npz, tmp_path, capsys, runner, reason
):
    own = {"rewards": np.zeros(28), "masks": np.ones(28, bool)}
    path = make_npz(LENGTHS, without=["qpos", "qvel"], **own)
    out = tmp_path / "store"
    arguments = ["shard", path, "--dataset", "mine", "--out", str(out)]
    assert main([*arguments, "--", f"--runner={runner}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: --runner={runner}: expected one of Beam's runners")
    assert reason in line
    # No claim is left, so the same command works with another runner.
    assert not [path for path in out.rglob("*") if path.is_file()]
    assert main(arguments) == 0


def test_a_dry_run_prints_what_beam_would_be_told(make_npz, tmp_path, capsys):
    arguments = ["shard", make_npz(LENGTHS), "--dataset", "cube-single-play"]
    out = tmp_path / "store"
    assert main([*arguments, "--out", str(out), "--dry-run", "--", *DATAFLOW]) == 0
    printed = capsys.readouterr().out
    for flag in ("--runner=DataflowRunner", "--region=europe-west4"):
        assert flag in printed
    assert not out.exists()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (OSError("a/b: full [while running 'Write/ParDo']"), "a/b: full"),
        (
            RuntimeError("Traceback ...\nOSError: a/b: full [while running 'Write']"),
            "a/b: full",
        ),
        (RuntimeError("x\nTimeoutError: too long\n\nmore of it"), "too long"),
        # A bug in the handling of a fault is a bug.
        (RuntimeError("OSError: full\n\nKeyError: 'x' [while running 'W']"), None),
        (RuntimeError("ValueError: OSError: full"), None),
        (ValueError("full"), None),
    ],
)
def test_faults_of_storage_are_told_from_bugs(error, message):
    assert runners.find_storage_error(error) == message


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (WorkerError("a.npz, part 1: KeyError: 'x' [while running 'W']"), True),
        (
            RuntimeError(
                "Traceback ...\npipeline.store.errors.WorkerError: a.npz, part 1: "
                "KeyError: 'x' [while running 'Write']\n\nmore"
            ),
            True,
        ),
        (RuntimeError("pipeline.store.errors.DataFormatError: a.npz is bad"), False),
        (KeyError("x"), False),
    ],
)
def test_what_a_worker_was_at_is_found_in_what_runners_raise(error, message):
    expected = "a.npz, part 1: KeyError: 'x'" if message else None
    assert runners.find_worker_error(error) == expected
    assert not (message and runners.find_data_error(error))


def test_ctrl_c_within_a_step_is_no_bug():
    def interrupt(element):
        raise KeyboardInterrupt

    def define(root):
        return root | beam.Create([1]) | beam.Map(interrupt)

    with pytest.raises(KeyboardInterrupt):
        runners.run(define, runners.make_options(1))


def test_an_error_among_its_own_causes_is_reported():
    def fail(element):
        error, cause = DataFormatError("part 0: damaged"), OSError("lost")
        error.__cause__, cause.__cause__ = cause, error
        raise error

    def define(root):
        return root | beam.Create([1]) | beam.Map(fail)

    with pytest.raises(DataFormatError, match="part 0: damaged"):
        runners.run(define, runners.make_options(1))


def test_a_simulator_that_cannot_be_loaded_is_one_line(tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pipeline", "collect", "pointmaze-medium-v0"),
            *("--dataset-type", "navigate", "--episodes", "1", "--max-rows", "5"),
            *("--out", str(tmp_path / "store")),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "MUJOCO_GL": "bogus",
        },
    )
    assert done.returncode == 2
    (line,) = (line for line in done.stderr.splitlines() if "bogus" in line)
    assert line.startswith("error: pointmaze-medium-v0: the simulator cannot be loaded")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"no_proxy": "localhost,127.0.0.1,::1"}),
        ({"no_proxy": "a.b"}, {"no_proxy": "a.b,localhost,127.0.0.1,::1"}),
        ({"NO_PROXY": "a.b"}, {"no_proxy": "a.b,localhost,127.0.0.1,::1"}),
        (
            {"no_grpc_proxy": "c"},
            {
                "no_grpc_proxy": "c,localhost,127.0.0.1,::1",
                "no_proxy": "localhost,127.0.0.1,::1",
            },
        ),
    ],
)
def test_calls_on_this_machine_take_no_proxy(given, expected, monkeypatch):
    for name in ("no_grpc_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with runners._bypass_proxies():
        assert {**given, **expected}.items() <= os.environ.items()
    assert dict(os.environ) == before


UNREACHED = """
import sys
from pipeline.beam import runners
from pipeline.cli import main
runners._THIS_MACHINE, runners._CONNECT_S = "nowhere", 3.0
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_worker_that_never_calls_ends_a_command_in_time(tmp_path):
    arguments = ["collect", "pointmaze-medium-v0", "--dataset-type", "navigate"]
    arguments += ["--episodes", "2", "--max-rows", "5", "--workers", "2"]
    done = subprocess.run(
        [sys.executable, "-c", UNREACHED, *arguments, "--out", str(tmp_path / "s")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,  # Beam itself would wait forever.
        env={
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[3]),
            "http_proxy": "http://127.0.0.1:9",
        },
    )
    assert done.returncode == 1
    (line,) = (line for line in done.stderr.splitlines() if "error" in line)
    assert "a worker process did not reach this one at localhost:" in line
    assert "within 3 s" in line
    assert "http_proxy" in line


FULL = """
import resource, sys
from pipeline.cli import main
from pipeline.store.errors import WorkerError
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(main(sys.argv[2:]))
"""


def test_a_full_disk_ends_a_command_with_one_line_and_the_next_goes_on(
    make_npz, tmp_path
):
    """A limit on the size of files stands for a full disk.

    Python ignores SIGXFSZ, so that a write beyond the limit raises an OSError.
    """
    out = tmp_path / "store"
    own = {"rewards": np.zeros(8000), "masks": np.ones(8000, bool)}
    path = make_npz((400,) * 20, without=["qpos", "qvel"], **own)
    arguments = ["shard", path, "--dataset", "mine", "--out", str(out)]
    arguments += ["--part-rows", "4000"]
    done = subprocess.run(
        [sys.executable, "-c", FULL, "100000", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.returncode == 1, done.stderr
    lines = [line for line in done.stderr.splitlines() if "error" in line]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert str(out / "parts" / "00000") in lines[0]
    assert "what was finished stays, repeat the command" in lines[0]
    assert not (out / "dataset.json").exists()
    assert main(arguments) == 0
    assert main(["verify", str(out), "--deep"]) == 0
