"""Runs pipelines on Dask: on a cluster started for the job, or on an existing one.

Beam's own runner translates transforms to Dask bags, and this module uses that
translation. It adds what Beam's runner lacks: it starts and ends the cluster, makes one
task for each element, reports counters, and gathers all parts before the commit.
"""

import contextlib
import logging
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import dask
import dask.bag
from apache_beam.metrics.execution import MetricKey, MetricResult, MetricsContainer
from apache_beam.metrics.metric import MetricResults
from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.pipeline import AppliedPTransform, PipelineVisitor
from apache_beam.runners.dask import dask_runner
from apache_beam.runners.dask.overrides import _GroupByKeyOnly, dask_overrides
from apache_beam.runners.dask.transform_evaluator import (
    TRANSLATIONS,
    GroupByKey,
    NoOp,
    ParDo,
)
from apache_beam.runners.worker.statesampler import set_current_tracker
from distributed import Client, KilledWorker, LocalCluster

from pipeline.assembly.plan import installed_versions
from pipeline.beam.transforms import DivideInput
from pipeline.store.errors import UsageError

_CONNECT_S = 30.0
# Clusters that grow on demand start a machine for the first worker of a job.
_WORKERS_S = 300.0
# The scheduler opens this port even without a dashboard. Port 0 takes a free one, so
# that two clusters can run on one machine.
_NO_DASHBOARD = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
_ENVIRONMENT = "distributed.nanny.pre-spawn-environ"
# Dask sets this variable so that workers return free memory to the system at once;
# later they ask for the same pages again. A part took 1.6 times the processor time.
_TRIM = "MALLOC_TRIM_THRESHOLD_"
# Dask samples the stacks of workers a hundred times a second for its dashboard, which
# is off here: a part took 1.2 times the processor time.
_PROFILE = "distributed.worker.profile.enabled"


@dataclass(frozen=True)
class _Count:
    """Value that a bundle added to a counter, with Beam's name of the counter."""

    name: Any
    value: int


@contextlib.contextmanager
def open_cluster(options: PipelineOptions) -> Iterator["DaskRunner"]:
    """Starts a cluster on this machine, or connects to the cluster that is named.

    Args:
        options: Beam's options, with those for Dask. If they name no scheduler, a
            cluster of ``direct_num_workers`` processes is started.

    Yields:
        A runner on the cluster. Afterwards a cluster that was started here is ended. On
        another cluster nothing is left behind.

    Raises:
        OSError: If the scheduler or a worker does not answer, or workers die.
        UsageError: If the cluster has other versions of packages than this machine.
    """
    client_options = options.view_as(dask_runner.DaskOptions).get_all_options(
        drop_default=True, current_only=True
    )
    # An element is a part or an episode: seconds or minutes of work. With one task for
    # each, all workers get work, and the loss of a worker costs little.
    bag_options = dask_runner.DaskOptions._extract_bag_kwargs(client_options)
    bag_options = bag_options or {"partition_size": 1}
    with contextlib.ExitStack() as stack:
        is_own = not {"address", "scheduler_file"} & client_options.keys()
        if is_own:
            stack.enter_context(dask.config.set(_make_settings()))
            client_options["address"] = stack.enter_context(
                LocalCluster(
                    n_workers=options.view_as(DirectOptions).direct_num_workers,
                    threads_per_worker=1,
                    processes=True,
                    # A scheduler executes code for anyone who can connect to it. With
                    # TLS and a certificate made here, other users cannot connect.
                    security=True,
                    scheduler_kwargs=_NO_DASHBOARD,
                    # Errors come back as exceptions; logs would repeat them.
                    silence_logs=logging.CRITICAL,
                    # Dask would restart a worker at its share of the memory, although
                    # workers need unlike amounts. Other runners have no limit either.
                    memory_limit=None,
                )
            )
        client = stack.enter_context(_connect(client_options))
        if not is_own:
            _check_versions(client)
        try:
            yield DaskRunner(client, bag_options)
        except KilledWorker as error:
            raise OSError(
                "Dask's workers were killed, one after another, at the same task "
                f"({error.task}, last on {error.last_worker.address}); if the system "
                "killed them for memory, take fewer at once or smaller --part-rows"
            ) from error


def _make_settings() -> dict[str, Any]:
    """Makes Dask settings without two defaults that slow workers down."""
    environment = dask.config.get(_ENVIRONMENT)
    kept = {name: value for name, value in environment.items() if name != _TRIM}
    return {_ENVIRONMENT: kept, _PROFILE: False}


def _connect(client_options: dict[str, Any]) -> Client:
    """Connects to a scheduler."""
    scheduler = client_options.get("address") or client_options.get("scheduler_file")
    try:
        return Client(**{"timeout": _CONNECT_S, **client_options})
    except (OSError, ValueError) as error:
        raise OSError(
            f"--dask-address: expected the scheduler of a Dask cluster at {scheduler}, "
            f"but none answered ({error}); check that it runs and can be reached from "
            "this machine"
        ) from error


def _check_versions(client: Client) -> None:
    """Refuses a cluster whose workers would write other data, or fail."""
    scheduler = client.scheduler.address
    try:
        client.wait_for_workers(1, timeout=_WORKERS_S)
    except TimeoutError as error:
        raise OSError(
            f"--dask-address: expected workers at {scheduler}, none came within "
            f"{_WORKERS_S:g} s; start some with `dask worker {scheduler}`"
        ) from error
    expected = installed_versions()
    try:
        installed = client.run(installed_versions)
        # The scheduler unpickles the job too, so it needs the same packages.
        installed[scheduler] = client.run_on_scheduler(installed_versions)
    except ModuleNotFoundError as error:
        raise UsageError(
            "--dask-address: expected vast-rl on the scheduler and on all workers of "
            f"{scheduler}, one of them lacks a module ({error}); install the packages "
            "of this machine on all of them"
        ) from error
    for process, versions in installed.items():
        for name, version in expected.items():
            if versions[name] != version:
                raise UsageError(
                    f"--dask-address: expected {name} {version} on {process}, as on "
                    f"this machine, got {versions[name]}; install the packages of this "
                    "machine there, or the bytes of the store would depend on which "
                    "worker wrote them"
                )


