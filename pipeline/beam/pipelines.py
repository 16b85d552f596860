"""The pipelines, put together: what runs after what."""

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
        root: A pipeline, or a test's.
        episodes: What to make.

    Returns:
        Rows of each episode made.
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
        root: A pipeline, or a test's.
        plan: The store.
        runs: Groups of parts that workers take up. As many as there are workers read
            the input least often, one for each part spreads it furthest.
        divided: Whether large inputs are read through first, where that is less in all
            than each run's reading what is before it.
        claimed: The claim to write under.

    Returns:
        Its manifest, one element.
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
    """Defines the pipeline that writes parts and takes them into a store.

    Args:
        root: A pipeline, or a test's.
        plan: The parts.
        runs: As of `define_sharding`.
        divided: As of `define_sharding`.
        claimed: As of `define_sharding`.

    Returns:
        The store's manifest, one element.
    """
    return _write(root, plan.added, runs, divided) | CommitStore(
        functools.partial(commit_append, plan.without_lengths(), claimed=claimed)
    )


def define_relabelling(
    root: beam.Pipeline, plan: RelabelPlan, *, claimed: Claim | None = None
) -> beam.PCollection:
    """Defines the pipeline that writes new labels and moves a store over to them.

    Args:
        root: A pipeline, or a test's.
        plan: The labels.
        claimed: As of `define_sharding`.

    Returns:
        The store's manifest, one element.
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
    """Parts of a plan, written."""
    by_source = plan.runs_by_source(runs)
    if divided and any(map(is_worth_dividing, by_source)):
        count = sum(map(len, by_source))
        parts = root | "Parts" >> create(by_source, root.runner) | DivideInputs(count)
    else:
        parts = root | "Parts" >> create(plan.runs(runs), root.runner)
    return parts | WriteParts()
