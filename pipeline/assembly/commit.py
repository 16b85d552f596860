"""Claiming a folder for a store and committing the store, in one atomic step."""

import contextlib
import json
import os
from collections.abc import Iterable, Sequence

from pipeline.assembly.plan import StorePlan
from pipeline.store import files, layout, manifest
from pipeline.store.errors import DataFormatError
from pipeline.store.folder import check_folder
from pipeline.store.manifest import DatasetManifest, PartManifest
from pipeline.store.moments import merge_statistics

# Of two stores written into one folder, each would write into the other's parts.
_CLAIM = "shard.json"


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
        delete_unfinished(plan.root, [part.folder for part in plan.parts])
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
        DataFormatError: If another one has begun there and not ended, or the folder
            holds something else.
    """
    check_folder(plan.root)
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


def _plans(there: DatasetManifest) -> list[str]:
    return [part.plan for part in there.parts]


def _delete_strays(plan: StorePlan) -> None:
    """Deletes parts of unfinished runs with another plan."""
    known = {part.folder.removeprefix("parts/") for part in plan.parts}
    files.delete_where(
        plan.root,
        "parts",
        lambda name: (
            name.split("/")[0] not in known and layout.is_part_file(f"parts/{name}")
        ),
    )


def delete_unfinished(root: str, folders: Iterable[str]) -> None:
    """Deletes what killed writers have left in folders that are finished now.

    Args:
        root: The store.
        folders: Folders of parts or of their labels, relative to the store.
    """
    for folder in folders:

        def is_left(name: str, top: str = folder) -> bool:
            return layout.is_unfinished_file(f"{top}/{name}")

        files.delete_where(root, folder, is_left)
