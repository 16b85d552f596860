"""Beam transforms over the pure functions: elements, labels and counters, no more.

Every element is a frozen value of plain values: what to do, never the data itself.
Every step has a label, which services show; without one its name is made of whatever it
calls.
"""

import functools
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import apache_beam as beam
from apache_beam.metrics import Metrics

from pipeline.assembly.parts import divide, write_parts
from pipeline.assembly.plan import PartPlan
from pipeline.assembly.relabel import LabelsPlan, write_labels
from pipeline.collection.scripted import EpisodeCollector
from pipeline.collection.staging import EpisodePlan, stage
from pipeline.domains.datasets import parse_dataset
from pipeline.store.errors import UnseenFileError, WorkerError
from pipeline.store.manifest import DATASET_MANIFEST, DatasetManifest, PartManifest

_Made = TypeVar("_Made")
Commit = Callable[[Sequence[PartManifest]], DatasetManifest]

COUNTERS = "vast_rl"  # namespace of all our counters
EPISODES_COLLECTED = "episodes_collected"
ROWS_COLLECTED = "rows_collected"
PARTS_FINISHED = "parts_finished"
ROWS_FINISHED = "rows_finished"
EPISODES_DROPPED = "episodes_dropped"


def create(values: Sequence[Any], runner: object) -> beam.Create:
    """Beam's ``Create``, in a job that holds the values once.

    Beam puts them in twice: for the workers, and for whoever looks at which transform
    it was. Of all runners, Dask's alone does that.

    Args:
        values: The elements.
        runner: Where they will travel to.

    Returns:
        The transform.
    """
    transform = beam.Create(values)
    if type(runner).__name__ != "DaskRunner":
        transform.to_runner_api_parameter = functools.partial(
            beam.PTransform.to_runner_api_parameter, transform
        )
    return transform


class CollectEpisodes(beam.PTransform):  # type: ignore[misc]
    """Makes and stages episodes: ``EpisodePlan`` to its rows, ``int``."""

    def expand(self, plans: beam.PCollection) -> beam.PCollection:
        """Spreads the episodes over all workers, then makes them."""
        return (
            plans
            | "Spread" >> beam.Reshuffle()
            | "Collect" >> beam.ParDo(_CollectEpisode())
        )


class DivideInputs(beam.PTransform):  # type: ignore[misc]
    """Prepares inputs of many runs: runs of one source, a list each, to single runs.

    Args:
        runs: How many runs there are in all.
    """

    def __init__(self, runs: int) -> None:
        super().__init__()
        self._runs = runs

    def expand(self, runs: beam.PCollection) -> beam.PCollection:
        """Spreads the sources over all workers, then reads through the large ones."""
        return (
            runs
            | "Spread" >> beam.Reshuffle()
            | "Divide" >> beam.ParDo(DivideInput(self._runs))
        )


class WriteParts(beam.PTransform):  # type: ignore[misc]
    """Writes parts: runs of ``PartPlan`` to ``PartManifest``."""

    def expand(self, plans: beam.PCollection) -> beam.PCollection:
        """Spreads the runs over all workers, then writes them."""
        return (
            plans | "Spread" >> beam.Reshuffle() | "Write" >> beam.ParDo(_WritePart())
        )


class WriteLabels(beam.PTransform):  # type: ignore[misc]
    """Writes new labels of parts: ``LabelsPlan`` to ``PartManifest``."""

    def expand(self, plans: beam.PCollection) -> beam.PCollection:
        """Spreads the parts over all workers, then labels them."""
        return (
            plans | "Spread" >> beam.Reshuffle() | "Write" >> beam.ParDo(_WriteLabels())
        )


class CommitStore(beam.PTransform):  # type: ignore[misc]
    """Commits a store once all parts are there: to its ``DatasetManifest``.

    Args:
        commit: Commits, given the manifests of all parts. It may be called again.
    """

    def __init__(self, commit: Commit) -> None:
        super().__init__()
        self._commit = commit

    def expand(self, parts: beam.PCollection) -> beam.PCollection:
        """Gathers the parts' manifests, then commits."""
        return (
            parts
            # There is a part: what no parts come to would be computed on the side.
            | "Gather" >> beam.combiners.ToList().without_defaults()
            # Without a label of its own, its name is the `repr` of the whole plan.
            | "Commit" >> beam.Map(self._commit)
        )


