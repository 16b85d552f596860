"""Claims a folder for a store, and commits the store in one atomic step.

A store exists once ``dataset.json`` does. All of its parts are written and checked
before, and the commit itself writes this one file, on the condition that no other
process has written it.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

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
    """Reads the manifest of a store; returns None if no store is committed there."""
    content = files.read(root, manifest.DATASET_MANIFEST)
    if content.data is None:
        return None
    where = os.path.join(root, manifest.DATASET_MANIFEST)
    return manifest_json.dataset_from_json(content.data, where=where)


def digest_content(content: Content) -> str:
    """Computes the digest of a manifest's bytes.

    Beam jobs carry the digest instead of the manifest, which has megabytes for a
    thousand parts.
    """
    return hashlib.sha256(content.data or b"").hexdigest()


def check_unchanged(root: str, content: Content, planned_for: str) -> None:
    """Refuses to change a store that has changed since the plan was made.

    Args:
        root: Local path or ``gs://bucket/path`` of the store.
        content: Current content of its manifest file.
        planned_for: Digest of the manifest that was planned for.

    Raises:
        DataFormatError: If another process has changed the store meanwhile.
    """
    if digest_content(content) != planned_for:
        raise files.make_changed_error(root, manifest.DATASET_MANIFEST)


def find_committed(plan: StorePlan) -> DatasetManifest | None:
    """Tells whether the store of a plan is already finished.

    Args:
        plan: The plan.

    Returns:
        The manifest of the finished store; None if no store is committed there.

    Raises:
        DataFormatError: If another store is finished there, which is never
            overwritten, or if files of the plan's own store are missing.
    """
    asked = [part.digest() for part in plan.parts]
    return _find(plan.root, asked, _list_plans, dataset=plan.dataset)


def check_whole(root: str, committed: DatasetManifest) -> None:
    """Refuses a store that lacks files which its manifest names.

    Only names are compared, with one listing; `verify` reads the bytes.

    Args:
        root: Local path or ``gs://bucket/path`` of the store.
        committed: Manifest of the store.

    Raises:
        DataFormatError: If a file is missing; the message names it.
    """
    names = {f"parts/{name}" for name in files.list_names(root, "parts")}
    missing = sorted(
        name
        for part in committed.parts
        for name in (
            f"{part.labels_folder}/{manifest.PART_MANIFEST}",
            *list_objects(committed, part),
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


def list_objects(store: DatasetManifest, part: PartManifest) -> Iterator[str]:
    """Lists the files that the arrays of a part consist of.

    Args:
        store: Manifest of the store.
        part: A part of the store.

    Yields:
        Names relative to the store, in the order of its fields.
    """
    for name, field in {**store.fields, **part.table}.items():
        rows = part.episodes if name in part.table else part.rows
        folder = store.array_folder(part, name)
        for file in arrays.object_names(field, rows=rows, tasks=len(store.tasks)):
            yield f"{folder}/{file}"


def are_committed(store: DatasetManifest, parts: Sequence[PartManifest]) -> bool:
    """Tells whether a store's manifest already names parts exactly as they are."""
    # By index, because stores of 10,000 parts would need 50 million comparisons.
    held = {part.index: part for part in store.parts}
    return all(held.get(part.index) == part for part in parts)


def is_made_from(
    committed: DatasetManifest, digest: str, discounts: Sequence[float]
) -> bool:
    """Tells whether a finished store was made from one input with these discounts."""
    origins = {part.origin.digest for part in committed.parts}
    return origins == {digest} and set(committed.discounts) == set(discounts)


def make_occupied_error(root: str, committed: DatasetManifest) -> DataFormatError:
    """Builds the error for a folder that already holds another finished store."""
    return DataFormatError(
        f"{root}: already holds a finished store of {committed.dataset}, "
        f"{sum(part.rows for part in committed.parts):,} rows, made from other input "
        "or with other options; choose another folder, or delete this one; `relabel` "
        "adds discounts and tasks to it, and `append` other input"
    )


