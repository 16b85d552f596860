"""Writing the parts of a store. Pure but for the store itself.

Knows nothing of Beam: a worker calls `write_parts` with plans, and may be called again
without harm.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.assembly.labels import label_episodes
from pipeline.assembly.plan import PartPlan
from pipeline.sources.base import Block
from pipeline.store import files, layout, schema
from pipeline.store.errors import BadEpisodeError, DataFormatError
from pipeline.store.manifest import PartManifest
from pipeline.store.moments import Summary
from pipeline.store.reader import read_part
from pipeline.store.writer import PartWriter

Array = npt.NDArray[Any]


def write_parts(plans: Sequence[PartPlan]) -> Iterator[PartManifest]:
    """Writes parts of one source in one pass over it; those that are there stay.

    Args:
        plans: What to write and where, in order.

    Yields:
        The parts' manifests, in order.

    Raises:
        BadEpisodeError: If an episode is bad and the plan says to refuse it.
        DataFormatError: If the input is damaged, or no good episode is left.
    """
    finished = {}
    for plan in plans:
        done = read_part(plan.root, plan.folder)
        if done is not None and done.plan == plan.digest():
            finished[plan.index] = done
    missing = [plan for plan in plans if plan.index not in finished]
    ranges = [block for plan in missing for block in plan.blocks()]
    # One stream for them all: to start at a later row is to read all before it.
    blocks = plans[0].source.read(ranges) if ranges else iter(())
    for plan in plans:
        if plan.index in finished:
            yield finished[plan.index]
        else:
            yield _write(plan, itertools.islice(blocks, len(plan.blocks())))


def write_part(plan: PartPlan) -> PartManifest:
    """Writes one part alone, as `write_parts` does."""
    return next(write_parts([plan]))


def _write(plan: PartPlan, blocks: Iterator[Block]) -> PartManifest:
    bad: dict[str, list[int]] = {}
    lengths: list[npt.NDArray[np.int64]] = []
    if not plan.keyed:
        # Whatever an unfinished attempt left would be mixed in: of another plan, or of
        # a version that set no checksums.
        files.delete_where(
            plan.root,
            plan.folder,
            lambda name: layout.is_part_file(f"{plan.folder}/{name}"),
        )
    part = PartWriter(
        plan.root,
        plan.folder,
        plan.stored_fields(),
        rows=plan.episodes.rows,
        tasks=len(plan.tasks),
    )
    summary = Summary()
    for read in blocks:
        block = read
        if plan.on_bad_episode == "refuse":
            check_block(plan, block)
        else:
            block = _without_bad(block, bad)
        if not len(block.lengths):
            continue
        columns = {
            **block.rows,
            **label_episodes(plan.tasks, plan.discounts, block.rows, block.lengths),
        }
        part.append(columns)
        summary.add(columns)
        lengths.append(block.lengths)
    if not lengths:
        raise DataFormatError(
            f"{plan.origin.name}: all {plan.episodes.episodes} episodes from "
            f"{plan.episodes.first_episode} on are bad and nothing is left of this "
            "part; look into the input"
        )
    kept = np.concatenate(lengths)
    result = PartManifest(
        index=plan.index,
        split=plan.split,
        rows=int(kept.sum()),
        episodes=len(kept),
        statistics=summary.statistics(),
        checksums=part.finish(kept),
        origin=plan.origin,
        plan=plan.digest(),
        dropped={reason: tuple(found) for reason, found in sorted(bad.items())},
        key=plan.key,
    )
    part.commit(result)
    return result


def _without_bad(block: Block, bad: dict[str, list[int]]) -> Block:
    """The block without its bad episodes, which are noted by reason."""
    try:
        schema.check_episode(block.rows, where="")
        return block
    except BadEpisodeError:
        dropped = []
        for episode, rows in block.split():
            try:
                schema.check_episode(rows, where="")
            except BadEpisodeError as error:
                bad.setdefault(error.reason, []).append(episode)
                dropped.append(episode)
        return block.without(dropped)


def check_block(plan: PartPlan, block: Block) -> None:
    """Refuses a block that holds a bad episode.

    Args:
        plan: The part, for the error.
        block: Whole episodes.

    Raises:
        BadEpisodeError: Naming file, episode, row and value.
    """
    try:
        schema.check_episode(block.rows, where=plan.origin.name)
    except BadEpisodeError:
        for episode, rows in block.split():
            where = f"{plan.origin.name}, episode {episode}"
            schema.check_episode(rows, where=where)
        raise
