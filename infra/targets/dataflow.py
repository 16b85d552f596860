"""Beam's arguments for Dataflow, which ``python -m pipeline`` hands on untouched."""

from dataclasses import dataclass

# Of a job.
MOST_WORKERS = 1000
# Beam's container runs one thread in one process: a part is written by one thread
# whose helpers keep two cores busy, and takes up to 1 GB. The service's default, a
# dozen threads for each core, would write two dozen parts at once.
_ONE_AT_A_TIME = (
    "--number_of_worker_harness_threads=1",
    "--experiments=no_use_multiple_sdk_containers",
)
# Collecting is one core's work, so every core has a process.
_ONE_A_CORE = ("--number_of_worker_harness_threads=1",)


@dataclass(frozen=True)
class DataflowJob:
    """Where and as whom a Dataflow job runs.

    Attributes:
        name: Of the job.
        project: Google Cloud project.
        region: Of the workers.
        image: With the pipeline, from infra/containers/pipeline.Dockerfile.
        account: Service account of the workers.
        temp: ``gs://`` folder for the service's own files.
        subnetwork: For workers without public addresses, one with Private Google
            Access; None is the region's in the default network.
        machine_type: Of a worker.
        max_workers: Up to which the service scales by itself.
        collecting: Whether it collects rather than shards.
    """

    name: str
    project: str
    region: str
    image: str
    account: str
    temp: str
    subnetwork: str | None
    machine_type: str
    max_workers: int
    collecting: bool


def dataflow_arguments(job: DataflowJob) -> tuple[str, ...]:
    """Beam's arguments for Dataflow."""
    subnetwork = job.subnetwork and (
        f"--subnetwork=regions/{job.region}/subnetworks/{job.subnetwork}"
    )
    return (
        "--runner=DataflowRunner",
        f"--project={job.project}",
        f"--region={job.region}",
        f"--job_name={job.name}",
        f"--temp_location={job.temp}",
        f"--service_account_email={job.account}",
        f"--sdk_container_image={job.image}",
        "--sdk_location=container",
        "--no_use_public_ips",
        *([subnetwork] if subnetwork else []),
        f"--machine_type={job.machine_type}",
        "--autoscaling_algorithm=THROUGHPUT_BASED",
        f"--max_num_workers={job.max_workers}",
        "--experiments=use_runner_v2",
        *(_ONE_A_CORE if job.collecting else _ONE_AT_A_TIME),
    )
