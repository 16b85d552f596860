"""Adding parts to a store that is there. Knows nothing of Beam.

New parts are written beside the old ones, where no reader looks, and the manifest
takes them in in one atomic step.
"""

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pipeline.assembly.commit import (
    check_dropped,
    check_seen,
    check_unchanged,
    check_whole,
    clear_parts,
    digest_of,
)
from pipeline.assembly.known_episodes import find_known
from pipeline.assembly.plan import (
    Inputs,
    PlanOptions,
    StorePlan,
    both_splits,
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
    """Parts to be added.

    Attributes:
        there: Digest of the store's manifest as it was read; the commit is conditional
            on it.
        added: The new parts.
        on_known_episode: Whether to refuse episodes that the store holds already.
    """

    there: str
    added: StorePlan
    on_known_episode: OnKnownEpisode = "refuse"

    def without_lengths(self) -> "AppendPlan":
        """The plan as its commit needs it, see `StorePlan.without_lengths`."""
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
        root: The store.
        inputs: From `look_at`; an input that the store holds already, under whatever
            name, is left out.
        options: How to cut it, and what may be wrong with it.
        on_known_episode: What the commit does with episodes of other inputs that the
            store holds already.
        command: For the history.

    Returns:
        The plan; None if the store holds it all.

    Raises:
        DataFormatError: If the store cannot be read, or the input is of another kind.
        UsageError: If an option is out of range.
    """
    store = Store(root)
    value = store.manifest
    held = {(part.split, part.origin.digest) for part in value.parts}
    for split, _, facts in inputs.found:
        other = "val" if split == "train" else "train"
        if (other, facts.digest) in held:
            raise both_splits(facts.name, f"the store's {other} split")
    found = tuple(
        (split, source, facts)
        for split, source, facts in inputs.found
        if (split, facts.digest) not in held
    )
    if not found:
        check_whole(root, value)
        return None
    added = plan_inputs(
        root,
        dataclasses.replace(inputs, found=found),
        dataset=value.dataset,
        environment_id=value.environment_id,
        tasks=value.tasks,
        discounts=value.discounts,
        options=options,
        action_scale=value.action_scale,
        first_part=len(value.parts),
        keyed=value.format_version > 1,
        command=command,
    )
    for part in added.parts:
        fields = part.stored_fields()
        if fields != value.fields:
            raise DataFormatError(
                f"{part.origin.name}: expected the fields of the store {root}, "
                f"{describe_fields(value.fields)}, got {describe_fields(fields)}; "
                "one store holds data of one kind"
            )
    return AppendPlan(digest_of(store.content), added, on_known_episode)


def claim(
    plan: AppendPlan, *, take_over: bool = False
) -> AbstractContextManager[Claim]:
    """Says in the store which parts are being added, as long as a block runs.

    Args:
        plan: About to be written.
        take_over: Whether to go on in the place of a process that may still run.

    Returns:
        To be entered; the claim.

    Raises:
        DataFormatError: If another append was begun there, or this one by a process
            that is not known to have ended.
    """
    root = plan.added.root
    return claims.held(
        root,
        CLAIM,
        [part.digest() for part in plan.added.parts],
        what="append",
        take_over=take_over,
        settled=[part.plan for part in Store(root).manifest.parts],
    )


def commit_append(
    plan: AppendPlan, parts: Sequence[PartManifest], claimed: Claim | None = None
) -> DatasetManifest:
    """Takes new parts into a store.

    Args:
        plan: What the parts were written by, with or without lengths.
        parts: Their manifests, in any order.
        claimed: The claim that they were written under.

    Returns:
        The store's new manifest.

    Raises:
        DataFormatError: If parts are missing, too many episodes were left out or are
            in the store already, or somebody else has taken over or changed the store
            since it was planned.
    """
    root = plan.added.root
    found = sorted(parts, key=lambda part: part.index)
    if [part.index for part in found] != [part.index for part in plan.added.parts]:
        raise DataFormatError(
            f"{root}: expected {len(plan.added.parts)} new parts, got "
            f"{[part.index for part in found]}; repeat the command to write the rest"
        )
    check_dropped(plan.added, found)
    store = Store(root)
    old = store.manifest
    if all(part in old.parts for part in found):
        return old  # A retry of a commit that did go through, or an equal twin's.
    if plan.on_known_episode == "refuse":
        _check_new(root, found, claimed)
    check_seen(root, found)
    check_unchanged(root, store.content, plan.there)
    together = (*old.parts, *found)
    value = dataclasses.replace(
        old,
        parts=together,
        statistics=merge_statistics(together),
        skipped=old.skipped | plan.added.skipped,
        history=old.after(plan.added.command, plan.added.versions),
    )

    _clear(root, found, claimed)
    data = manifest_json.to_json(value).encode()
    files.commit(root, manifest.DATASET_MANIFEST, data, replacing=store.content)
    return value


def _check_new(root: str, parts: Sequence[PartManifest], claimed: Claim | None) -> None:
    """Refuses episodes that the store holds; what was written of them is deleted."""
    known = find_known(Store(root), parts)
    if known is None:
        return
    _clear(root, (), claimed)
    raise DataFormatError(
        f"{known.name}: {known.known:,} of {known.episodes:,} episodes are in {root} "
        f"already, the first of them as episode {known.episode} of "
        f"{known.part.folder}, from {known.part.origin.name}; nothing was added. Leave "
        "out what is there, or add --on-known-episode keep"
    )


def _clear(root: str, finished: Sequence[PartManifest], claimed: Claim | None) -> None:
    """Deletes what is left of parts that are neither in the store nor about to be."""

    def check() -> None:
        if claimed is not None:
            claimed.check()

    check()
    clear_parts(root, finished, check, kept=Store(root).manifest.parts)
