"""The pipelines, put together: what runs after what."""

from collections.abc import Sequence

import apache_beam as beam

from pipeline.plan import StorePlan
from pipeline.sources.collected import EpisodePlan
from pipeline.transforms import CollectEpisodes, CommitStore, WriteParts


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
    return root | "Episodes" >> beam.Create(episodes) | CollectEpisodes()


def define_sharding(
    root: beam.Pipeline, plan: StorePlan, *, runs: int
) -> beam.PCollection:
    """Defines the pipeline that writes and commits a store.

    Args:
        root: A pipeline, or a test's.
        plan: The store.
        runs: Groups of parts that workers take up. As many as there are workers read
            the input least often, one for each part spreads it furthest.

    Returns:
        Its manifest, one element.
    """
    return (
        root
        | "Parts" >> beam.Create(plan.runs(runs))
        | WriteParts()
        | CommitStore(plan)
    )