def commit_store(
    plan: StorePlan, parts: Iterable[PartManifest], claimed: Claim | None = None
) -> DatasetManifest:
    """Commits a store whose parts are all written; readers accept it from now on.

    Args:
        plan: Plan that the parts were written by, with or without lengths.
        parts: Manifests of the parts, in any order.
        claimed: Claim that the parts were written under.

    Returns:
        The store's manifest.

    Raises:
        DataFormatError: If parts are missing, if too many episodes were dropped or no
            training episode is left, or if another process has taken over or committed
            another store meanwhile.
    """
    # Workers finish in any order, and the manifest must not depend on it.
    written = sorted(parts, key=lambda part: part.index)
    if [part.index for part in written] != [part.index for part in plan.parts]:
        raise DataFormatError(
            f"{plan.root}: expected parts 0 to {len(plan.parts) - 1}, got "
            f"{[part.index for part in written]}; repeat the command to write the rest"
        )
    check_dropped(plan, written)
    kept, empty = separate_empty(plan, written)
    if not any(part.split == "train" for part in kept):
        raise DataFormatError(
            f"{plan.root}: expected good episodes to train on, got bad ones alone in "
            f"the train split ({_list_reasons(empty)}); look into the input"
        )
    # An episode of one row holds no transition, and perhaps no action to describe.
    if not any(part.split == "train" and part.rows > part.episodes for part in kept):
        raise DataFormatError(
            f"{plan.root}: expected an episode of two rows or more to train on, got "
            "episodes of one row alone in the train split; look into the input"
        )
    store = DatasetManifest(
        dataset=plan.dataset,
        environment_id=plan.environment_id,
        fields=plan.parts[0].stored_fields(),
        tasks=plan.parts[0].tasks,
        discounts=plan.parts[0].discounts,
        parts=kept,
        statistics=merge_statistics(kept),
        versions=plan.versions,
        skipped=plan.skipped,
        action_scale=plan.parts[0].action_scale,
        history=(Step(plan.command, plan.versions),) if plan.command else (),
        reference_scores=plan.reference_scores,
        empty_parts=empty,
    )
    # The generation is read before the check. If another process commits between the
    # two, either the check sees its store or the conditional commit below fails; in the
    # other order its store could be replaced unseen.
    before = files.read(plan.root, manifest.DATASET_MANIFEST)
    asked = [part.plan for part in written]
    committed = _find(plan.root, asked, _list_plans, dataset=plan.dataset)
    if committed is not None:
        return committed
    check_seen(plan.root, kept)

    def check() -> None:
        if claimed is not None:
            claimed.check()
        if files.read(plan.root, manifest.DATASET_MANIFEST).data is not None:
            raise DataFormatError(
                f"{plan.root}: another run has committed a store here meanwhile; "
                "nothing was overwritten, look at what it wrote"
            )

    clear_parts(plan.root, kept, check)
    if claimed is not None:
        claimed.check()
    data = manifest_json.to_json(store).encode()
    files.commit(plan.root, manifest.DATASET_MANIFEST, data, replacing=before)
    return store


def claim(plan: StorePlan, *, take_over: bool = False) -> AbstractContextManager[Claim]:
    """Claims a folder for the store of a plan; see `pipeline.store.claims.hold`.

    Args:
        plan: The plan.
        take_over: Whether to take the claim of a process that may still run.

    Returns:
        A context manager that holds the claim.

    Raises:
        DataFormatError: If another store was begun in the folder, if a process that
            may still run is writing this one, or if the folder holds foreign files.
    """
    check_folder(plan.root)
    asked = [part.digest() for part in plan.parts]
    return claims.hold(plan.root, CLAIM, asked, what="store", take_over=take_over)


def holds_parts(root: str, keys: Sequence[str], *, dataset: str) -> bool:
    """Tells whether a store of parts with these keys is already finished.

    Args:
        root: Local path or ``gs://bucket/path`` of the store.
        keys: Keys of its parts, in order.
        dataset: Name of its data set.

    Returns:
        Whether the store is finished.

    Raises:
        DataFormatError: If another store is finished there, or if files of this one
            are missing.
    """
    committed = _find(
        root, keys, lambda store: [part.key for part in store.parts], dataset=dataset
    )
    return committed is not None


def commit_parts(root: str, store: DatasetManifest, claimed: Claim | None) -> None:
    """Commits a store of keyed parts that are all written, unless it is committed.

    Args:
        root: Local path or ``gs://bucket/path`` of the store.
        store: Manifest of the store.
        claimed: Claim that the parts were written under.

    Raises:
        DataFormatError: If another process has taken over or committed another store
            meanwhile.
    """

    def check() -> None:
        if claimed is not None:
            claimed.check()

    # The generation is read before the check, as in `commit_store`.
    before = files.read(root, manifest.DATASET_MANIFEST)
    keys = [part.key for part in store.parts]
    if not holds_parts(root, keys, dataset=store.dataset):
        check()
        clear_parts(root, store.parts, check)
        data = manifest_json.to_json(store).encode()
        files.commit(root, manifest.DATASET_MANIFEST, data, replacing=before)