class DaskRunner(dask_runner.DaskRunner):  # type: ignore[misc]
    """Runs a pipeline on a Dask cluster.

    Args:
        client: Client of the cluster.
        bag_options: Arguments of ``dask.bag.from_sequence``.
    """

    def __init__(self, client: Client, bag_options: dict[str, int]) -> None:
        super().__init__()
        self._client = client
        self._bag_options = bag_options

    def run_pipeline(self, pipeline: beam.Pipeline, options: Any) -> "_Result":
        """Starts a pipeline, as Beam's method does, and counts what its steps count."""
        pipeline.replace_all(dask_overrides())
        bags = _Bags(self._bag_options)
        pipeline.visit(bags)
        # Results and counts are one bag, because Dask optimises each bag by itself: the
        # tasks that two bags share would run twice.
        everything = dask.bag.concat([bags.last, *bags.counts])
        return _Result(self._client, [self._client.compute(everything)])


class _Bags(PipelineVisitor):  # type: ignore[misc]
    """Makes a bag of each step's results, and a bag of each ParDo's counts."""

    def __init__(self, bag_options: dict[str, int]) -> None:
        self._bag_options = bag_options
        self._results: dict[AppliedPTransform, dask.bag.Bag] = {}
        self.counts: list[dask.bag.Bag] = []
        self.last: dask.bag.Bag = None

    def visit_transform(self, node: AppliedPTransform) -> None:
        # Dask would compute a bag twice if it were also a side input.
        assert not node.side_inputs, node.full_label
        (collection,) = node.inputs
        bag = self._results.get(collection.producer)
        kind = _OPERATIONS.get(type(node.transform), NoOp)
        operation = kind(node, bag_kwargs=self._bag_options)
        if isinstance(operation, ParDo):
            bundles = operation.apply(_CountingBag(bag, node.full_label))
            self.counts.append(bundles.map_partitions(operator.itemgetter(1)))
            bag = bundles.map_partitions(operator.itemgetter(0))
            if isinstance(node.transform.fn, DivideInput):
                # All runs of an input are in one partition, which a single worker would
                # write. This gives each run a partition of its own.
                bag = bag.repartition(npartitions=node.transform.fn.runs)
        else:
            bag = operation.apply(bag)
        self._results[node] = self.last = bag


@dataclass(frozen=True)
class _CountingBag:
    """A bag whose bundles return their counts beside their results.

    If a worker is lost, its counts are lost with its results, and Dask computes both
    again. So nothing is counted twice.
    """

    bag: dask.bag.Bag
    label: str

    def map(self, *arguments: Any) -> "_CountingBag":
        return _CountingBag(self.bag.map(*arguments), self.label)

    def map_partitions(self, apply: Any, *arguments: Any) -> dask.bag.Bag:
        return self.bag.map_partitions(_Bundle(self.label, apply), *arguments)


class _Tracker(MetricsContainer):  # type: ignore[misc]
    """Collects the counts of one bundle; Beam's counters find it by their thread."""

    def update_metric(self, name: Any, value: int) -> None:
        self.get_metric_cell(name).update(value)


class _Bundle:
    """Processes a bundle, and returns its results and counts."""

    def __init__(self, label: str, apply: Any) -> None:
        # Dask shows tasks by this name.
        self.__name__ = label
        self._apply = apply

    def __call__(
        self, items: Any, *arguments: Any
    ) -> tuple[Sequence[Any], list[_Count]]:
        tracker = _Tracker(self.__name__)
        set_current_tracker(tracker)
        try:
            results = self._apply(items, *arguments)
        finally:
            set_current_tracker(None)
        counters = tracker.get_cumulative().counters
        return results, [_Count(key.metric, value) for key, value in counters.items()]


class _GroupTogether(GroupByKey):  # type: ignore[misc]
    """Groups all elements in one task.

    The pipelines group only small manifests, under a single key. Dask's own grouping
    exchanges data between all pairs of tasks: tens of thousands for a thousand parts.
    """

    def apply(self, input_bag: dask.bag.Bag, side_inputs: Any = None) -> dask.bag.Bag:
        return super().apply(input_bag.repartition(npartitions=1), side_inputs)


_OPERATIONS = {**TRANSLATIONS, _GroupByKeyOnly: _GroupTogether}


class _Result(dask_runner.DaskRunnerResult):  # type: ignore[misc]
    """A running pipeline, which returns the last step's results and all counts."""

    def metrics(self) -> "_Metrics":
        totals: dict[Any, int] = {}
        (results,) = self.client.gather(self.futures)
        for result in results:
            if isinstance(result, _Count):
                totals[result.name] = totals.get(result.name, 0) + result.value
        return _Metrics(totals)


class _Metrics(MetricResults):  # type: ignore[misc]
    """Counters in the form in which Beam's runners report them."""

    def __init__(self, totals: dict[Any, int]) -> None:
        self._totals = totals

    def query(self, filter: Any = None) -> dict[str, list[MetricResult]]:
        counters = [
            MetricResult(MetricKey("", name), committed=total, attempted=total)
            for name, total in self._totals.items()
        ]
        return {
            self.COUNTERS: [c for c in counters if self.matches(filter, c.key)],
            self.DISTRIBUTIONS: [],
            self.GAUGES: [],
        }
