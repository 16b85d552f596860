"""The job that Beam builds for Dataflow, and options and jobs that are refused."""

import importlib
import json

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import GoogleCloudOptions
from apache_beam.portability.api import beam_runner_api_pb2

from pipeline.beam import dataflow, pipelines, runners
from pipeline.cli import main
from pipeline.store.errors import UsageError

LENGTHS = (5, 5, 7, 4, 1, 6)
REQUIRED = (
    "--runner=DataflowRunner",
    "--project=some-project",
    "--region=europe-west4",
    "--temp_location=gs://some-bucket/tmp",
)
OPTIONS = (
    *REQUIRED,
    "--job_name=cube-single-play",
    "--labels=team=robots",
    "--sdk_container_image=europe-docker.pkg.dev/some-project/images/vast-rl:1",
    "--sdk_location=container",
    "--service_account_email=vast-pipeline@some-project.iam.gserviceaccount.com",
    "--no_use_public_ips",
    "--subnetwork=regions/europe-west4/subnetworks/vast",
    "--machine_type=n2-standard-2",
    "--disk_size_gb=50",
    "--autoscaling_algorithm=THROUGHPUT_BASED",
    "--max_num_workers=20",
    "--number_of_worker_harness_threads=1",
    "--experiments=use_runner_v2",
)


@pytest.mark.parametrize("more", [(), OPTIONS[len(REQUIRED) :]])
def test_what_the_service_takes_is_taken(more):
    options = runners.make_options(1, [*REQUIRED, *more])
    assert dataflow.is_dataflow(options)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            "--region=europe-west4-a",
            "region: expected such as europe-west4, got",
        ),
        ("--project=Some_Project", "project: expected a project's id, not its number"),
        ("--project=123456789", "project: expected a project's id, not its number"),
        (
            "--service_account_email=vast-pipeline",
            "service_account_email: expected such as NAME@PROJECT.iam...",
        ),
        ("--job_name=Cube", "job_name: expected small letters"),
        (f"--job_name={'x' * 64}", "job_name: expected small letters"),
        ("--temp_location=/tmp/x", "temp_location: expected a folder as gs://"),
        ("--staging_location=gs://x", "staging_location: expected a folder as gs://"),
        ("--machine_type=big", "machine_type: expected such as n2-standard-2, got big"),
        ("--max_num_workers=1001", "max_num_workers: expected 1 to 1,000, got 1,001"),
        ("--num_workers=-1", "num_workers: expected 1 to 1,000, got -1"),
        ("--num_workers=21", "num_workers: expected at most --max_num_workers, 20"),
        ("--disk_size_gb=10", "disk_size_gb: expected 30 to 64,000, got 10"),
        ("--worker_zone=us-central1-a", "worker_zone: expected a zone of --region"),
        ("--worker_zone=europe-west4", "worker_zone: expected such as europe-west4-a"),
        ("--subnetwork=vast", "subnetwork: expected regions/REGION/subnetworks/NAME"),
        (
            "--subnetwork=regions/us-east1/subnetworks/vast",
            "subnetwork: expected one of --region, europe-west4",
        ),
        ("--labels=Team=x", "labels: expected key=value of small letters"),
        (f"--labels=a={'x' * 64}", "labels: expected key=value of small letters"),
        ("--max_workers=3", "max_workers: expected one of Beam's options"),
    ],
)
def test_what_the_service_would_refuse_is_refused_here(changed, message):
    with pytest.raises(UsageError, match=f"^--{message}.* for Dataflow$"):
        runners.make_options(1, [*OPTIONS, changed])


def test_what_has_to_be_given_is_asked_for():
    for missing in ("--region", "--temp_location"):
        given = [option for option in REQUIRED if not option.startswith(missing)]
        with pytest.raises(UsageError, match=f"^{missing}: expected .*got None|none"):
            runners.make_options(1, given)


def test_more_labels_than_there_may_be_are_refused():
    labels = [f"--labels=key{i}=x" for i in range(64)]
    runners.make_options(1, [*REQUIRED, *labels])
    with pytest.raises(UsageError, match="--labels: expected at most 64, got 65"):
        runners.make_options(1, [*REQUIRED, *labels, "--labels=more=x"])


