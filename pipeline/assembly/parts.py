"""Writing the parts of a store. Pure but for the store itself.

Knows nothing of Beam: a worker calls `write_parts` with plans, and may be called again
without harm.
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
from pipeline.store.errors import BadEpisodeError, DataFormatError
from pipeline.store.manifest import PartManifest
from pipeline.store.moments import Summary
from pipeline.store.reader import read_part
from pipeline.store.writer import PartWriter

Array = npt.NDArray[Any]
Int64 = npt.NDArray[np.int64]
Columns = dict[str, Array]

# Half a file lies before a run of it on average, and to note where it can be taken up
# is to read it once, at some 1.8 times the cost.
_WORTH_DIVIDING = 5


def is_worth_dividing(runs: Sequence[tuple[PartPlan, ...]]) -> bool:
    """Tells whether runs of one source read less in all if `divide` prepares it."""
    if len(runs) < _WORTH_DIVIDING:
        return False
    return isinstance(runs[0][0].source, Divisible)


def divide(runs: Sequence[tuple[PartPlan, ...]]) -> list[tuple[PartPlan, ...]]:
    """Prepares the input of many runs, so that none has to read what is before it.

    Args:
        runs: Of one source, in order, to be written apart from each other.

    Returns:
        The same runs. Nothing is kept anywhere but in them.

    Raises:
        DataFormatError: If bytes of the input are damaged, wherever they are.
    """
    missing = [run for run in runs if not all(map(_find_written, run))]
    source = runs[0][0].source
    if not isinstance(source, Divisible) or not is_worth_dividing(missing):
        return list(runs)
    sources = source.starting_at([run[0].episodes for run in missing])
    prepared = {
        run[0].index: tuple(dataclasses.replace(plan, source=each) for plan in run)
        for run, each in zip(missing, sources, strict=True)
    }
    return [prepared.get(run[0].index, run) for run in runs]


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
    written = ((plan.index, _find_written(plan)) for plan in plans)
    finished = {index: part for index, part in written if part is not None}
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


def _find_written(plan: PartPlan) -> PartManifest | None:
    """The part, if it is there."""
    done = read_part(plan.root, plan.folder)
    return done if done is not None and done.plan == plan.digest() else None


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
    digests: list[Digests] = []
    summary = Summary()
    for read in blocks:
        block = read if plan.on_bad_episode == "refuse" else _good(plan, read, bad)
        if not len(block.lengths):
            continue
        columns = make_columns(plan, block)
        part.append(columns)
        summary.add(columns)
        lengths.append(block.lengths)
        digests.append(digest_episodes(columns, block.lengths))
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
        checksums=part.finish(kept, np.concatenate(digests) if plan.keyed else None),
        origin=plan.origin,
        plan=plan.digest(),
        dropped={reason: tuple(found) for reason, found in sorted(bad.items())},
        key=plan.key,
    )
    part.commit(result)
    return result


def make_columns(plan: PartPlan, block: Block) -> Columns:
    """Makes every per-row array of a block, as it is stored, and checks it.

    Args:
        plan: The part.
        block: Whole episodes, as their source has them.

    Returns:
        ``[n, ...]`` for each field of the part.

    Raises:
        BadEpisodeError: Naming file, episode, row and value of the first bad one.
    """
    try:
        return _checked(plan, block.rows, block.lengths, where=plan.origin.name)
    except BadEpisodeError:
        for episode, rows in block.split():
            where = f"{plan.origin.name}, episode {episode}"
            try:
                _checked(plan, rows, _length_of(rows), where=where)
            except BadEpisodeError as error:
                if error.reason == schema.OUTSIDE:
                    raise _with_range(plan, error) from error
                raise
        raise


def _good(plan: PartPlan, block: Block, bad: dict[str, list[int]]) -> Block:
    """The block without its bad episodes, which are noted by reason."""
    try:
        _checked(plan, block.rows, block.lengths, where="")
        return block
    except BadEpisodeError:
        dropped = []
        for episode, rows in block.split():
            try:
                _checked(plan, rows, _length_of(rows), where="")
            except BadEpisodeError as error:
                bad.setdefault(error.reason, []).append(episode)
                dropped.append(episode)
        return block.without(dropped)


def _checked(plan: PartPlan, rows: Rows, lengths: Int64, *, where: str) -> Columns:
    stored = schema.cast_rows(rows, plan.action_scale)
    schema.check_rows(stored, where=where, given=rows)
    labels = label_episodes(plan.tasks, plan.discounts, stored, lengths)
    schema.check_rows(labels, where=where)
    return {**stored, **labels}


def _length_of(rows: Rows) -> Int64:
    return np.array([max(map(len, rows.values()))], np.int64)


def _with_range(plan: PartPlan, error: BadEpisodeError) -> BadEpisodeError:
    """The error of an action outside its bounds, with what the whole file holds."""
    found = ActionRange.of(plan.source, plan.source.describe(), plan.action_scale)
    scale = plan.action_scale
    bounds = "[-1, 1]" if scale is None else f"{list(scale.low)} to {list(scale.high)}"
    share = f"{found.outside / found.rows:.2%} of the file's {found.rows:,} rows"
    return BadEpisodeError(
        f"{error}, {bounds}, as are those of {share}; its actions reach from "
        f"{found.low.min():g} to {found.high.max():g}. {_ADVICE[scale is None]}",
        reason=error.reason,
    )


# By whether the store's actions are in [-1, 1] as they are.
_ADVICE = {
    True: "Store them scaled with --action-bounds data (or LOW HIGH, those of the "
    "environment), which acting undoes; or leave such episodes out with "
    "--on-bad-episode skip",
    False: "The bounds are those the store was made with; leave such episodes out with "
    "--on-bad-episode skip, or write another store with wider --action-bounds",
}
