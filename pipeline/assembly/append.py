"""Adds parts to a finished store.

New parts are written into folders that the manifest does not name, so that no reader
sees them. The commit then replaces the manifest in one atomic step. This module knows
nothing of Beam.
"""

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pipeline.assembly.commit import (
    are_committed,
    check_dropped,
    check_seen,
    check_unchanged,
    check_whole,
    clear_parts,
    digest_content,
    separate_empty,
)
from pipeline.assembly.known_episodes import find_known
from pipeline.assembly.plan import (
    Inputs,
    PlanOptions,
    StorePlan,
    make_both_splits_error,
    plan_inputs,
)
from pipeline.sources.options import OnKnownEpisode
from pipeline.store import claims, files, manifest, manifest_json
from pipeline.store.claims import Claim
from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import DatasetManifest, PartManifest, describe_fields
from pipeline.store.moments import merge_statistics
from pipeline.store.reader import Store

CLAIM = "append.json"


@dataclass(frozen=True)
class AppendPlan:
    """The plan of parts to add to a store.

    Attributes:
        planned_for: Digest of the manifest that was planned for; the commit refuses any
            other.
        added: Plan of the new parts.
        on_known_episode: Whether to refuse episodes that the store already holds.
    """

    planned_for: str
    added: StorePlan
    on_known_episode: OnKnownEpisode = "refuse"

    def without_lengths(self) -> "AppendPlan":
        """Reduces the plan to what a commit needs; see `StorePlan.without_lengths`."""
        return dataclasses.replace(self, added=self.added.without_lengths())


def plan_append(
    root: str,
    inputs: Inputs,
    options: PlanOptions,
    *,
    on_known_episode: OnKnownEpisode = "refuse",
    command: str = "",
) -> AppendPlan | None:
    """Plans the parts to append.

    Args:
        root: Local path or ``gs://bucket/path`` of the store.
        inputs: Inputs, from `describe_inputs`. An input whose content the store already
            holds, under any name, is left out.
        options: How to cut the inputs into parts, and how to treat bad episodes.
        on_known_episode: What the commit does with single episodes that the store
            already holds.
        command: Entry of the store's history.

    Returns:
        The plan; None if the store already holds all inputs.

    Raises:
        DataFormatError: If the store cannot be read, or an input has other fields.
        UsageError: If an option is out of range.
    """
    store = Store(root)
    old = store.manifest
    held = {(part.split, part.origin.digest) for part in old.planned_parts}
    # The digest of an input's content decides, because files are renamed and copied.
    for split, _, description in inputs.described:
        other = "val" if split == "train" else "train"
        if (other, description.digest) in held:
            raise make_both_splits_error(description.name, f"the store's {other} split")
    new = tuple(
        (split, source, description)
        for split, source, description in inputs.described
        if (split, description.digest) not in held
    )
    if not new:
        # "Nothing to do" would be a lie if files of the store were missing.
        check_whole(root, old)
        return None
    added = plan_inputs(
        root,
        dataclasses.replace(inputs, described=new),
        dataset=old.dataset,
        environment_id=old.environment_id,
        tasks=old.tasks,
        discounts=old.discounts,
        options=options,
        action_scale=old.action_scale,
        first_part=old.planned_parts[-1].index + 1,
        keyed=old.format_version > 1,
        command=command,
    )
    # All parts share the store's arrays, so their fields must agree to the dtype.
    for part in added.parts:
        fields = part.stored_fields()
        if fields != old.fields:
            raise DataFormatError(
                f"{part.origin.name}: expected the fields of the store {root}, "
                f"{describe_fields(old.fields)}, got {describe_fields(fields)}; "
                "write these data into a store of their own"
            )
    return AppendPlan(digest_content(store.content), added, on_known_episode)