def test_a_wrong_option_is_one_line_and_leaves_no_claim(make_npz, tmp_path, capsys):
    out = tmp_path / "store"
    arguments = ["shard", make_npz(LENGTHS), "--dataset", "cube-single-play"]
    wrong = "--disk_size_gb=3"
    assert main([*arguments, "--out", str(out), "--", *REQUIRED, wrong]) == 2
    lines = capsys.readouterr().err.splitlines()
    (line,) = (line for line in lines if "error" in line)
    assert line.startswith("error: --disk_size_gb: expected 30 to 64,000, got 3")
    assert not [path for path in out.rglob("*") if path.is_file()]


def test_a_job_that_is_too_large_is_refused(make_npz, make_plan, monkeypatch):
    plan = make_plan(make_npz(LENGTHS))
    root = beam.Pipeline(runner="FnApiRunner")
    pipelines.define_sharding(root, plan, runs=1)
    dataflow.check_job(root)
    monkeypatch.setattr(dataflow, "JOB_BYTES", root.to_runner_api().ByteSize() - 1)
    with pytest.raises(UsageError, match=r"the job has [\d,]+ bytes, and Dataflow"):
        dataflow.check_job(root)


@pytest.fixture
def staged(monkeypatch):
    """Files that would be uploaded to the bucket, by name; no network is used."""
    module = "apache_beam.runners.dataflow.internal.apiclient"
    apiclient = pytest.importorskip(module)
    files = {}

    def stage(self, folder, name, stream, *args, **kwargs):
        if isinstance(stream, str):
            with open(stream, "rb") as file:
                files[name] = file.read()
        else:
            files[name] = stream.read()

    client = apiclient.DataflowApplicationClient
    monkeypatch.setattr(client, "stage_file_with_retry", stage)
    monkeypatch.setattr(
        client,
        "_gcs_file_copy",
        lambda self, path, to, *a, **k: stage(self, "", to, path),
    )
    # Other modules than the client also ask for credentials, over the network.
    auth = importlib.import_module("apache_beam.internal.gcp.auth")
    monkeypatch.setattr(
        auth._Credentials, "get_service_credentials", lambda *a, **k: None
    )
    monkeypatch.setattr(
        GoogleCloudOptions, "_warn_if_soft_delete_policy_enabled", lambda *a: None
    )
    return files


@pytest.mark.filterwarnings("ignore")
def test_the_template_says_what_was_asked_for(make_npz, make_plan, staged):
    template = ("--template_location=gs://some-bucket/templates/shard", "--no_auth")
    options = runners.make_options(1, [*OPTIONS, *template])
    plan = make_plan(make_npz(LENGTHS))
    root = beam.Pipeline("DataflowRunner", options=options)
    pipelines.define_sharding(root, plan, runs=2)
    root.run()
    text = staged["shard"]
    assert len(text) < dataflow.JOB_BYTES
    job = json.loads(text)
    assert job["name"] == "cube-single-play"
    assert job["labels"] == {"team": "robots"}
    environment = job["environment"]
    assert "use_runner_v2" in environment["experiments"]
    assert environment["serviceAccountEmail"].startswith("vast-pipeline@")
    (pool,) = environment["workerPools"]
    assert pool["machineType"] == "n2-standard-2"
    assert pool["diskSizeGb"] == 50
    assert pool["subnetwork"] == "regions/europe-west4/subnetworks/vast"
    assert pool["autoscalingSettings"]["maxNumWorkers"] == 20
    assert pool["ipConfiguration"] == "WORKER_IP_PRIVATE"
    assert pool["numThreadsPerWorker"] == 1
    folder = "storage.googleapis.com/some-bucket/tmp/"
    assert environment["tempStoragePrefix"].startswith(folder)
    images = {image["containerImage"] for image in pool["sdkHarnessContainerImages"]}
    assert images == {OPTIONS[6].partition("=")[2]}
    (sent,) = (
        beam_runner_api_pb2.Pipeline.FromString(data)
        for name, data in staged.items()
        if name.startswith("pipeline.pb")
    )
    names = [step.unique_name for step in sent.components.transforms.values()]
    assert any(name.startswith("WriteParts/Write") for name in names)
    assert max(map(len, names)) <= 100
