"""Makes Beam's arguments for Dataflow, which ``python -m pipeline`` passes on."""

from dataclasses import dataclass

# Dataflow's limit for a job; the service would refuse more after minutes.
MOST_WORKERS = 1000
# Sharding: one process with one thread on each machine. One thread writes a part; its
# helpers keep two cores busy, and a part takes up to 1 GB of memory. The service's
# default, a dozen threads for each core, would write two dozen parts at once.
_ONE_AT_A_TIME = (
    "--number_of_worker_harness_threads=1",
    "--experiments=no_use_multiple_sdk_containers",
)
# Collecting: one process with one thread on each core, because MuJoCo uses one core.
_ONE_A_CORE = ("--number_of_worker_harness_threads=1",)


@dataclass(frozen=True)
class DataflowJob:
    """Settings of a Dataflow job.

    Attributes:
        name: Name of the job.
        project: Google Cloud project.
        region: Region of the workers.
        image: Image of the pipeline, from infra/containers/pipeline.Dockerfile.
        account: Service account of the workers.
        temp: ``gs://`` folder for the service's own files.
        subnetwork: Subnetwork with Private Google Access, which workers without public
            addresses need; None for the region's subnetwork of the default network.
        machine_type: Machine type of a worker.
        max_workers: Largest number of workers that the service scales to.
        collecting: Whether the job collects instead of sharding.
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


def list_dataflow_arguments(job: DataflowJob) -> tuple[str, ...]:
    """Makes Beam's arguments for a Dataflow job."""
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
        # Workers use the Beam of the image, and download none.
        "--sdk_location=container",
        # Workers need no address that the internet could reach.
        "--no_use_public_ips",
        *([subnetwork] if subnetwork else []),
        f"--machine_type={job.machine_type}",
        "--autoscaling_algorithm=THROUGHPUT_BASED",
        f"--max_num_workers={job.max_workers}",
        # Custom images need the second version of Dataflow's runner.
        "--experiments=use_runner_v2",
        *(_ONE_A_CORE if job.collecting else _ONE_AT_A_TIME),
    )
