"""Joining stores of one kind: their parts as they are, under one manifest.

Parts are taken over object by object. On one disk that is a second name for the same
bytes (a hard link), as files of a store are replaced and never changed; elsewhere a
copy. Either way a store owns all that its manifest names: the stores that it was joined
from may be moved or deleted. No row is read: labels and statistics of a part hold for
the part, wherever it lies. Knows nothing of Beam.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pipeline.assembly.commit import commit_parts, holds_parts, object_names
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
# Objects are a few tens of MB, and each of these holds one in memory.
_COPIES_AT_ONCE = 8


@dataclass(frozen=True)
class PartCopy:
    """One part to be taken over.

    Attributes:
        root: The store it is in.
        there: That store's manifest.
        part: The part as it is there.
        joined: The part as it will be.
    """

    root: str
    there: DatasetManifest
    part: PartManifest
    joined: PartManifest


@dataclass(frozen=True)
class MergePlan:
    """A store to be joined.

    Attributes:
        root: The store to be.
        value: Its manifest.
        copies: Its parts, in order.
    """

    root: str
    value: DatasetManifest
    copies: tuple[PartCopy, ...]


def plan_merge(
    roots: Sequence[str], out: str, *, dataset: str | None = None
) -> MergePlan:
    """Plans a store of the parts of others, in their order.

    Args:
        roots: Stores of one kind, at least two.
        out: The store to be.
        dataset: Its name, where theirs differ.

    Returns:
        The plan.

    Raises:
        UsageError: If there is nothing to join, or it is one of the stores itself.
        DataFormatError: If one cannot be read, if they differ in what a store has one
            of, or if two hold the same rows.
    """
    if len(roots) < 2:
        raise UsageError(f"expected at least two stores to join, got {len(roots)}")
    if any(same_place(root, out) for root in roots):
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
    _check_distinct(copies)
    parts = tuple(copy.joined for copy in copies)
    joined_from = " ".join(s.manifest.fingerprint()[:16] for s in stores)
    value = dataclasses.replace(
        first.manifest,
        dataset=dataset or first.manifest.dataset,
        parts=parts,
        statistics=merge_statistics(parts),
        versions=_join_versions([store.manifest.versions for store in stores]),
        skipped={k: v for s in stores for k, v in s.manifest.skipped.items()},
        history=tuple(step for s in stores for step in s.manifest.history),
        reference_scores=_join_scores([s.manifest.reference_scores for s in stores]),
    )
    history = value.after(f"merge of {joined_from}", installed_versions())
    value = dataclasses.replace(value, history=history)
    return MergePlan(str(out), value, tuple(copies))


def find_merged(plan: MergePlan) -> bool:
    """Looks whether the store of a plan is finished already.

    Args:
        plan: What is about to be joined.

    Returns:
        Whether it is there.

    Raises:
        DataFormatError: If another store is there, or this one and not all of it.
    """
    return holds_parts(plan.root, [part.key for part in plan.value.parts])


def claim(plan: MergePlan, *, take_over: bool = False) -> AbstractContextManager[Claim]:
    """Says in the folder what is being joined there, as long as a block runs.

    Args:
        plan: About to be carried out.
        take_over: Whether to go on in the place of a process that may still run.

    Returns:
        To be entered; the claim.

    Raises:
        DataFormatError: If something else was begun there, or this by a process that
            is not known to have ended, or if the folder holds something else.
    """
    check_folder(plan.root)
    asked = [digest(part.checksums) for part in plan.value.parts]
    return claims.held(plan.root, CLAIM, asked, what="merge", take_over=take_over)


def merge(
    plan: MergePlan,
    claimed: Claim | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> DatasetManifest:
    """Takes over the parts of a plan, and commits the store.

    Args:
        plan: The plan.
        claimed: The claim to work under.
        progress: Called with the rows of each part that is there.

    Returns:
        The store's manifest.

    Raises:
        DataFormatError: If a store lacks a file, or somebody else has taken over or
            committed another store here meanwhile.
        OSError: If there is no room.
    """
    with ThreadPoolExecutor(_COPIES_AT_ONCE) as pool:
        for copy in plan.copies:
            names = object_names(copy.there, copy.part)
            theirs = object_names(plan.value, copy.joined)
            pairs = list(zip(names, theirs, strict=True))
            for done in [
                pool.submit(files.copy, copy.root, name, plan.root, ours)
                for name, ours in pairs
            ]:
                done.result()
            name = f"{copy.joined.folder}/{manifest.PART_MANIFEST}"
            files.write(plan.root, name, manifest_json.to_json(copy.joined).encode())
            if progress is not None:
                progress(copy.joined.rows)
    commit_parts(plan.root, plan.value, claimed)
    return plan.value


def content_key(part: PartManifest) -> str:
    """Key of a part that is what its arrays hold, whatever store it comes from."""
    return digest([manifest.FORMAT_VERSION, part.checksums])[7:23]


def same_place(one: str, other: str) -> bool:
    """Tells whether two paths are of one folder."""
    return _place(one) == _place(other)


def _place(root: str) -> str:
    return root.rstrip("/") if files.is_remote(root) else os.path.realpath(root)


def _check_like(first: Store, store: Store, dataset: str | None) -> None:
    """Refuses stores that differ in something that a store has one of."""
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
                "data set": "give the joined store a name with --dataset",
            }.get(what, "one store holds data of one kind")
            raise DataFormatError(
                f"{first.root} and {store.root} differ in {what}: {expected} and "
                f"{got}; {remedy}"
            )


def _check_distinct(copies: Sequence[PartCopy]) -> None:
    """Refuses the same rows twice."""
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
    """Reference scores that all stores have; a store has one pair of them."""
    return scores[0] if len(set(scores)) == 1 else None


def _join_versions(versions: Sequence[dict[str, str]]) -> dict[str, str]:
    names = sorted({name for each in versions for name in each})
    return {
        name: " and ".join(dict.fromkeys(v[name] for v in versions if name in v))
        for name in names
    }
