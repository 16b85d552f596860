"""Claiming a folder for a store and committing the store, in one atomic step."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from operator import attrgetter

from pipeline.assembly.plan import StorePlan
from pipeline.store import arrays, claims, files, layout, manifest, manifest_json
from pipeline.store.claims import Claim
from pipeline.store.errors import DataFormatError, UnseenFileError
from pipeline.store.files import Content
from pipeline.store.folder import check_folder
from pipeline.store.manifest import (
    DatasetManifest,
    PartManifest,
    Step,
)
from pipeline.store.moments import merge_statistics

CLAIM = "shard.json"


def read_committed(root: str) -> DatasetManifest | None:
    """Reads the manifest of a finished store, or None where none is committed."""
    content = files.read(root, manifest.DATASET_MANIFEST)
    if content.data is None:
        return None
    where = os.path.join(root, manifest.DATASET_MANIFEST)
    return manifest_json.dataset_from_json(content.data, where=where)


def digest_of(there: Content) -> str:
    """Identifies a manifest, for a job to name it by: its bytes may be megabytes."""
    return hashlib.sha256(there.data or b"").hexdigest()


def check_unchanged(root: str, there: Content, planned: str) -> None:
    """Refuses to change a store that is another one than was planned for.

    Args:
        root: The store.
        there: Its manifest as it is now.
        planned: Digest of the one that was planned for.

    Raises:
        DataFormatError: If somebody else has changed it meanwhile.
    """
    if digest_of(there) != planned:
        raise files.changed_meanwhile(root, manifest.DATASET_MANIFEST)


def find_committed(plan: StorePlan) -> DatasetManifest | None:
    """Looks whether a plan's store is finished already.

    Args:
        plan: What is about to be written.

    Returns:
        The manifest, if the very same store is there; None if none is committed.

    Raises:
        DataFormatError: If another finished store is there, which is never
            overwritten, or the very same and parts of it are missing.
    """
    asked = [part.digest() for part in plan.parts]
    return _find(plan.root, asked, of=attrgetter("plan"))


def check_whole(root: str, there: DatasetManifest) -> None:
    """Refuses to believe a manifest whose parts are not there.

    Looks at names alone: `verify` reads the bytes.

    Args:
        root: The store.
        there: Its manifest.

    Raises:
        DataFormatError: Naming a file that is missing.
    """
    names = {f"parts/{name}" for name in files.list_names(root, "parts")}
    missing = sorted(
        name
        for part in there.parts
        for name in (
            f"{part.labels_folder}/{manifest.PART_MANIFEST}",
            *object_names(there, part),
        )
        if name not in names
    )
    if missing:
        raise DataFormatError(
            f"{root}: {manifest.DATASET_MANIFEST} says that this store is finished, "
            f"and {missing[0]} is missing"
            + (f", {len(missing) - 1} other files too" if len(missing) > 1 else "")
            + "; fetch the store again, or delete it and repeat the command"
        )


def object_names(there: DatasetManifest, part: PartManifest) -> Iterator[str]:
    """Names of all objects that the arrays of a part consist of.

    Args:
        there: The manifest of its store.
        part: The part.

    Yields:
        Names within the store, in the order of its fields.
    """
    for name, field in {**there.fields, **part.table}.items():
        rows = part.episodes if name in part.table else part.rows
        folder = there.array_folder(part, name)
        for each in arrays.object_names(field, rows=rows, tasks=len(there.tasks)):
            yield f"{folder}/{each}"


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


def commit_store(
    plan: StorePlan, parts: Iterable[PartManifest], claimed: Claim | None = None
) -> DatasetManifest:
    """Commits a store whose parts are all written: from now on readers accept it.

    Args:
        plan: The plan that the parts were written by, with or without lengths.
        parts: Their manifests, in any order.
        claimed: The claim that they were written under.

    Returns:
        The store's manifest.

    Raises:
        DataFormatError: If parts are missing, too many episodes were left out, or
            somebody else has taken over or committed another store here meanwhile.
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
        action_scale=plan.parts[0].action_scale,
        history=(Step(plan.command, plan.versions),) if plan.command else (),
        reference_scores=plan.reference_scores,
    )
    # Read before it is looked at: whoever commits in between must not be replaced.
    there = files.read(plan.root, manifest.DATASET_MANIFEST)
    committed = _find(plan.root, [part.plan for part in found], of=attrgetter("plan"))
    if committed is not None:
        return committed
    check_seen(plan.root, found)

    def check() -> None:
        if claimed is not None:
            claimed.check()
        if files.read(plan.root, manifest.DATASET_MANIFEST).data is not None:
            raise DataFormatError(
                f"{plan.root}: another run has committed a store here meanwhile; "
                "nothing was overwritten, look at what it wrote"
            )

    clear_parts(plan.root, found, check)
    if claimed is not None:
        claimed.check()
    data = manifest_json.to_json(value).encode()
    files.commit(plan.root, manifest.DATASET_MANIFEST, data, replacing=there)
    return value


