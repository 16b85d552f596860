"""``launch pipeline``: collecting or sharding, here, on Dataflow or on Flink."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import tyro

from infra.checks import names
from infra.errors import LaunchError
from infra.estimates.measured import MEASURED
from infra.submission import Submission, launch, python, version
from infra.targets import beam_runners
from pipeline.domains.datasets import parse_dataset
from pipeline.output import Output
from pipeline.store.units import format_duration, format_size


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
        max_workers: Machines, or Flink's parallelism, or processes here.
        job_endpoint: HOST:PORT of Beam's job server for Flink.
        worker_pool: HOST:PORT of a pool of Beam workers for Flink.
        dry_run: Print what would be submitted, and stop.
    """

    target: Literal["local", "dataflow", "flink"]
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
    job_endpoint: str | None = None
    worker_pool: str | None = None
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
        command = self._command()
        if self.target == "local":
            command += ("--workers", str(self.max_workers))
            beam: tuple[str, ...] = ()
        elif self.target == "flink":
            beam = beam_runners.flink_arguments(
                names.check_address(self.job_endpoint, "--job-endpoint"),
                names.check_address(self.worker_pool, "--worker-pool"),
                parallelism=self.max_workers,
            )
        else:
            beam = beam_runners.dataflow_arguments(self._dataflow_job())
        beam += tuple(arguments)
        remote = [path for path in (self.input, self.out) if path and "://" in path]
        for path in remote:
            # What is below may be a glob.
            names.parse_bucket_path(path.split("*")[0].rpartition("/")[0])
        return Submission(
            command=python(*command, *(("--", *beam) if beam else ())),
            document=None,
            takes=self._takes(),
            reads=tuple(
                path.split("*")[0].rpartition("/")[0]
                for path in remote
                if path == self.input
            ),
            writes=tuple(path for path in remote if path == self.out),
            region=self.region,
        )

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

    def _dataflow_job(self) -> beam_runners.DataflowJob:
        store = names.parse_bucket_path(self.out)
        for path in (self.input,) if self.input is not None else ():
            if not path.startswith("gs://"):
                raise LaunchError(
                    f"--input: {path} is on this machine, where Dataflow's workers "
                    "cannot read it; copy it to a bucket"
                )
        return beam_runners.DataflowJob(
            name=names.check_job_name(
                self.name or store.folder.rpartition("/")[2] or store.bucket, longest=63
            ),
            project=names.check_project(self.project),
            region=names.check_region(self.region),
            image=names.check_image(self.image, version=version()),
            account=names.check_service_account(self.service_account),
            temp=str(names.parse_bucket_path(self.temp or f"gs://{store.bucket}/tmp")),
            subnetwork=self.subnetwork,
            machine_type=self.machine_type,
            max_workers=self.max_workers,
            collecting=self.episodes is not None,
        )

    def _takes(self) -> tuple[str, ...]:
        from infra.estimates import scale

        rows = self.rows
        if self.episodes is not None:
            rows = self.episodes * parse_dataset(self.dataset).episode_rows
        cores = _cores(self.machine_type) if self.target == "dataflow" else 1
        machines = {
            "local": f"this machine, {self.max_workers} processes",
            "flink": f"{self.max_workers} slots of the Flink cluster",
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
