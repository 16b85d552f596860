"""Checks options and jobs that Dataflow's service would refuse, before any claim.

Beam itself finds few of these errors. The service finds the others minutes after it has
received the job, and names an identifier of its own in place of the option.
"""

import re

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    GoogleCloudOptions,
    PipelineOptions,
    StandardOptions,
    WorkerOptions,
)

from pipeline.store.errors import UsageError

RUNNER = "DataflowRunner"
# Limits of the service: bytes of a job, workers and labels of a job, and gigabytes of a
# worker's disk, which also holds the worker's image.
JOB_BYTES = 10_000_000
_WORKERS, _DISK_GB = (1, 1000), (30, 64_000)
_LABELS = 64
# The service's own patterns of names.
_LABEL = re.compile(r"[a-z][-_a-z0-9]{0,62}=[-_a-z0-9]{0,63}")
_PROJECT = re.compile(r"([a-z][-a-z0-9.]*:)?[a-z][-a-z0-9]{4,28}[a-z0-9]")
_ACCOUNT = re.compile(r"[^@\s]+@[-a-z0-9.:]+")
_JOB_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]{1,2}")
_ZONE = re.compile(r"[a-z]+-[a-z]+[0-9]{1,2}-[a-z]")
_MACHINE = re.compile(r"[a-z][a-z0-9]*-[a-z0-9]+(-[a-z0-9]+)*")
_SUBNETWORK = re.compile(
    r"(https://www\.googleapis\.com/compute/v1/projects/[^/]+/)?"
    r"regions/(?P<region>[^/]+)/subnetworks/[a-z]([-a-z0-9]{0,61}[a-z0-9])?"
)
_FOLDER = re.compile(r"gs://[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9]/.+")


def is_dataflow(options: PipelineOptions) -> bool:
    """Tells whether a pipeline will run on Dataflow."""
    name = options.view_as(StandardOptions).runner or ""
    return bool(name.rpartition(".")[2].lower() in (RUNNER.lower(), "dataflow"))


def check_options(options: PipelineOptions) -> None:
    """Checks the options that are sent to the service.

    Args:
        options: Beam's options.

    Raises:
        UsageError: If the service would refuse an option. Also if Beam does not know
            an option, for example because it is misspelt: Beam would ignore it
            silently. The message names the option.
    """
    known = options.get_all_options()
    for name in options.get_all_options(retain_unknown_options=True):
        if name not in known:
            _refuse(name, "one of Beam's options", "an option that Beam does not know")
    cloud, worker = options.view_as(GoogleCloudOptions), options.view_as(WorkerOptions)
    _check("project", cloud.project, _PROJECT, "a project's id, not its number or name")
    account = cloud.service_account_email
    _check("service_account_email", account, _ACCOUNT, "such as NAME@PROJECT.iam...")
    # A region is required, because Beam would otherwise take that of the user's gcloud,
    # which may be far from the bucket.
    _check("region", cloud.region, _REGION, "such as europe-west4", required=True)
    _check("job_name", cloud.job_name, _JOB_NAME, "small letters, digits and dashes")
    for name in ("temp_location", "staging_location"):
        value = getattr(cloud, name)
        _check(name, value, _FOLDER, "a folder as gs://bucket/path")
    if not (cloud.temp_location or cloud.staging_location):
        _refuse("temp_location", "a folder as gs://bucket/path", "none")
    _check("machine_type", worker.machine_type, _MACHINE, "such as n2-standard-2")
    _check_range("max_num_workers", worker.max_num_workers, *_WORKERS)
    _check_range("num_workers", worker.num_workers, *_WORKERS)
    _check_range("disk_size_gb", worker.disk_size_gb, *_DISK_GB)
    if (worker.num_workers or 0) > (worker.max_num_workers or _WORKERS[1]):
        limit = worker.max_num_workers
        _refuse(
            "num_workers", f"at most --max_num_workers, {limit}", worker.num_workers
        )
    _check_place(cloud, worker)
    labels = cloud.labels or []
    if len(labels) > _LABELS:
        _refuse("labels", f"at most {_LABELS}", len(labels))
    for label in labels:
        _check("labels", label, _LABEL, "key=value of small letters, digits, _ and -")


def _check_place(cloud: GoogleCloudOptions, worker: WorkerOptions) -> None:
    """Checks that the workers' zone and subnetwork are in the job's region."""
    zone = worker.worker_zone
    _check("worker_zone", zone, _ZONE, "such as europe-west4-a")
    if zone and not zone.startswith(f"{cloud.region}-"):
        _refuse("worker_zone", f"a zone of --region, {cloud.region}", zone)
    _check(
        "subnetwork",
        worker.subnetwork,
        _SUBNETWORK,
        "regions/REGION/subnetworks/NAME, or its whole URL",
    )
    match = worker.subnetwork and _SUBNETWORK.fullmatch(worker.subnetwork)
    if match and match["region"] != (worker.worker_region or cloud.region):
        _refuse("subnetwork", f"one of --region, {cloud.region}", worker.subnetwork)


def check_job(pipeline: beam.Pipeline) -> None:
    """Checks the size of a job.

    Args:
        pipeline: Pipeline with all its steps.

    Raises:
        UsageError: If the job is larger than the service accepts.
    """
    job = pipeline.to_runner_api()
    size = job.ByteSize()
    if size > JOB_BYTES:
        raise UsageError(
            f"the job has {size:,} bytes, and Dataflow takes {JOB_BYTES:,}; write "
            "fewer files at once, and `append` the others"
        )


def _check(
    name: str,
    value: str | None,
    pattern: "re.Pattern[str]",
    expected: str,
    *,
    required: bool = False,
) -> None:
    """Refuses an option whose value does not match a pattern."""
    if value is None and not required:
        return
    if value is None or not pattern.fullmatch(value):
        _refuse(name, expected, value)


def _check_range(name: str, value: int | None, least: int, most: int) -> None:
    """Refuses an option whose value is out of a range."""
    # Beam uses 0 for numbers that are not given.
    if value and not least <= value <= most:
        _refuse(name, f"{least:,} to {most:,}", f"{value:,}")


def _refuse(name: str, expected: str, got: object) -> None:
    raise UsageError(f"--{name}: expected {expected}, got {got}, for Dataflow")
