"""Beam transforms, which wrap the functions of `assembly` and `collection`.

The transforms add labels, counters and error messages, and no other logic. Elements are
frozen dataclasses that describe work, and never hold rows. Every step has a label,
because Beam would otherwise name it after the `repr` of the function it calls, which
may hold a whole plan.
"""

import functools
import os
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import apache_beam as beam
from apache_beam.metrics import Metrics

from pipeline.assembly.parts import divide, write_parts
from pipeline.assembly.plan import PartPlan, installed_versions
from pipeline.assembly.relabel import LabelsPlan, write_labels
from pipeline.collection.scripted import EpisodeCollector
from pipeline.collection.staging import EpisodePlan, stage
from pipeline.domains.datasets import parse_dataset
from pipeline.sources.base import Source
from pipeline.sources.own import UserSource
from pipeline.store.errors import UnseenFileError, UsageError, WorkerError
from pipeline.store.manifest import DATASET_MANIFEST, DatasetManifest, PartManifest

_Made = TypeVar("_Made")
Commit = Callable[[Sequence[PartManifest]], DatasetManifest]

COUNTERS = "vast_rl"  # Namespace of these counters; runners report others as well.
EPISODES_COLLECTED = "episodes_collected"
ROWS_COLLECTED = "rows_collected"
PARTS_FINISHED = "parts_finished"
ROWS_FINISHED = "rows_finished"
EPISODES_DROPPED = "episodes_dropped"


def create(values: Sequence[Any], runner: object) -> beam.Create:
    """Makes Beam's ``Create`` without the second copy of the values in the job.

    Beam serialises the values as input of the workers, and once more as a field of the
    pickled transform. The second copy would double a job, which may be megabytes.

    Args:
        values: Elements to create.
        runner: Runner of the pipeline.

    Returns:
        The transform.
    """
    transform = beam.Create(values)
    # Dask's runner is the only one that unpickles the transform, to see its class.
    if type(runner).__name__ != "DaskRunner":
        transform.to_runner_api_parameter = functools.partial(
            beam.PTransform.to_runner_api_parameter, transform
        )
    return transform


class CollectEpisodes(beam.PTransform):  # type: ignore[misc]
    """Makes and stages episodes: from ``EpisodePlan`` to ``int``, the rows of each."""

    def expand(self, plans: beam.PCollection) -> beam.PCollection:
        """Spreads the episodes over all workers, then makes them."""
        return (
            plans
            | "Spread" >> beam.Reshuffle()
            | "Collect" >> beam.ParDo(_CollectEpisode())
        )


class DivideInputs(beam.PTransform):  # type: ignore[misc]
    """Prepares inputs: from lists of runs, one list for each source, to single runs.

    Args:
        runs: Number of runs of all sources.
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
    """Writes parts: from runs, tuples of ``PartPlan``, to ``PartManifest``."""

    def expand(self, plans: beam.PCollection) -> beam.PCollection:
        """Spreads the runs over all workers, then writes them."""
        return (
            plans | "Spread" >> beam.Reshuffle() | "Write" >> beam.ParDo(_WritePart())
        )


class WriteLabels(beam.PTransform):  # type: ignore[misc]
    """Writes new labels of parts: from ``LabelsPlan`` to ``PartManifest``."""

    def expand(self, plans: beam.PCollection) -> beam.PCollection:
        """Spreads the parts over all workers, then labels them."""
        return (
            plans | "Spread" >> beam.Reshuffle() | "Write" >> beam.ParDo(_WriteLabels())
        )


class CommitStore(beam.PTransform):  # type: ignore[misc]
    """Commits a store: from ``PartManifest`` of all parts to one ``DatasetManifest``.

    Args:
        commit: Function that commits, given the manifests of all parts. Runners may
            call it more than once.
    """

    def __init__(self, commit: Commit) -> None:
        super().__init__()
        self._commit = commit

    def expand(self, parts: beam.PCollection) -> beam.PCollection:
        """Gathers the parts' manifests, then commits."""
        return (
            parts
            # A store has at least one part, so no default is needed. Beam would make
            # the default from a side input, which our Dask runner does not support.
            | "Gather" >> beam.combiners.ToList().without_defaults()
            | "Commit" >> beam.Map(self._commit)
        )


def locate_errors(
    place: str, work: Callable[[], _Made], *, reads: str | None = None
) -> _Made:
    """Runs a worker's work, and names the work in errors that nobody expected.

    Args:
        place: File, part and episodes, for the message.
        work: Function that does the work.
        reads: Path of the file that the work reads, local or ``gs://``.

    Returns:
        The result of the work.

    Raises:
        UnseenFileError: If the work failed, and this worker does not see the file.
        WorkerError: If the work raised an exception that this project does not expect.
        Exception: Another exception of the work, whose message is clear by itself.
    """
    try:
        return work()
    except Exception as error:
        if reads and "://" not in reads and not os.path.exists(reads):
            raise UnseenFileError.of(reads) from error
        if isinstance(error, OSError) or hasattr(error, "exit_code"):
            raise
        text = " ".join(str(error).split()) or "no message"
        raise WorkerError(f"{place}: {type(error).__name__}: {text}") from error