def check_seen(root: str, parts: Sequence[PartManifest]) -> None:
    """Refuses to commit parts that workers have written to disks of other machines.

    Args:
        root: Local path or ``gs://bucket/path`` of the store.
        parts: Manifests of the parts, as the workers returned them.

    Raises:
        UnseenFileError: If this process does not see a part; the message names it.
    """
    if files.is_remote(root):
        return
    for part in parts:
        path = os.path.join(root, part.labels_folder, manifest.PART_MANIFEST)
        if not os.path.exists(path):
            raise UnseenFileError.of(path)


def separate_empty(
    plan: StorePlan, parts: Sequence[PartManifest]
) -> tuple[tuple[PartManifest, ...], tuple[PartManifest, ...]]:
    """Separates parts from those whose episodes are all bad.

    Args:
        plan: Plan that the parts were written by.
        parts: Manifests of the parts, in order.

    Returns:
        Parts with rows, at least one, and parts without.

    Raises:
        DataFormatError: If no part has rows.
    """
    kept = tuple(part for part in parts if part.rows)
    if not kept:
        raise DataFormatError(
            f"{plan.root}: expected a good episode, got bad ones alone "
            f"({_list_reasons(parts)}) and nothing to write; look into the input"
        )
    return kept, tuple(part for part in parts if not part.rows)


def check_dropped(plan: StorePlan, parts: Sequence[PartManifest]) -> None:
    """Refuses a run that has dropped too large a share of the episodes.

    Args:
        plan: Plan that the parts were written by.
        parts: Manifests of the parts.

    Raises:
        DataFormatError: If the share exceeds the plan's; the message gives the reasons.
    """
    dropped = sum(len(bad) for part in parts for bad in part.dropped.values())
    episodes = dropped + sum(part.episodes for part in parts)
    if dropped <= plan.max_bad_share * episodes:
        return
    raise DataFormatError(
        f"{plan.root}: {dropped} of {episodes} episodes are bad "
        f"({_list_reasons(parts)}), more than the share of {plan.max_bad_share:g} that "
        "may be left out; look into the input, or raise --max-bad-share"
    )


def _list_reasons(parts: Sequence[PartManifest]) -> str:
    """Lists the reasons for which episodes of some parts were left out."""
    return ", ".join(sorted({reason for part in parts for reason in part.dropped}))


def _find(
    root: str,
    asked: Sequence[str],
    of: Callable[[DatasetManifest], list[str]],
    *,
    dataset: str,
) -> DatasetManifest | None:
    """Returns the manifest of a finished store that begins with the given parts.

    Args:
        root: Local path or ``gs://bucket/path`` of the store.
        asked: Digests or keys of the parts, in order.
        of: Lists the same of a store.
        dataset: Name of the data set, which neither digests nor keys contain.
    """
    committed = read_committed(root)
    if committed is None:
        return None
    # Only the first parts are compared: after an append there are more of them, and the
    # store still holds what was asked for.
    same_parts = of(committed)[: len(asked)] == list(asked)
    if not same_parts or committed.dataset != dataset:
        raise make_occupied_error(root, committed)
    check_whole(root, committed)
    return committed


def _list_plans(store: DatasetManifest) -> list[str]:
    """Lists the plans' digests of a store's parts, empty ones included."""
    return [part.plan for part in store.planned_parts]


def clear_parts(
    root: str,
    finished: Sequence[PartManifest],
    check: Callable[[], None],
    *,
    kept: Sequence[PartManifest] = (),
) -> None:
    """Deletes files of unfinished commands before a store is committed.

    Those are whole parts of commands with another plan, and temporary files of killed
    writers beside the finished parts.

    Args:
        root: Local path or ``gs://bucket/path`` of the store.
        finished: Parts that are about to be committed.
        check: Raises if another process has taken over. It is called directly before
            each folder is cleared, because clearing many folders takes a while.
        kept: Parts that the store already holds. They are left alone, because another
            command, such as `relabel`, may be writing into them.
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
    """Deletes files in the folder of a part, chosen by name relative to the store."""
    files.delete_where(root, folder, lambda name: is_left(f"{folder}/{name}"))
