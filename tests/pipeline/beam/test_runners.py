import apache_beam as beam
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
    # The one thing that asks Google.
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
    names = {each.unique_name for each in proto.components.transforms.values()}
    assert {"Parts", "WriteParts", "CommitStore"} <= names
    again = beam.Pipeline.from_runner_api(proto, root.runner, options)
    assert again.to_runner_api().components.transforms.keys()
    # Descriptors travel, never arrays: it stays small.
    assert proto.ByteSize() < 100_000


def test_a_dry_run_prints_what_beam_would_be_told(make_npz, tmp_path, capsys):
    arguments = ["shard", make_npz(LENGTHS), "--dataset", "cube-single-play"]
    out = tmp_path / "store"
    assert main([*arguments, "--out", str(out), "--dry-run", "--", *DATAFLOW]) == 0
    printed = capsys.readouterr().out
    for flag in ("--runner=DataflowRunner", "--region=europe-west4"):
        assert flag in printed
    assert not out.exists()
