"""Writing the parts of a store, and committing it. Pure but for the store itself.

Knows nothing of Beam: a worker calls `write_parts` with plans, the last step of a
run calls `commit_store`, and either may be called again without harm.
"""

import contextlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.labels import label_episodes
from pipeline.plan import PartPlan, StorePlan
from pipeline.sources.base import Block
from pipeline.statistics import Moments
from pipeline.store import files, manifest, schema
from pipeline.store.errors import BadEpisodeError, DataFormatError
from pipeline.store.manifest import DatasetManifest, PartManifest, Statistics
from pipeline.store.writer import PartWriter, read_part

Array = npt.NDArray[Any]

# Of two stores written into one folder, each would write into the other's parts.
_CLAIM = "shard.json"


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
        done = read_part(plan.root, plan.index)
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
    part = PartWriter(
        plan.root,
        plan.index,
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
    )
    part.commit(result)
    return result


class Summary:
    """Statistics of every field, gathered block by block."""

    def __init__(self) -> None:
        self._moments: dict[str, Moments] = {}

    def add(self, columns: Mapping[str, Array]) -> None:
        """Adds rows: ``[n, ...]`` for each field.

        Fields of several axes, such as images, are summarised by their last axis.
        """
        for name, values in columns.items():
            if values.ndim > 2:
                values = values.reshape(-1, values.shape[-1])
            found = Moments.of(values)
            known = self._moments.get(name)
            self._moments[name] = found if known is None else known.merge(found)

    def statistics(self) -> dict[str, Statistics]:
        """What was gathered, as it stands in a manifest."""
        return {name: each.to_statistics() for name, each in self._moments.items()}


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


def read_committed(root: str) -> DatasetManifest | None:
    """Reads the manifest of a finished store, or None where none is committed."""
    content = files.read(root, manifest.DATASET_MANIFEST)
    if content.data is None:
        return None
    where = os.path.join(root, manifest.DATASET_MANIFEST)
    return manifest.dataset_from_json(content.data, where=where)


def find_committed(plan: StorePlan) -> DatasetManifest | None:
    """Looks whether a plan's store is finished already.

    Args:
        plan: What is about to be written.

    Returns:
        The manifest, if the very same store is there; None if none is committed.

    Raises:
        DataFormatError: If another finished store is there: it is never overwritten.
    """
    there = read_committed(plan.root)
    asked = [part.digest() for part in plan.parts]
    # A store that was appended to still holds what was asked for.
    if there is None or _plans(there)[: len(asked)] == asked:
        return there
    raise occupied(plan.root, there)


def is_made_from(
    there: DatasetManifest, digest: str, discounts: Sequence[float]
) -> bool:
    """Tells whether a finished store was made from one input with these discounts."""
    origins = {part.origin.digest for part in there.parts}
    return origins == {digest} and set(there.discounts) == set(discounts)


def occupied(root: str, there: DatasetManifest) -> DataFormatError:
    """The error of writing where another finished store is."""
    return DataFormatError(
        f"{root}: already holds a finished store of {there.dataset}, "
        f"{sum(part.rows for part in there.parts):,} rows, made from other input or "
        "with other options; choose another folder, or delete this one"
    )