def claim(
    plan: AppendPlan, *, take_over: bool = False
) -> AbstractContextManager[Claim]:
    """Claims the store for the parts of a plan; see `pipeline.store.claims.hold`.

    Args:
        plan: The plan.
        take_over: Whether to take the claim of a process that may still run.

    Returns:
        A context manager that holds the claim.

    Raises:
        DataFormatError: If another append was begun in the store, or if a process that
            may still run holds the claim.
    """
    root = plan.added.root
    return claims.hold(
        root,
        CLAIM,
        [part.digest() for part in plan.added.parts],
        what="append",
        take_over=take_over,
        # An append that is killed after its commit leaves a claim on committed parts.
        # The next append must not wait for it.
        settled=[part.plan for part in Store(root).manifest.planned_parts],
    )


def commit_append(
    plan: AppendPlan, parts: Sequence[PartManifest], claimed: Claim | None = None
) -> DatasetManifest:
    """Commits new parts: the store's manifest names them from now on.

    Args:
        plan: Plan that the parts were written by, with or without lengths.
        parts: Manifests of the new parts, in any order.
        claimed: Claim that the parts were written under; None if they were written
            without a claim.

    Returns:
        The store's new manifest.

    Raises:
        DataFormatError: If parts are missing, if too many episodes were dropped or
            are already in the store, or if another process has taken over or changed
            the store since the plan was made.
    """
    root = plan.added.root
    # Workers finish in any order, and the manifest must not depend on it.
    new = sorted(parts, key=lambda part: part.index)
    if [part.index for part in new] != [part.index for part in plan.added.parts]:
        raise DataFormatError(
            f"{root}: expected {len(plan.added.parts)} new parts, got "
            f"{[part.index for part in new]}; repeat the command to write the rest"
        )
    check_dropped(plan.added, new)
    kept, empty = separate_empty(plan.added, new)
    store = Store(root)
    old = store.manifest
    # Runners may run the committing step twice, and another process may have committed
    # the same parts: both count as success.
    if are_committed(old, kept):
        return old
    if plan.on_known_episode == "refuse":
        _check_new(root, kept, claimed)
    check_seen(root, kept)
    check_unchanged(root, store.content, plan.planned_for)
    all_parts = (*old.parts, *kept)
    changed = dataclasses.replace(
        old,
        parts=all_parts,
        statistics=merge_statistics(all_parts),
        skipped=old.skipped | plan.added.skipped,
        history=old.after(plan.added.command, plan.added.versions),
        # Readers of version 1 refuse a manifest with empty parts.
        empty_parts=(*old.empty_parts, *empty) if old.checked else (),
    )

    _clear(root, kept, claimed)
    data = manifest_json.to_json(changed).encode()
    files.commit(root, manifest.DATASET_MANIFEST, data, replacing=store.content)
    return changed


def _check_new(root: str, parts: Sequence[PartManifest], claimed: Claim | None) -> None:
    """Refuses parts with episodes that the store already holds, and deletes the parts.

    The check comes after writing because only then the rows have been read; reading the
    inputs twice would double the time of every append.
    """
    known = find_known(Store(root), parts)
    if known is None:
        return
    _clear(root, (), claimed)
    raise DataFormatError(
        f"{known.name}: {known.known:,} of {known.episodes:,} episodes are in {root} "
        f"already, the first of them as episode {known.episode} of "
        f"{known.part.folder}, from {known.part.origin.name}; nothing was added. Leave "
        "these episodes out, or add --on-known-episode keep"
    )


def _clear(root: str, finished: Sequence[PartManifest], claimed: Claim | None) -> None:
    """Deletes parts in the store's folder that are neither committed nor finished.

    Args:
        root: Local path or ``gs://bucket/path`` of the store.
        finished: Parts that are about to be committed.
        claimed: Claim of this command; None if it has none.

    Raises:
        DataFormatError: If another process has taken the claim over.
    """

    def check() -> None:
        if claimed is not None:
            claimed.check()

    # `clear_parts` checks only before it deletes something, and after a take-over
    # nothing may be committed either.
    check()
    clear_parts(root, finished, check, kept=Store(root).manifest.parts)
