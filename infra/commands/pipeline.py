"""``launch pipeline``: collects or shards here, on Dataflow, on Flink or on Spark."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict

import tyro

from infra.checks import names
from infra.errors import LaunchError
from infra.estimates.measured import MEASURED, find_collect_rate
from infra.submission import Submission, launch, make_command, read_version, to_yaml
from infra.targets import dataflow, flink, kubernetes
from pipeline.domains.datasets import parse_dataset
from pipeline.output import Output
from pipeline.store.units import format_duration, format_size

# Version of Beam in the images, from infra/constraints.txt; Beam's job server must have
# the same.
_BEAM = "2.77.0"
# Cores that each task manager's pool of workers requests where a Flink cluster is made
# for sharding; for collecting it is one.
_FLINK_SHARD_CORES = 2
# Kubernetes service account, which infra/setup_bucket.sh binds to a Google account.
_KUBERNETES_ACCOUNT = "vast-pipeline"


class _Buckets(TypedDict):
    """Folders in buckets that a submission reads and writes."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class Pipeline:
    """Collects episodes, or shards files, into a store.

    Attributes:
        target: Runner of the job; local is this machine.
        dataset: Name of the data set, such as cube-triple-play.
        out: Folder of the store.
        input: Files to shard: a file, a folder or a glob.
        episodes: Episodes to collect instead.
        seed: Seed of the collection.
        discounts: Discounts to store return sums for.
        rows: Rows of the input, if known; the estimate needs them.
        name: Name of the job; the last part of out by default.
        project: Google Cloud project.
        region: Region of the workers and of the bucket.
        image: Image of the workers, from infra/containers/pipeline.Dockerfile.
        service_account: Google service account of the workers.
        temp: gs:// folder for Dataflow's own files; tmp in the store's bucket by
            default.
        subnetwork: Subnetwork of the region; it needs Private Google Access.
        machine_type: Machine type of a Dataflow worker.
        max_workers: Largest number of machines, of Flink's task managers, or of
            processes here.
        namespace: Kubernetes namespace of a Flink cluster that is made for this job.
        job_endpoint: HOST:PORT of Beam's job server for a running Flink or Spark
            cluster; without it, a Flink cluster is made on Kubernetes for this job.
        flink_master: HOST:PORT of the running Flink cluster's REST interface, which
            cancels the job when this command ends.
        workers_at: localhost:PORT of the pool of Beam workers beside each task manager
            or Spark worker, or the path of the program vast-rl-worker there.
        dry_run: Print what would be submitted, and stop.
    """

    target: Literal["local", "dataflow", "flink", "spark"]
    dataset: str
    out: str
    input: str | None = None
    episodes: int | None = None
    seed: int = 0
    discounts: tuple[float, ...] = (0.99,)
    rows: int | None = None
    name: str | None = None
    project: str | None = None
    region: str | None = None
    image: str | None = None
    service_account: str | None = None
    temp: str | None = None
    subnetwork: str | None = None
    machine_type: str = "n2-standard-2"
    max_workers: int = 20
    namespace: str = "default"
    job_endpoint: str | None = None
    flink_master: str | None = None
    workers_at: str = f"localhost:{flink.POOL_PORT}"
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False

    def execute_with(self, output: Output, more: Sequence[str]) -> int:
        """Starts the pipeline, or prints what would be submitted."""
        return launch(self.make_submission(more), output, dry_run=self.dry_run)

    def make_submission(self, arguments: Sequence[str]) -> Submission:
        """Builds the submission.

        Args:
            arguments: Further options of Beam.

        Returns:
            The submission.

        Raises:
            LaunchError: If the job cannot succeed.
        """
        if (self.input is None) == (self.episodes is None):
            raise LaunchError(
                "expected either --input to shard or --episodes to collect, got "
                f"{'neither' if self.input is None else 'both'}; give one of them"
            )
        if self.max_workers < 1 or (self.episodes is not None and self.episodes < 1):
            raise LaunchError(
                "--max-workers and --episodes: expected at least 1 each, got "
                f"{self.max_workers} and {self.episodes}; raise the smaller one"
            )
        if self.rows is not None and self.rows < 1:
            raise LaunchError(
                f"--rows: expected at least 1, got {self.rows}; give the rows of the "
                "input, or leave the option out"
            )
        if self.target == "dataflow" and self.max_workers > dataflow.MOST_WORKERS:
            raise LaunchError(
                f"--max-workers: Dataflow takes up to {dataflow.MOST_WORKERS:,}, got "
                f"{self.max_workers:,}; give at most that"
            )
        if self.target == "flink" and self.job_endpoint is None:
            return self._flink_cluster(tuple(arguments))
        command = self._command()
        if self.target == "local":
            command += ("--workers", str(self.max_workers))
            beam: tuple[str, ...] = ()
        elif self.target == "dataflow":
            beam = dataflow.list_dataflow_arguments(self._dataflow_job())
        else:
            beam = self._engine_arguments()
        beam += tuple(arguments)
        return Submission(
            command=make_command(*command, *(("--", *beam) if beam else ())),
            document=None,
            costs=self._describe_cost(),
            region=self.region,
            **self._list_buckets(),
        )

    def _list_buckets(self) -> _Buckets:
        """Lists the folders in buckets that the job reads and writes."""
        given = () if self.input is None else (_find_folder(self.input),)
        return {
            "reads": names.select_buckets(*given),
            "writes": names.select_buckets(self.out),
        }

    def _command(self) -> tuple[str, ...]:
        store = ("--discounts", *map(str, self.discounts), "--out", self.out)
        if self.input is not None:
            shard = ("shard", self.input, "--dataset", self.dataset)
            return ("pipeline", *shard, *store)
        domain = parse_dataset(self.dataset)
        collect = ("collect", domain.environment_id)
        kind = ("--dataset-type", domain.dataset_type)
        count = ("--episodes", str(self.episodes), "--seed", str(self.seed))
        return ("pipeline", *collect, *kind, *count, *store)

    def _dataflow_job(self) -> dataflow.DataflowJob:
        store = self._store()
        return dataflow.DataflowJob(
            name=names.check_job_name(self._name(store), longest=63),
            project=names.check_project(self.project),
            region=names.check_region(self.region),
            image=names.check_image(self.image, version=read_version()),
            account=names.check_service_account(self.service_account),
            temp=str(names.parse_bucket_path(self.temp or f"gs://{store.bucket}/tmp")),
            subnetwork=names.check_subnetwork(self.subnetwork),
            machine_type=self.machine_type,
            max_workers=self.max_workers,
            collecting=self.episodes is not None,
        )

    def _store(self) -> names.BucketPath:
        """Parses the path of the store, for workers on other machines."""
        store = names.parse_bucket_path(self.out)
        if self.input is not None and not self.input.startswith("gs://"):
            raise LaunchError(
                f"--input: {self.input} is on this machine, where "
                f"{self.target.capitalize()}'s workers cannot read it; copy it to a "
                "bucket"
            )
        return store

    def _name(self, store: names.BucketPath) -> str:
        return self.name or store.name or store.bucket

    def _engine_arguments(self) -> tuple[str, ...]:
        """Makes Beam's arguments for a running cluster."""
        master = self.flink_master
        if self.target == "flink":
            names.check_address(master, "--flink-master")
        elif master is not None:
            raise LaunchError(
                "--flink-master: expected with --target flink alone, got it with "
                f"--target {self.target}; leave it out"
            )
        return flink.list_engine_arguments(
            names.check_address(self.job_endpoint, "--job-endpoint"),
            names.check_workers(self.workers_at),
            parallelism=self.max_workers,
            flink_master=master,
        )

    def _flink_cluster(self, arguments: tuple[str, ...]) -> Submission:
        """Builds the submission of a Flink cluster that is made for this job."""
        store = self._store()
        job = flink.FlinkJob(
            name=flink.check_cluster_name(self._name(store)),
            namespace=names.check_job_name(
                self.namespace, longest=63, option="--namespace"
            ),
            account=_KUBERNETES_ACCOUNT,
            image=names.check_image(self.image, version=read_version()),
            beam=_BEAM,
            region=names.check_region(self.region),
            arguments=self._command()[1:],
            beam_arguments=arguments,
            workers=self.max_workers,
            collecting=self.episodes is not None,
        )
        return Submission(
            command=kubernetes.APPLY,
            document=to_yaml(flink.make_flink_documents(job)),
            costs=(
                *self._describe_cost(),
                f"afterwards: kubectl delete flinkdeployment {job.name} --namespace "
                f"{job.namespace}, or its job manager stays",
            ),
            region=self.region,
            # The cluster may stay: only the launcher cannot be changed.
            find_earlier=kubernetes.make_finder(
                kubernetes.JOB,
                name=job.name,
                namespace=job.namespace,
                folder=self.out,
            ),
            **self._list_buckets(),
        )

    def _describe_cost(self) -> tuple[str, ...]:
        from infra.estimates import scale

        # Collected episodes all have the length that the environment ends them at.
        collecting = self.episodes is not None
        rows = self.rows
        if self.episodes is not None:
            rows = self.episodes * parse_dataset(self.dataset).episode_rows
        machines = {
            "local": f"this machine, {self.max_workers} processes",
            "flink": f"{self.max_workers} task managers of Flink",
            "spark": "as many cores as the Spark cluster gives",
            "dataflow": f"up to {self.max_workers} {self.machine_type}",
        }[self.target]
        cores = self._count_worker_cores()
        if rows is None:
            return (machines, "hours not known: give --rows for an estimate")
        collected = find_collect_rate(MEASURED, self.dataset)
        size = "its store's size not known"
        if collected is not None:
            size = f"store about {format_size(rows * collected.store_row_bytes)}"
            if collected.dataset != self.dataset.removesuffix("-v0"):
                size += f", by {collected.dataset}'s bytes a row"
        first = f"{machines}; {rows:,} rows, {size}"
        if not collecting:
            work = scale.estimate_sharding(
                MEASURED, rows=rows, workers=self.max_workers, cores=cores
            )
            rate = (
                f"{MEASURED.shard_dataset}'s {MEASURED.shard_rows_per_s:,.0f} rows/s "
                f"on {MEASURED.shard_cores} cores, for 20 files,"
            )
        elif collected is not None:
            work = scale.estimate_collecting(
                collected, rows=rows, workers=self.max_workers, cores=cores
            )
            rate = f"{collected.dataset}'s {collected.rows_per_s:,.0f} rows/s a core"
        else:
            return (
                first,
                "hours not known: no rate of collection was measured for "
                f"{self.dataset}",
            )
        hours = (
            # Spark has no option for the number of machines.
            "hours not known: Spark decides how many cores it uses; "
            if self.target == "spark"
            else f"about {format_duration(work.hours * 3600)} with all of them busy, "
        )
        return (
            first,
            f"{hours}{work.core_hours:,.1f} core hours, by {rate} as measured "
            "(tests/benchmarks/README.md); their start not counted",
        )

    def _count_worker_cores(self) -> int:
        """Counts the cores of a worker, as far as they are known from here."""
        if self.target == "dataflow":
            return _count_cores(self.machine_type)
        # Workers of other clusters are slots or processes, which may have a core each.
        made = self.target == "flink" and self.job_endpoint is None
        return _FLINK_SHARD_CORES if made and self.episodes is None else 1


def _find_folder(path: str) -> str:
    """Finds the folder to check of an input, which may be a glob.

    Args:
        path: File, folder or glob.

    Returns:
        The folder above the first wildcard; the path itself if it has none, because
        rights may have been granted on this folder alone.

    Example:
        >>> _find_folder("gs://vast-data/raw/part-?/*.npz")
        'gs://vast-data/raw'
    """
    start = re.split(r"[*?[]", path)[0]
    # A wildcard in the bucket's name is refused with the path as it was given.
    if start == path or "/" not in start.partition("://")[2]:
        return path
    return start.rpartition("/")[0]


def _count_cores(machine_type: str) -> int:
    """Reads the number of virtual cores from the name of a machine type."""
    match = re.fullmatch(r"[a-z0-9]+-[a-z]+-(\d+)", machine_type)
    if match is None or int(match[1]) < 1:
        raise LaunchError(
            "--machine-type: expected a machine type such as n2-standard-2, got "
            f"{machine_type!r}; choose one of Google's names"
        )
    return int(match[1])
