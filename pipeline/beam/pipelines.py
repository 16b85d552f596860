"""The four pipelines: which transforms run, and in which order."""

import functools
from collections.abc import Sequence

import apache_beam as beam

from pipeline.assembly.append import AppendPlan, commit_append
from pipeline.assembly.commit import commit_store
from pipeline.assembly.parts import is_worth_dividing
from pipeline.assembly.plan import StorePlan
from pipeline.assembly.relabel import RelabelPlan, commit_labels
from pipeline.beam.transforms import (
    CollectEpisodes,
    CommitStore,
    DivideInputs,
    WriteLabels,
    WriteParts,
    create,
)
from pipeline.collection.staging import EpisodePlan
from pipeline.store.claims import Claim


def define_collection(
    root: beam.Pipeline, episodes: Sequence[EpisodePlan]
) -> beam.PCollection:
    """Defines the pipeline that makes and stages episodes.

    Args:
        root: Pipeline to add the steps to.
        episodes: Episodes to make.

    Returns:
        ``int`` elements: the number of rows of each episode.
    """
    return root | "Episodes" >> create(episodes, root.runner) | CollectEpisodes()


def define_sharding(
    root: beam.Pipeline,
    plan: StorePlan,
    *,
    runs: int,
    divided: bool = False,
    claimed: Claim | None = None,
) -> beam.PCollection:
    """Defines the pipeline that writes and commits a store.

    Args:
        root: Pipeline to add the steps to.
        plan: Plan of the store.
        runs: Number of groups of parts; a worker writes one group at a time. One group
            for each worker reads the input the least often, because each group reads
            its file from the beginning. One group for each part spreads the work the
            furthest.
        divided: Whether to read compressed inputs once in advance, so that each group
            can start at its own rows. Inputs of few groups are not read in advance,
            because that would take longer than it saves.
        claimed: Claim under which the store is written and committed.

    Returns:
        One element, the `DatasetManifest` of the store.
    """
    return _write(root, plan, runs, divided) | CommitStore(
        functools.partial(commit_store, plan.without_lengths(), claimed=claimed)
    )


def define_appending(
    root: beam.Pipeline,
    plan: AppendPlan,
    *,
    runs: int,
    divided: bool = False,
    claimed: Claim | None = None,
) -> beam.PCollection:
    """Defines the pipeline that writes parts and adds them to a store.

    Args:
        root: Pipeline to add the steps to.
        plan: Plan of the new parts.
        runs: Number of groups of parts, as in `define_sharding`.
        divided: Whether to read large inputs once in advance, as in `define_sharding`.
        claimed: Claim under which the parts are written and committed.

    Returns:
        One element, the new `DatasetManifest` of the store.
    """
    return _write(root, plan.added, runs, divided) | CommitStore(
        functools.partial(commit_append, plan.without_lengths(), claimed=claimed)
    )


def define_relabelling(
    root: beam.Pipeline, plan: RelabelPlan, *, claimed: Claim | None = None
) -> beam.PCollection:
    """Defines the pipeline that writes new labels and commits them to a store.

    Args:
        root: Pipeline to add the steps to.
        plan: Plan of the labels.
        claimed: Claim under which the labels are written and committed.

    Returns:
        One element, the new `DatasetManifest` of the store.
    """
    return (
        root
        | "Parts" >> create(plan.parts, root.runner)
        | WriteLabels()
        | CommitStore(
            functools.partial(commit_labels, plan.without_parts(), claimed=claimed)
        )
    )


def _write(
    root: beam.Pipeline, plan: StorePlan, runs: int, divided: bool
) -> beam.PCollection:
    """Writes the parts of a plan; returns ``PartManifest`` elements."""
    by_source = plan.runs_by_source(runs)
    # The step that reads inputs in advance is left out of jobs that do not need it:
    # it would wait for a worker, and its elements would travel once more.
    if divided and any(map(is_worth_dividing, by_source)):
        count = sum(map(len, by_source))
        parts = root | "Parts" >> create(by_source, root.runner) | DivideInputs(count)
    else:
        parts = root | "Parts" >> create(plan.runs(runs), root.runner)
    return parts | WriteParts()
