"""Joins stores of one kind: one manifest over the unchanged parts of all of them.

The files of parts are hard-linked on one disk, and copied elsewhere. Links are safe
because commands replace files of a store and never write into them. Either way the
joined store owns all of its files, and the stores that it was joined from may be moved
or deleted. No row is read: labels and statistics of a part are valid wherever the part
lies. This module knows nothing of Beam.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pipeline.assembly.commit import commit_parts, holds_parts, list_objects
from pipeline.assembly.plan import installed_versions
from pipeline.store import claims, files, manifest, manifest_json
from pipeline.store.claims import Claim
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.folder import check_folder
from pipeline.store.manifest import DatasetManifest, PartManifest, describe_fields
from pipeline.store.moments import merge_statistics
from pipeline.store.reader import Store
from pipeline.store.seals import digest

CLAIM = "merge.json"
# Every thread that copies holds one file of a few tens of MB in memory.
_COPIES_AT_ONCE = 8


@dataclass(frozen=True)
class PartCopy:
    """The plan of copying one part.

    Attributes:
        root: Local path or ``gs://bucket/path`` of the store to copy from.
        manifest: Manifest of that store.
        part: Manifest of the part in that store.
        joined: Manifest of the part in the joined store.
    """

    root: str
    manifest: DatasetManifest
    part: PartManifest
    joined: PartManifest


@dataclass(frozen=True)
class MergePlan:
    """The plan of a joined store.

    Attributes:
        root: Local path or ``gs://bucket/path`` of the joined store.
        manifest: Manifest of the joined store.
        copies: Parts to copy, in order.
    """

    root: str
    manifest: DatasetManifest
    copies: tuple[PartCopy, ...]


def plan_merge(
    roots: Sequence[str], out: str, *, dataset: str | None = None
) -> MergePlan:
    """Plans a store of the parts of other stores, in their order.

    Args:
        roots: Paths of stores of one kind, at least two.
        out: Local path or ``gs://bucket/path`` of the joined store.
        dataset: Data-set name of the joined store; needed if the names differ.

    Returns:
        The plan.

    Raises:
        UsageError: If there are fewer than two stores, or ``out`` is one of them.
        DataFormatError: If a store cannot be read, if stores differ in tasks, fields or
            anything else that a store has once, or if two hold the same rows.
    """
    if len(roots) < 2:
        raise UsageError(
            f"expected at least two stores to join, got {' '.join(roots) or 'none'}; "
            "name another one"
        )
    if any(is_same_folder(root, out) for root in roots):
        raise UsageError(
            f"expected another folder than those of the stores, got {out}; join them "
            "into a new one"
        )
    stores = [Store(root) for root in roots]
    first = stores[0]
    for store in stores:
        _check_like(first, store, dataset)
    copies: list[PartCopy] = []
    for store in stores:
        for part in store.manifest.parts:
            index = len(copies)
            joined = dataclasses.replace(
                part, index=index, key=content_key(part), labels=""
            )
            copies.append(PartCopy(store.root, store.manifest, part, joined))
    # Parts are numbered anew and keyed by content, because two stores may use the same
    # number or key for different parts.
    _check_distinct(copies)
    parts = tuple(copy.joined for copy in copies)
    empty = [part for store in stores for part in store.manifest.empty_parts]
    joined_from = " ".join(s.manifest.fingerprint()[:16] for s in stores)
    merged = dataclasses.replace(
        first.manifest,
        dataset=dataset or first.manifest.dataset,
        parts=parts,
        statistics=merge_statistics(parts),
        versions=_join_versions([store.manifest.versions for store in stores]),
        skipped={k: v for s in stores for k, v in s.manifest.skipped.items()},
        history=tuple(step for s in stores for step in s.manifest.history),
        reference_scores=_join_scores([s.manifest.reference_scores for s in stores]),
        empty_parts=tuple(
            dataclasses.replace(part, index=index)
            for index, part in enumerate(empty, start=len(parts))
        ),
    )
    history = merged.after(f"merge of {joined_from}", installed_versions())
    merged = dataclasses.replace(merged, history=history)
    return MergePlan(str(out), merged, tuple(copies))


def find_merged(plan: MergePlan) -> bool:
    """Tells whether the joined store of a plan is already finished.

    Args:
        plan: The plan.

    Returns:
        Whether the store is finished.

    Raises:
        DataFormatError: If another store is finished there, or if files of this one
            are missing.
    """
    keys = [part.key for part in plan.manifest.parts]
    return holds_parts(plan.root, keys, dataset=plan.manifest.dataset)


def claim(plan: MergePlan, *, take_over: bool = False) -> AbstractContextManager[Claim]:
    """Claims the folder of the joined store; see `pipeline.store.claims.hold`.

    Args:
        plan: The plan.
        take_over: Whether to take the claim of a process that may still run.

    Returns:
        A context manager that holds the claim.

    Raises:
        DataFormatError: If another store was begun in the folder, if a process that
            may still run is joining this one, or if the folder holds foreign files.
    """
    check_folder(plan.root)
    asked = [digest(part.checksums) for part in plan.manifest.parts]
    return claims.hold(plan.root, CLAIM, asked, what="merge", take_over=take_over)


def merge(
    plan: MergePlan,
    claimed: Claim | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> DatasetManifest:
    """Copies the parts of a plan, and commits the joined store.

    Args:
        plan: The plan.
        claimed: Claim to work under.
        progress: Called with the rows of each part that is finished.

    Returns:
        Manifest of the joined store.

    Raises:
        DataFormatError: If a store lacks a file, or if another process has taken over
            or committed another store meanwhile.
        OSError: If the disk is full or fails.
    """
    with ThreadPoolExecutor(_COPIES_AT_ONCE) as pool:
        for copy in plan.copies:
            names = list_objects(copy.manifest, copy.part)
            theirs = list_objects(plan.manifest, copy.joined)
            pairs = list(zip(names, theirs, strict=True))
            for request in [
                pool.submit(files.copy, copy.root, name, plan.root, ours)
                for name, ours in pairs
            ]:
                request.result()
            # Last, because a part counts as written once it has a manifest.
            name = f"{copy.joined.folder}/{manifest.PART_MANIFEST}"
            files.write(plan.root, name, manifest_json.to_json(copy.joined).encode())
            if progress is not None:
                progress(copy.joined.rows)
    commit_parts(plan.root, plan.manifest, claimed)
    return plan.manifest


def content_key(part: PartManifest) -> str:
    """Computes a part's key from the checksums of its arrays, whatever its store."""
    # The 16 digits after "sha256:".
    return digest([manifest.FORMAT_VERSION, part.checksums])[7:23]