def named(where: str, work: Callable[[], _Made], *, reads: str | None = None) -> _Made:
    """Does a worker's work, and says of any error which work it was.

    Args:
        where: File, part and episodes.
        work: To do.
        reads: The file that it reads, local or ``gs://``.

    Returns:
        What it returns.

    Raises:
        UnseenFileError: If it failed, and that file is not there for this worker.
        WorkerError: If it failed in a way that nobody has foreseen.
        Exception: What it raised, if that says itself what is wrong.
    """
    try:
        return work()
    except Exception as error:
        if reads and "://" not in reads and not os.path.exists(reads):
            raise UnseenFileError.of(reads) from error
        if isinstance(error, OSError) or hasattr(error, "exit_code"):
            raise
        said = " ".join(str(error).split()) or "no message"
        raise WorkerError(f"{where}: {type(error).__name__}: {said}") from error


# Those of a process that nobody collects with, by data set and rows. Some runners make
# a DoFn for each element, and making an environment takes a second or two.
_IDLE: defaultdict[tuple[str, int], list[EpisodeCollector]] = defaultdict(list)


class _CollectEpisode(beam.DoFn):  # type: ignore[misc]
    def __init__(self) -> None:
        self._episodes = Metrics.counter(COUNTERS, EPISODES_COLLECTED)
        self._rows = Metrics.counter(COUNTERS, ROWS_COLLECTED)

    def process(self, plan: EpisodePlan) -> Iterator[int]:
        idle = _IDLE[plan.dataset, plan.rows]

        def collect() -> None:
            try:
                collector = idle.pop()
            except IndexError:
                domain = parse_dataset(plan.dataset)
                collector = EpisodeCollector(domain, rows=plan.rows)
            stage(plan, collector.collect(plan.seed))
            idle.append(collector)

        named(f"{plan.dataset}, {plan.split} episode {plan.index}", collect)
        self._episodes.inc()
        self._rows.inc(plan.rows)
        yield plan.rows


class DivideInput(beam.DoFn):  # type: ignore[misc]
    """Prepares the input of many runs.

    Args:
        runs: How many runs there are of all inputs.
    """

    def __init__(self, runs: int) -> None:
        self.runs = runs

    def process(
        self, runs: Sequence[tuple[PartPlan, ...]]
    ) -> Iterator[Sequence[PartPlan]]:
        """Yields the runs of one input, prepared."""
        plan = runs[0][0]
        yield from named(
            f"{plan.origin.name}, read through for {len(runs)} workers",
            lambda: divide(runs),
            reads=getattr(plan.source, "path", None),
        )


class _WritePart(beam.DoFn):  # type: ignore[misc]
    def __init__(self) -> None:
        self._parts = Metrics.counter(COUNTERS, PARTS_FINISHED)
        self._rows = Metrics.counter(COUNTERS, ROWS_FINISHED)
        self._dropped = Metrics.counter(COUNTERS, EPISODES_DROPPED)

    def process(self, run: Sequence[PartPlan]) -> Iterator[PartManifest]:
        parts = write_parts(run)
        for plan in run:
            first = plan.episodes.first_episode
            part = named(
                f"{plan.origin.name}, part {plan.index} (episodes {first} to "
                f"{first + plan.episodes.episodes - 1})",
                lambda: next(parts),
                reads=getattr(plan.source, "path", None),
            )
            self._parts.inc()
            self._rows.inc(part.rows)
            for reason, episodes in part.dropped.items():
                self._dropped.inc(len(episodes))
                by_reason = Metrics.counter(COUNTERS, f"{EPISODES_DROPPED}_{reason}")
                by_reason.inc(len(episodes))
            yield part


class _WriteLabels(beam.DoFn):  # type: ignore[misc]
    def __init__(self) -> None:
        self._parts = Metrics.counter(COUNTERS, PARTS_FINISHED)
        self._rows = Metrics.counter(COUNTERS, ROWS_FINISHED)

    def process(self, plan: LabelsPlan) -> Iterator[PartManifest]:
        part = named(
            f"{plan.root}, labels of part {plan.part.index}",
            lambda: write_labels(plan),
            reads=f"{plan.root}/{DATASET_MANIFEST}",
        )
        self._parts.inc()
        self._rows.inc(part.rows)
        yield part