def claim(plan: StorePlan, *, take_over: bool = False) -> AbstractContextManager[Claim]:
    """Says in the folder which store is being written there, as long as a block runs.

    Args:
        plan: About to be written.
        take_over: Whether to go on in the place of a process that may still run.

    Returns:
        To be entered; the claim.

    Raises:
        DataFormatError: If another store was begun there, or this one by a process
            that is not known to have ended, or if the folder holds something else.
    """
    check_folder(plan.root)
    asked = [part.digest() for part in plan.parts]
    return claims.held(plan.root, CLAIM, asked, what="store", take_over=take_over)


def holds_parts(root: str, keys: Sequence[str]) -> bool:
    """Looks whether a store of parts with these keys is finished already.

    Args:
        root: The store.
        keys: Of its parts, in order.

    Returns:
        Whether it is there.

    Raises:
        DataFormatError: If another store is there, or this one and not all of it.
    """
    return _find(root, keys, of=attrgetter("key")) is not None


def commit_parts(root: str, value: DatasetManifest, claimed: Claim | None) -> None:
    """Commits a store of keyed parts that are all there, unless it is committed.

    Args:
        root: The store.
        value: Its manifest.
        claimed: The claim that the parts were written under.

    Raises:
        DataFormatError: If somebody else has taken over or committed another store
            here meanwhile.
    """

    def check() -> None:
        if claimed is not None:
            claimed.check()

    # Read before it is looked at: whoever commits in between must not be replaced.
    there = files.read(root, manifest.DATASET_MANIFEST)
    if not holds_parts(root, [part.key for part in value.parts]):
        check()
        clear_parts(root, value.parts, check)
        data = manifest_json.to_json(value).encode()
        files.commit(root, manifest.DATASET_MANIFEST, data, replacing=there)


def check_seen(root: str, parts: Sequence[PartManifest]) -> None:
    """Refuses to commit what has been written to a disk of another machine.

    Args:
        root: The store.
        parts: Manifests of what has been written.

    Raises:
        UnseenFileError: Naming the first that is not there for this process.
    """
    if files.is_remote(root):
        return
    for part in parts:
        path = os.path.join(root, part.labels_folder, manifest.PART_MANIFEST)
        if not os.path.exists(path):
            raise UnseenFileError.of(path)


def check_dropped(plan: StorePlan, parts: Sequence[PartManifest]) -> None:
    """Refuses a run that left out more episodes than it may.

    Args:
        plan: What the parts were written by.
        parts: Their manifests.

    Raises:
        DataFormatError: With how many, and why.
    """
    dropped = sum(len(some) for part in parts for some in part.dropped.values())
    episodes = dropped + sum(part.episodes for part in parts)
    if dropped <= plan.max_bad_share * episodes:
        return
    reasons = sorted({reason for part in parts for reason in part.dropped})
    raise DataFormatError(
        f"{plan.root}: {dropped} of {episodes} episodes are bad "
        f"({', '.join(reasons)}), more than the share of {plan.max_bad_share:g} that "
        "may be left out; look into the input, or raise --max-bad-share"
    )


def _find(
    root: str, asked: Sequence[str], *, of: Callable[[PartManifest], str]
) -> DatasetManifest | None:
    """The finished store that begins with the parts that were asked for, if any."""
    there = read_committed(root)
    if there is None:
        return None
    # A store that was appended to or relabelled still holds what was asked for.
    if [of(part) for part in there.parts][: len(asked)] != list(asked):
        raise occupied(root, there)
    check_whole(root, there)
    return there


def clear_parts(
    root: str,
    finished: Sequence[PartManifest],
    check: Callable[[], None],
    *,
    kept: Sequence[PartManifest] = (),
) -> None:
    """Deletes what others have left among the parts of a store about to be committed.

    That is parts of unfinished runs with another plan, and what killed writers have
    left beside the files of these.

    Args:
        root: The store.
        finished: The parts that have been written.
        check: Raises if somebody else has taken over; asked directly before each
            folder is cleared.
        kept: Parts that the store has already; what others do there is theirs.
    """
    ours = {part.folder for part in finished}
    others = {part.folder for part in kept}

    def is_left(name: str) -> bool:
        folder = "/".join(name.split("/")[:2])
        if folder in others:
            return False
        written = layout.is_unfinished_file if folder in ours else layout.is_part_file
        return written(name)

    names = (f"parts/{name}" for name in files.walk_names(root, "parts"))
    for folder in {"/".join(n.split("/")[:2]): None for n in names if is_left(n)}:
        check()
        delete_files(root, folder, is_left)


def delete_files(root: str, folder: str, is_left: Callable[[str], bool]) -> None:
    """Deletes files of one folder of a part, by their names within the store."""
    files.delete_where(root, folder, lambda name: is_left(f"{folder}/{name}"))