def _find_file(source: Source) -> str | None:
    """Returns the file that a source reads, for `locate_errors`; None if unknown."""
    # The input of a user's reader may be no path, and then no worker would see it.
    path: str | None = getattr(source, "path", None)
    return None if isinstance(source, UserSource) else path


# Collectors of this process that are not in use, by data set and rows. They outlive
# their DoFn, because some runners make a DoFn for each element, and making an
# environment takes a second or two.
_IDLE: defaultdict[tuple[str, int], list[EpisodeCollector]] = defaultdict(list)


# Asked once for each process: some runners make a DoFn for each element.
_find_versions = functools.cache(installed_versions)


class _CheckedDoFn(beam.DoFn):  # type: ignore[misc]
    """A step that refuses to run on a worker with other versions of packages.

    Args:
        packages: Names of the packages that the step depends on.
    """

    def __init__(self, *packages: str) -> None:
        # A DoFn is made on the machine that submits the job.
        self._expected = {name: _find_versions()[name] for name in packages}

    def setup(self) -> None:
        """Compares the worker's versions, before it handles an element."""
        for name, version in self._expected.items():
            if (found := _find_versions()[name]) != version:
                raise UsageError(
                    f"worker {socket.gethostname()}: expected {name} {version}, as "
                    f"where the job was submitted, got {found}; install that version, "
                    "such as by the image of infra/containers/pipeline.Dockerfile"
                )


class _CollectEpisode(_CheckedDoFn):
    def __init__(self) -> None:
        # Episodes depend on the simulator, whose version the store records.
        super().__init__("vast-rl", "ogbench", "mujoco")
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
            # A collector that raised is not used again: its environment may be broken.
            idle.append(collector)

        locate_errors(f"{plan.dataset}, {plan.split} episode {plan.index}", collect)
        self._episodes.inc()
        self._rows.inc(plan.rows)
        yield plan.rows


class DivideInput(beam.DoFn):  # type: ignore[misc]
    """Prepares the input of many runs.

    Args:
        runs: Number of runs of all inputs; the Dask runner repartitions by it.
    """

    def __init__(self, runs: int) -> None:
        self.runs = runs

    def process(
        self, runs: Sequence[tuple[PartPlan, ...]]
    ) -> Iterator[Sequence[PartPlan]]:
        """Prepares the input of some runs, and yields the runs."""
        plan = runs[0][0]
        yield from locate_errors(
            f"{plan.origin.name}, read through for {len(runs)} workers",
            lambda: divide(runs),
            reads=_find_file(plan.source),
        )


class _WritePart(_CheckedDoFn):
    def __init__(self) -> None:
        super().__init__("vast-rl")
        self._parts = Metrics.counter(COUNTERS, PARTS_FINISHED)
        self._rows = Metrics.counter(COUNTERS, ROWS_FINISHED)
        self._dropped = Metrics.counter(COUNTERS, EPISODES_DROPPED)

    def process(self, run: Sequence[PartPlan]) -> Iterator[PartManifest]:
        parts = write_parts(run)
        for plan in run:
            first = plan.episodes.first_episode
            part = locate_errors(
                f"{plan.origin.name}, part {plan.index} (episodes {first} to "
                f"{first + plan.episodes.episodes - 1})",
                lambda: next(parts),
                reads=_find_file(plan.source),
            )
            self._parts.inc()
            self._rows.inc(part.rows)
            for reason, episodes in part.dropped.items():
                self._dropped.inc(len(episodes))
                by_reason = Metrics.counter(COUNTERS, f"{EPISODES_DROPPED}_{reason}")
                by_reason.inc(len(episodes))
            yield part


class _WriteLabels(_CheckedDoFn):
    def __init__(self) -> None:
        super().__init__("vast-rl")
        self._parts = Metrics.counter(COUNTERS, PARTS_FINISHED)
        self._rows = Metrics.counter(COUNTERS, ROWS_FINISHED)

    def process(self, plan: LabelsPlan) -> Iterator[PartManifest]:
        part = locate_errors(
            f"{plan.root}, labels of part {plan.part.index}",
            lambda: write_labels(plan),
            reads=f"{plan.root}/{DATASET_MANIFEST}",
        )
        self._parts.inc()
        self._rows.inc(part.rows)
        yield part
