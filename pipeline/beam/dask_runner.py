"""Beam's runner for Dask, on a cluster that is started for it or one that is there.

Beam's own translates pipelines to Dask's bags, and is left to. What is ours is around
it: the cluster and its end, one task for each element, counters, and a commit that
sees all parts.
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
# As long as a cluster may take to give a job its first worker.
_WORKERS_S = 300.0
# Even so there is a port; a fixed one would be that of one cluster a machine.
_NO_DASHBOARD = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
_ENVIRONMENT = "distributed.nanny.pre-spawn-environ"
# By it a worker gives memory back to the system as soon as it is free, block by block,
# and asks for its pages anew: a part took 1.6 times the processor time.
_TRIM = "MALLOC_TRIM_THRESHOLD_"
# Looking at what a worker does, a hundred times a second, for a dashboard that nobody
# has: a part took 1.2 times the processor time.
_PROFILE = "distributed.worker.profile.enabled"


@dataclass(frozen=True)
class _Count:
    """What a bundle has counted under a name of Beam's."""

    name: Any
    value: int


@contextlib.contextmanager
def connected(options: PipelineOptions) -> Iterator["DaskRunner"]:
    """Starts a cluster on this machine, or goes to the one that is named.

    Args:
        options: With Beam's own for Dask; where they name no scheduler, a cluster of
            as many processes is started as the direct runner would have workers.

    Yields:
        A runner. Afterwards its cluster is ended, and of one that is not ours nothing
        is left behind but what the store holds.

    Raises:
        OSError: If the scheduler or a worker does not answer, or workers die.
        UsageError: If other versions are installed there than here.
    """
    asked = options.view_as(dask_runner.DaskOptions).get_all_options(
        drop_default=True, current_only=True
    )
    # An element is a part or an episode, minutes or seconds of work: a task each, so
    # that all workers have some, and little is lost with one of them.
    pieces = dask_runner.DaskOptions._extract_bag_kwargs(asked) or {"partition_size": 1}
    with contextlib.ExitStack() as stack:
        ours = not {"address", "scheduler_file"} & asked.keys()
        if ours:
            stack.enter_context(dask.config.set(_settings()))
            asked["address"] = stack.enter_context(
                LocalCluster(
                    n_workers=options.view_as(DirectOptions).direct_num_workers,
                    threads_per_worker=1,
                    processes=True,
                    # Whoever reaches a scheduler can have anything done: with this one
                    # none can speak who has not its certificate, made now.
                    security=True,
                    scheduler_kwargs=_NO_DASHBOARD,
                    # What goes wrong comes back as an exception.
                    silence_logs=logging.CRITICAL,
                    # As of other runners, a worker's memory is the system's matter.
                    memory_limit=None,
                )
            )
        client = stack.enter_context(_client(asked))
        if not ours:
            _check_versions(client)
        try:
            yield DaskRunner(client, pieces)
        except KilledWorker as error:
            raise OSError(
                "Dask's workers were killed, one after another, at the same task "
                f"({error.task}, last on {error.last_worker.address}); if the system "
                "killed them for memory, take fewer at once or smaller --part-rows"
            ) from error


def _settings() -> dict[str, Any]:
    """Dask's settings of a cluster of ours, whose workers are to lose no time."""
    environment = dask.config.get(_ENVIRONMENT)
    kept = {name: value for name, value in environment.items() if name != _TRIM}
    return {_ENVIRONMENT: kept, _PROFILE: False}


def _client(asked: dict[str, Any]) -> Client:
    where = asked.get("address") or asked.get("scheduler_file")
    try:
        return Client(**{"timeout": _CONNECT_S, **asked})
    except (OSError, ValueError) as error:
        raise OSError(
            f"--dask-address: expected the scheduler of a Dask cluster at {where}, and "
            f"none has answered ({error}); see whether it runs and can be reached"
        ) from error


def _check_versions(client: Client) -> None:
    """Refuses a cluster whose workers would write other data, or none."""
    where = client.scheduler.address
    try:
        client.wait_for_workers(1, timeout=_WORKERS_S)
    except TimeoutError as error:
        raise OSError(
            f"--dask-address: expected workers at {where}, none has come within "
            f"{_WORKERS_S:g} s; start some with `dask worker {where}`"
        ) from error
    here = installed_versions()
    try:
        there = client.run(installed_versions)
        # It reads the job as well.
        there[where] = client.run_on_scheduler(installed_versions)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--dask-address: expected vast-rl on the scheduler and all workers of "
            f"{where}, and one of them has not all of it ({error}); install there what "
            "is installed here"
        ) from error
    for each, versions in there.items():
        for name, version in here.items():
            if versions[name] != version:
                raise UsageError(
                    f"--dask-address: expected {name} {version} on {each}, as here, "
                    f"got {versions[name]}; install there what is installed here, or "
                    "the store would depend on who writes it"
                )


