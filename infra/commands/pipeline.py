"""``launch pipeline``: collecting or sharding, here, on Dataflow, Flink or Spark."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict

import tyro

from infra.checks import names
from infra.errors import LaunchError
from infra.estimates.measured import MEASURED
from infra.submission import Submission, launch, python, to_yaml, version
from infra.targets import dataflow, flink
from pipeline.domains.datasets import parse_dataset
from pipeline.output import Output
from pipeline.store.units import format_duration, format_size

# Of infra/constraints.txt: what the images hold.
_BEAM = "2.77.0"
# infra/setup_bucket.sh binds it to Google's.
_KUBERNETES_ACCOUNT = "vast-pipeline"


class _Buckets(TypedDict):
    """Folders in buckets that a submission reads and writes."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class Pipeline:
    """Collects episodes, or shards files, into a store.

    Attributes:
        target: Where.
        dataset: Name of the data set, such as cube-triple-play.
        out: Folder of the store.
        input: Files to shard: a file, a folder or a glob.
        episodes: Episodes to collect instead.
        seed: Of the collection.
        discounts: Discounts to store return sums for.
        rows: Rows of the input, if known: for the estimate.
        name: Of the job; the last part of out if not given.
        project: Google Cloud project.
        region: Of the workers, and of the bucket.
        image: Of the workers, from infra/containers/pipeline.Dockerfile.
        service_account: Google service account the workers run as.
        temp: gs:// folder for Dataflow's own files; tmp beside the store if not given.
        subnetwork: Subnetwork of the region; needs Private Google Access.
        machine_type: Of a Dataflow worker.
        max_workers: Machines, or task managers of Flink, or processes here.
        namespace: Kubernetes namespace of a Flink cluster that is made for this job.
        job_endpoint: HOST:PORT of Beam's job server for a Flink or Spark cluster that
            runs; without it, Flink gets a cluster of its own on Kubernetes.
        flink_master: HOST:PORT of that Flink cluster's REST interface, by which the
            job is ended with this command.
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
        """Starts it, or prints what would be started."""
        return launch(self.submission(more), output, dry_run=self.dry_run)

    def submission(self, arguments: Sequence[str]) -> Submission:
        """Puts it together.

        Args:
            arguments: More of Beam's own.

        Returns:
            What is submitted.

        Raises:
            LaunchError: If it cannot succeed.
        """
        if (self.input is None) == (self.episodes is None):
            raise LaunchError(
                "expected either --input to shard or --episodes to collect"
            )
        if self.max_workers < 1 or (self.episodes or 1) < 1:
            raise LaunchError("--max-workers and --episodes: expected at least 1")
        if self.target == "dataflow" and self.max_workers > dataflow.MOST_WORKERS:
            raise LaunchError(
                f"--max-workers: Dataflow takes up to {dataflow.MOST_WORKERS:,}, got "
                f"{self.max_workers:,}"
            )
        if self.target == "flink" and self.job_endpoint is None:
            return self._flink_cluster(tuple(arguments))
        command = self._command()
        if self.target == "local":
            command += ("--workers", str(self.max_workers))
            beam: tuple[str, ...] = ()
        elif self.target == "dataflow":
            beam = dataflow.dataflow_arguments(self._dataflow_job())
        else:
            beam = self._engine_arguments()
        beam += tuple(arguments)
        return Submission(
            command=python(*command, *(("--", *beam) if beam else ())),
            document=None,
            takes=self._takes(),
            region=self.region,
            **self._buckets(),
        )

    def _buckets(self) -> _Buckets:
        """Folders in buckets that are read and written."""
        remote = [path for path in (self.input, self.out) if path and "://" in path]
        # What is below may be a glob.
        folders = {p: p.split("*")[0].rpartition("/")[0] for p in remote}
        for folder in folders.values():
            names.parse_bucket_path(folder)
        return {
            "reads": tuple(folders[path] for path in remote if path == self.input),
            "writes": tuple(path for path in remote if path == self.out),
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
            image=names.check_image(self.image, version=version()),
            account=names.check_service_account(self.service_account),
            temp=str(names.parse_bucket_path(self.temp or f"gs://{store.bucket}/tmp")),
            subnetwork=names.check_subnetwork(self.subnetwork),
            machine_type=self.machine_type,
            max_workers=self.max_workers,
            collecting=self.episodes is not None,
        )

    def _store(self) -> names.BucketPath:
        """The store, where workers elsewhere write it and read the input."""
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
        """Beam's arguments for a cluster that runs."""
        master = self.flink_master
        if self.target == "flink":
            names.check_address(master, "--flink-master")
        elif master is not None:
            raise LaunchError("--flink-master: expected with --target flink alone")
        return flink.engine_arguments(
            names.check_address(self.job_endpoint, "--job-endpoint"),
            names.check_workers(self.workers_at),
            parallelism=self.max_workers,
            flink_master=master,
        )

    def _flink_cluster(self, arguments: tuple[str, ...]) -> Submission:
        """Manifests of a cluster for this job."""
        store = self._store()
        job = flink.FlinkJob(
            name=flink.check_cluster_name(self._name(store)),
            namespace=names.check_job_name(
                self.namespace, longest=63, option="--namespace"
            ),
            account=_KUBERNETES_ACCOUNT,
            image=names.check_image(self.image, version=version()),
            beam=_BEAM,
            region=names.check_region(self.region),
            arguments=self._command()[1:],
            beam_arguments=arguments,
            workers=self.max_workers,
            collecting=self.episodes is not None,
        )
        return Submission(
            command=("kubectl", "apply", "--filename", "-"),
            document=to_yaml(flink.flink_documents(job)),
            takes=(
                *self._takes(),
                f"afterwards: kubectl delete flinkdeployment {job.name} --namespace "
                f"{job.namespace}, or its job manager stays",
            ),
            region=self.region,
            **self._buckets(),
        )

    def _takes(self) -> tuple[str, ...]:
        from infra.estimates import scale

        rows = self.rows
        if self.episodes is not None:
            rows = self.episodes * parse_dataset(self.dataset).episode_rows
        cores = _cores(self.machine_type) if self.target == "dataflow" else 1
        machines = {
            "local": f"this machine, {self.max_workers} processes",
            "flink": f"{self.max_workers} task managers of Flink",
            "spark": "as many cores as the Spark cluster gives",
            "dataflow": f"up to {self.max_workers} {self.machine_type}",
        }[self.target]
        if rows is None:
            return (machines, "hours not known: give --rows for an estimate")
        figures = scale.data_scale(
            MEASURED, transitions=rows, workers=self.max_workers, cores=cores
        )
        collecting = self.episodes is not None
        hours = figures.collect_h if collecting else figures.shard_h
        core_hours = figures.collect_core_h if collecting else figures.shard_core_h
        rate = (
            f"{MEASURED.collect_rows_per_s:,.0f} rows/s a core"
            if collecting
            else f"{MEASURED.shard_rows_per_s:,.0f} rows/s on "
            f"{MEASURED.shard_cores} cores"
        )
        return (
            f"{machines}; {rows:,} rows, "
            f"store about {format_size(figures.store_bytes)}",
            f"about {format_duration(hours * 3600)} with all of them busy, "
            f"{core_hours:,.1f} core hours, by {rate} as measured "
            "(tests/benchmarks/README.md); their start not counted",
        )


def _cores(machine_type: str) -> int:
    """Virtual cores of a machine type, by its name."""
    found = re.fullmatch(r"[a-z0-9]+-[a-z]+-(\d+)", machine_type)
    if found is None or int(found[1]) < 1:
        raise LaunchError(
            f"--machine-type: expected one such as n2-standard-2, got {machine_type!r}"
        )
    return int(found[1])