def is_same_folder(root: str, other: str) -> bool:
    """Tells whether two paths name the same folder."""
    return _resolve(root) == _resolve(other)


def _resolve(root: str) -> str:
    """Returns the path of a folder with links resolved, to compare it by."""
    return root.rstrip("/") if files.is_remote(root) else os.path.realpath(root)


def _check_like(first: Store, store: Store, dataset: str | None) -> None:
    """Refuses stores that differ in something that a store has only once."""
    ours, theirs = first.manifest, store.manifest
    if theirs.format_version != manifest.FORMAT_VERSION:
        raise DataFormatError(
            f"{store.root}: expected format version {manifest.FORMAT_VERSION}, got "
            f"{theirs.format_version}; run `python -m pipeline upgrade` on it first"
        )
    compared = {
        "environment": (ours.environment_id, theirs.environment_id),
        "discounts": (list(ours.discounts), list(theirs.discounts)),
        "tasks": ([t.task for t in ours.tasks], [t.task for t in theirs.tasks]),
        "tasks' definitions": (ours.tasks, theirs.tasks),
        "bounds of the actions": (ours.action_scale, theirs.action_scale),
        "fields": (describe_fields(ours.fields), describe_fields(theirs.fields)),
        "fields' units": (ours.fields, theirs.fields),
    }
    if dataset is None:
        compared["data set"] = (ours.dataset, theirs.dataset)
    for what, (expected, got) in compared.items():
        if expected != got:
            remedy = {
                "discounts": "relabel one of them to have the other's",
                "tasks": "relabel one of them to have the other's",
                "environment": "give both the same one with `set-environment`",
                "data set": "give the joined store a name with --dataset",
            }.get(what, "one store holds data of one kind")
            raise DataFormatError(
                f"{first.root} and {store.root} differ in {what}: {expected} and "
                f"{got}; {remedy}"
            )


def _check_distinct(copies: Sequence[PartCopy]) -> None:
    """Refuses parts that hold the same rows, which would count twice in training."""
    seen: dict[tuple[str, ...], PartCopy] = {}
    for copy in copies:
        names = ("observations", "actions", "episode_lengths")
        rows = tuple(copy.part.checksums.get(name, "") for name in names)
        other = seen.setdefault(rows, copy)
        if other is not copy:
            raise DataFormatError(
                f"{other.root}/{other.part.folder} and {copy.root}/{copy.part.folder} "
                "hold the same rows; leave one of the stores out"
            )


def _join_scores(
    scores: Sequence[tuple[float, float] | None],
) -> tuple[float, float] | None:
    """Returns the reference scores that all stores share; None if they differ."""
    return scores[0] if len(set(scores)) == 1 else None


def _join_versions(versions: Sequence[dict[str, str]]) -> dict[str, str]:
    """Joins the versions of each package that the stores were made with."""
    names = sorted({name for installed in versions for name in installed})
    return {
        name: " and ".join(dict.fromkeys(v[name] for v in versions if name in v))
        for name in names
    }