class DaskRunner(dask_runner.DaskRunner):  # type: ignore[misc]
    """Runs a pipeline on a Dask cluster.

    Args:
        client: Of the cluster.
        pieces: How a bag is made of elements.
    """

    def __init__(self, client: Client, pieces: dict[str, int]) -> None:
        super().__init__()
        self._client = client
        self._pieces = pieces

    def run_pipeline(self, pipeline: beam.Pipeline, options: Any) -> "_Result":
        """Starts a pipeline; as Beam's, but for what is done with it."""
        pipeline.replace_all(dask_overrides())
        bags = _Bags(self._pieces)
        pipeline.visit(bags)
        # One bag: of several, each would be optimised by itself, into tasks of its own
        # that do the same work.
        everything = dask.bag.concat([bags.last, *bags.counts])
        return _Result(self._client, [self._client.compute(everything)])


class _Bags(PipelineVisitor):  # type: ignore[misc]
    """Makes a bag of each step of a pipeline, and of what each has counted."""

    def __init__(self, pieces: dict[str, int]) -> None:
        self._pieces = pieces
        self._made: dict[AppliedPTransform, dask.bag.Bag] = {}
        self.counts: list[dask.bag.Bag] = []
        self.last: dask.bag.Bag = None

    def visit_transform(self, node: AppliedPTransform) -> None:
        # A bag that is the input of another on the side would be made once more.
        assert not node.side_inputs, node.full_label
        (value,) = node.inputs
        bag = self._made.get(value.producer)
        kind = _OPERATIONS.get(type(node.transform), NoOp)
        operation = kind(node, bag_kwargs=self._pieces)
        if isinstance(operation, ParDo):
            done = operation.apply(_Counted(bag, node.full_label))
            self.counts.append(done.map_partitions(operator.itemgetter(1)))
            bag = done.map_partitions(operator.itemgetter(0))
            if isinstance(node.transform.fn, DivideInput):
                # What comes of one element is one piece, and would be one worker's.
                bag = bag.repartition(npartitions=node.transform.fn.runs)
        else:
            bag = operation.apply(bag)
        self._made[node] = self.last = bag


@dataclass(frozen=True)
class _Counted:
    """A bag whose bundles come back with what was counted in them.

    What a lost worker has counted is lost with its results, and made again with them:
    so nothing is counted twice.
    """

    bag: dask.bag.Bag
    label: str

    def map(self, *arguments: Any) -> "_Counted":
        return _Counted(self.bag.map(*arguments), self.label)

    def map_partitions(self, apply: Any, *arguments: Any) -> dask.bag.Bag:
        return self.bag.map_partitions(_Bundle(self.label, apply), *arguments)


class _Tracker(MetricsContainer):  # type: ignore[misc]
    """What Beam's counters look for in their thread."""

    def update_metric(self, name: Any, value: int) -> None:
        self.get_metric_cell(name).update(value)


class _Bundle:
    """Does a bundle: its results, and what was counted. Dask shows it by its name."""

    def __init__(self, label: str, apply: Any) -> None:
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
    """Groups in one task: what is grouped is small, and all of one key.

    Dask would exchange pieces between all workers, tens of thousands for a thousand
    parts.
    """

    def apply(self, input_bag: dask.bag.Bag, side_inputs: Any = None) -> dask.bag.Bag:
        return super().apply(input_bag.repartition(npartitions=1), side_inputs)


_OPERATIONS = {**TRANSLATIONS, _GroupByKeyOnly: _GroupTogether}


class _Result(dask_runner.DaskRunnerResult):  # type: ignore[misc]
    """A pipeline that runs: what its last step makes, and what was counted."""

    def metrics(self) -> "_Metrics":
        counts: dict[Any, int] = {}
        (found,) = self.client.gather(self.futures)
        for each in found:
            if isinstance(each, _Count):
                counts[each.name] = counts.get(each.name, 0) + each.value
        return _Metrics(counts)


class _Metrics(MetricResults):  # type: ignore[misc]
    """Counters as Beam's runners report them."""

    def __init__(self, counts: dict[Any, int]) -> None:
        self._counts = counts

    def query(self, filter: Any = None) -> dict[str, list[MetricResult]]:
        found = [
            MetricResult(MetricKey("", name), committed=count, attempted=count)
            for name, count in self._counts.items()
        ]
        return {
            self.COUNTERS: [r for r in found if self.matches(filter, r.key)],
            self.DISTRIBUTIONS: [],
            self.GAUGES: [],
        }
