"""Writes the parts of a store.

A Beam worker calls `write_parts` with plans. Runners may call a worker again for the
same plans, or call two workers at once: both write the same bytes, which does no harm.
This module itself knows nothing of Beam.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.assembly.actions import ActionRange
from pipeline.assembly.known_episodes import Digests, digest_episodes
from pipeline.assembly.labels import label_episodes
from pipeline.assembly.plan import PartPlan
from pipeline.sources.base import Block, Divisible, Rows
from pipeline.store import files, layout, schema
from pipeline.store.errors import BadEpisodeError
from pipeline.store.manifest import PartManifest
from pipeline.store.moments import Summary
from pipeline.store.reader import read_part
from pipeline.store.writer import PartWriter

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
Columns = dict[str, Array]

# Without seek points a run inflates all of the file before it: half the file on
# average. Noting seek points costs one reading of the file at about 1.8 times the cost,
# which n runs gain back from n * 0.5 > 1.8 + 0.5 on.
_WORTH_DIVIDING = 5


def is_worth_dividing(runs: Sequence[tuple[PartPlan, ...]]) -> bool:
    """Tells whether `divide` saves time for runs of one source."""
    if len(runs) < _WORTH_DIVIDING:
        return False
    return isinstance(runs[0][0].source, Divisible)


def divide(runs: Sequence[tuple[PartPlan, ...]]) -> list[tuple[PartPlan, ...]]:
    """Prepares an input so that several workers can read it from different places.

    Args:
        runs: Runs of one source, in order, that different workers will write.

    Returns:
        The same runs, with seek points in their sources if that pays.

    Raises:
        DataFormatError: If any bytes of the input are damaged.
    """
    # Parts that an interrupted command has finished need no seek points.
    missing = [run for run in runs if not all(map(_find_written, run))]
    source = runs[0][0].source
    if not isinstance(source, Divisible) or not is_worth_dividing(missing):
        return list(runs)
    sources = source.starting_at([run[0].episodes for run in missing])
    prepared = {
        run[0].index: tuple(dataclasses.replace(plan, source=source) for plan in run)
        for run, source in zip(missing, sources, strict=True)
    }
    return [prepared.get(run[0].index, run) for run in runs]


def write_parts(plans: Sequence[PartPlan]) -> Iterator[PartManifest]:
    """Writes parts of one source in one pass over it, except those already finished.

    Args:
        plans: Plans of the parts, in order.

    Yields:
        Manifests of all the parts, in order. A part whose episodes are all bad has no
        rows and no files.

    Raises:
        BadEpisodeError: If an episode is bad and the plan refuses bad ones.
        DataFormatError: If the input is damaged.
    """
    # An interrupted command that is repeated writes only the parts that are missing.
    written = ((plan.index, _find_written(plan)) for plan in plans)
    finished = {index: part for index, part in written if part is not None}
    missing = [plan for plan in plans if plan.index not in finished]
    ranges = [block for plan in missing for block in plan.blocks()]
    # One stream serves all parts, because a compressed file can only be read from its
    # beginning or from a seek point.
    blocks = plans[0].source.read(ranges) if ranges else iter(())
    for plan in plans:
        if plan.index in finished:
            yield finished[plan.index]
        else:
            yield _write(plan, itertools.islice(blocks, len(plan.blocks())))


def _find_written(plan: PartPlan) -> PartManifest | None:
    """Returns the manifest of a plan's part if that part is finished, else None."""
    done = read_part(plan.root, plan.folder)
    return done if done is not None and done.plan == plan.digest() else None


def _write(plan: PartPlan, blocks: Iterator[Block]) -> PartManifest:
    """Writes one part from its blocks of episodes."""
    bad: dict[str, list[int]] = {}
    lengths: list[npt.NDArray[np.int64]] = []
    if not plan.keyed:
        # In a store of version 1 the folder of a part is not named after its plan.
        # Files that an unfinished command with another plan left there would mix with
        # those of this one, so they are deleted first.
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
    digests: list[Digests] = []
    summary = Summary()
    for read in blocks:
        block = read if plan.on_bad_episode == "refuse" else _drop_bad(plan, read, bad)
        if not len(block.lengths):
            continue
        columns = make_columns(plan, block)
        part.append(columns)
        summary.add(columns, block.lengths)
        lengths.append(block.lengths)
        digests.append(digest_episodes(columns, block.lengths))
    result = PartManifest(
        index=plan.index,
        split=plan.split,
        rows=0,
        episodes=0,
        statistics={},
        checksums={},
        origin=plan.origin,
        plan=plan.digest(),
        dropped={reason: tuple(indices) for reason, indices in sorted(bad.items())},
        key=plan.key,
    )
    # A part that is empty is not written: the commit only notes which episodes it had.
    if not lengths:
        return result
    kept = np.concatenate(lengths)
    result = dataclasses.replace(
        result,
        rows=int(kept.sum()),
        episodes=len(kept),
        statistics=summary.statistics(),
        checksums=part.finish(kept, np.concatenate(digests) if plan.keyed else None),
    )
    part.commit(result)
    return result