def commit_store(plan: StorePlan, parts: Iterable[PartManifest]) -> DatasetManifest:
    """Commits a store whose parts are all written: from now on readers accept it.

    Args:
        plan: The plan that the parts were written by.
        parts: Their manifests, in any order.

    Returns:
        The store's manifest.

    Raises:
        DataFormatError: If parts are missing, too many episodes were left out, or
            somebody else committed another store here meanwhile.
    """
    found = sorted(parts, key=lambda part: part.index)
    if [part.index for part in found] != [part.index for part in plan.parts]:
        raise DataFormatError(
            f"{plan.root}: expected parts 0 to {len(plan.parts) - 1}, got "
            f"{[part.index for part in found]}; repeat the command to write the rest"
        )
    check_dropped(plan, found)
    value = DatasetManifest(
        dataset=plan.dataset,
        environment_id=plan.environment_id,
        fields=plan.parts[0].stored_fields(),
        tasks=plan.parts[0].tasks,
        discounts=plan.parts[0].discounts,
        parts=tuple(found),
        statistics=merge_statistics(found),
        versions=plan.versions,
        skipped=plan.skipped,
    )
    # Read before it is looked at: whoever commits in between must not be replaced.
    there = files.read(plan.root, manifest.DATASET_MANIFEST)
    if find_committed(plan) is None:
        _delete_strays(plan)
        data = manifest.to_json(value).encode()
        files.commit(plan.root, manifest.DATASET_MANIFEST, data, replacing=there)
    release(plan)
    return value


def release(plan: StorePlan) -> None:
    """Leaves the folder to whoever writes a store there next."""
    files.delete(plan.root, _CLAIM)


def claim_of(plan: StorePlan) -> bytes:
    """What a claim holds: which parts are being written."""
    return json.dumps([part.digest() for part in plan.parts]).encode()


def claim(plan: StorePlan) -> None:
    """Says in the folder which store is being written there, so that no other is.

    Args:
        plan: About to be written.

    Raises:
        DataFormatError: If another one has begun there and not ended.
    """
    asked = claim_of(plan)
    there = files.read(plan.root, _CLAIM)
    if there.data is None:
        with contextlib.suppress(DataFormatError):  # Who was quicker is read below.
            files.commit(plan.root, _CLAIM, asked, replacing=there)
        there = files.read(plan.root, _CLAIM)
    if there.data != asked:
        raise DataFormatError(
            f"{plan.root}/{_CLAIM}: another store has been begun here and not "
            "finished; repeat the command it was begun with, choose another folder, or "
            "delete this file if that store is given up"
        )
    try:
        find_committed(plan)  # Finished since it was looked for, perhaps.
    except DataFormatError:
        release(plan)
        raise


def check_dropped(plan: StorePlan, parts: Sequence[PartManifest]) -> None:
    """Refuses a run that left out more episodes than it may.

    Args:
        plan: What the parts were written by.
        parts: Their manifests.

    Raises:
        DataFormatError: With how many, and why.
    """
    dropped = sum(len(some) for part in parts for some in part.dropped.values())
    if dropped <= plan.max_bad_share * plan.episodes:
        return
    reasons = sorted({reason for part in parts for reason in part.dropped})
    raise DataFormatError(
        f"{plan.root}: {dropped} of {plan.episodes} episodes are bad "
        f"({', '.join(reasons)}), more than the share of {plan.max_bad_share:g} that "
        "may be left out; look into the input, or raise --max-bad-share"
    )


def merge_statistics(parts: Sequence[PartManifest]) -> dict[str, Statistics]:
    """Merges the statistics of the parts to train on, in order.

    Args:
        parts: Parts of any split.

    Returns:
        Statistics of the ``train`` split by field name; empty if it has no part.
    """
    merged: dict[str, Moments] = {}
    for part in parts:
        if part.split != "train":
            continue
        for name, statistics in part.statistics.items():
            found = Moments.from_statistics(statistics)
            known = merged.get(name)
            merged[name] = found if known is None else known.merge(found)
    return {name: moments.to_statistics() for name, moments in merged.items()}


def _plans(there: DatasetManifest) -> list[str]:
    return [part.plan for part in there.parts]


def _delete_strays(plan: StorePlan) -> None:
    """Deletes parts beyond the last one, of an unfinished run with another plan."""
    known = {f"{part.index:05d}" for part in plan.parts}
    folders = {name.split("/")[0] for name in files.list_names(plan.root, "parts")}
    for folder in sorted(folders - known):
        files.delete_folder(plan.root, f"parts/{folder}")