def make_columns(plan: PartPlan, block: Block) -> Columns:
    """Computes and checks all per-row arrays of a block, in the dtypes of the store.

    Args:
        plan: Plan of the part.
        block: Whole episodes, in the source's dtypes.

    Returns:
        ``[n, ...]`` for each field of the part.

    Raises:
        BadEpisodeError: If an episode is bad; the message names file, episode, row and
            value of the first bad one.
    """
    # The whole block is checked at once, which is fast. Only if that fails are its
    # episodes checked one by one, to name the bad one.
    try:
        return _label_and_check(plan, block.rows, block.lengths, where=plan.origin.name)
    except BadEpisodeError:
        for episode, rows in block.split():
            where = f"{plan.origin.name}, episode {episode}"
            try:
                _label_and_check(plan, rows, _length_of(rows), where=where)
            except BadEpisodeError as error:
                if error.reason == schema.OUTSIDE:
                    raise _add_range(plan, error) from error
                raise
        raise


def _drop_bad(plan: PartPlan, block: Block, bad: dict[str, list[int]]) -> Block:
    """Returns a block without its bad episodes, and records these by reason.

    Args:
        plan: Plan of the part.
        block: The block.
        bad: Indices of bad episodes by reason; those of the block are added.
    """
    try:
        _label_and_check(plan, block.rows, block.lengths, where="")
        return block
    except BadEpisodeError:
        dropped = []
        for episode, rows in block.split():
            try:
                _label_and_check(plan, rows, _length_of(rows), where="")
            except BadEpisodeError as error:
                bad.setdefault(error.reason, []).append(episode)
                dropped.append(episode)
        return block.without(dropped)


def _label_and_check(
    plan: PartPlan, rows: Rows, lengths: Int64, *, where: str
) -> Columns:
    """Casts, labels and checks rows of whole episodes."""
    stored = schema.cast_rows(rows, plan.action_scale)
    schema.check_rows(stored, where=where, given=rows, lengths=lengths)
    labels = label_episodes(plan.tasks, plan.discounts, stored, lengths)
    # Labels are checked as well: a finite float64 reward may be infinite as float32.
    schema.check_rows(labels, where=where)
    return {**stored, **labels}


def _length_of(rows: Rows) -> Int64:
    """Returns the length of one episode, ``i64[1]``; its longest field counts.

    Fields may still differ in length here, which `check_rows` reports.
    """
    return np.array([max(map(len, rows.values()))], np.int64)


def _add_range(plan: PartPlan, error: BadEpisodeError) -> BadEpisodeError:
    """Adds the range of all actions in the file to an error, and advice.

    The user has to choose between scaling and leaving episodes out, and for that needs
    to know how many rows are outside and how far.
    """
    actions = ActionRange.of(plan.source, plan.source.describe(), plan.action_scale)
    scale = plan.action_scale
    bounds = "[-1, 1]" if scale is None else f"{list(scale.low)} to {list(scale.high)}"
    share = f"{actions.outside / actions.rows:.2%} of the file's {actions.rows:,}"
    return BadEpisodeError(
        f"{error}. Outside {bounds} are {share} actions, which reach from "
        f"{actions.low.min():g} to {actions.high.max():g}. {_ADVICE[scale is None]}",
        reason=error.reason,
    )


# Advice by whether the store holds actions unscaled.
_ADVICE = {
    True: "Store them scaled with --action-bounds data (or LOW HIGH, those of the "
    "environment), which acting undoes; or leave such episodes out with "
    "--on-bad-episode skip",
    False: "The bounds are those the store was made with; leave such episodes out with "
    "--on-bad-episode skip, or write another store with wider --action-bounds",
}
