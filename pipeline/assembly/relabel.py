"""Adding tasks and discounts to a store that is there.

Observations, actions and physics state stay where they are; the per-task arrays are
written anew, into a folder of their own in each part, and the manifest moves over to
them in one atomic step. Readers see the old labels or the new ones, never a mixture.
Knows nothing of Beam.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.assembly.commit import (
    check_seen,
    check_unchanged,
    delete_files,
    digest_of,
)
from pipeline.assembly.labels import label_episodes
from pipeline.assembly.plan import BLOCK_ROWS, installed_versions
from pipeline.sources.episodes import EpisodeRange, cut
from pipeline.store import claims, files, layout, manifest, manifest_json, schema
from pipeline.store.claims import Claim
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.manifest import DatasetManifest, FieldSpec, PartManifest, Task
from pipeline.store.moments import Summary, merge_statistics
from pipeline.store.reader import Store, read_part
from pipeline.store.writer import ColumnsWriter

CLAIM = "relabel.json"
# What rewards and masks are made from.
_PHYSICS = ("qpos", "button_states")


@dataclass(frozen=True)
class LabelsPlan:
    """New labels of one part: what travels to a worker.

    Attributes:
        root: The store.
        part: The part as it is.
        tasks: Columns to be.
        discounts: Of the return sums to be.
        labels: Folder of the new arrays within the part.
    """

    root: str
    part: PartManifest
    tasks: tuple[Task, ...]
    discounts: tuple[float, ...]
    labels: str


@dataclass(frozen=True)
class RelabelPlan:
    """New labels of a whole store.

    Attributes:
        root: The store.
        there: Digest of its manifest as it was read; the commit is conditional on it.
        parts: In order; of a plan for the commit alone, the first.
        command: What decides what is added, for the store's history.
        versions: Of what is installed, likewise.
    """

    root: str
    there: str
    parts: tuple[LabelsPlan, ...]
    command: str = ""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(each.part.rows for each in self.parts)

    def without_parts(self) -> "RelabelPlan":
        """The plan as its commit needs it: of one part, for the labels to be."""
        return dataclasses.replace(self, parts=self.parts[:1])


def plan_relabelling(
    root: str,
    *,
    tasks: Sequence[Task] = (),
    discounts: Sequence[float] = (),
    command: str = "",
) -> RelabelPlan | None:
    """Plans what a store is to hold besides.

    Args:
        root: The store.
        tasks: To add, or hold already.
        discounts: To add, or hold already; each in (0, 1].
        command: For the history.

    Returns:
        The plan; None if the store holds it all.

    Raises:
        UsageError: If a discount is out of range.
        DataFormatError: If the store cannot be read, or its rewards came with the
            data and no task can be added.
    """
    for discount in discounts:
        if not 0.0 < discount <= 1.0:
            raise UsageError(f"expected discounts in (0, 1], got {discount}")
    store = Store(root)
    value = store.manifest
    added = {task.task: task for task in tasks} | {t.task: t for t in value.tasks}
    if len(added) > len(value.tasks) and any(t.recipe == "stored" for t in value.tasks):
        raise DataFormatError(
            f"{root}: expected a store with tasks that are relabelled from physics "
            "state, got one whose rewards came with the data; leave --tasks out"
        )
    wanted = tuple(added[number] for number in sorted(added))
    sums = tuple(sorted({*value.discounts, *map(float, discounts)}))
    if (wanted, sums) == (value.tasks, value.discounts):
        return None
    # What an earlier version wrote of the same labels, and did not finish, stays apart.
    asked = [[dataclasses.asdict(t) for t in wanted], sums, manifest.FORMAT_VERSION]
    text = json.dumps(asked, sort_keys=True)
    labels = f"labels-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    parts = (LabelsPlan(root, part, wanted, sums, labels) for part in value.parts)
    versions = installed_versions()
    return RelabelPlan(root, digest_of(store.content), tuple(parts), command, versions)


def write_labels(plan: LabelsPlan) -> PartManifest:
    """Writes the new per-task arrays of one part; those that are there stay.

    Args:
        plan: Which part, and what it is to hold.

    Returns:
        The part's manifest as it will be.

    Raises:
        DataFormatError: If arrays of the part cannot be read.
    """
    renewed = dataclasses.replace(plan.part, labels=plan.labels)
    done = read_part(plan.root, renewed.labels_folder)
    if done is not None and done.plan == plan.part.plan:
        return done
    store = Store(plan.root)
    fields = schema.task_fields(plan.discounts)
    writer = ColumnsWriter(
        plan.root,
        renewed.labels_folder,
        fields,
        rows=plan.part.rows,
        tasks=len(plan.tasks),
    )
    lengths = store.episode_lengths(plan.part)
    summary = Summary()
    for block in cut(EpisodeRange(0, 0, tuple(lengths.tolist())), BLOCK_ROWS):
        columns = label_episodes(
            plan.tasks,
            plan.discounts,
            _inputs(store, plan, block),
            np.asarray(block.lengths, np.int64),
        )
        writer.append(columns)
        summary.add(columns)
    result = dataclasses.replace(
        renewed,
        statistics=_kept(plan.part.statistics) | summary.statistics(),
        checksums=_kept(plan.part.checksums) | writer.finish_columns(plan.part.rows),
    )
    writer.commit(result)
    return result


def claim(
    plan: RelabelPlan, *, take_over: bool = False
) -> AbstractContextManager[Claim]:
    """Says in the store which labels are being written, as long as a block runs.

    Args:
        plan: About to be written.
        take_over: Whether to go on in the place of a process that may still run.

    Returns:
        To be entered; the claim.

    Raises:
        DataFormatError: If another relabelling was begun there, or this one by a
            process that is not known to have ended.
    """
    return claims.held(
        plan.root,
        CLAIM,
        [plan.parts[0].labels],
        what="relabelling",
        take_over=take_over,
        settled=[part.labels for part in Store(plan.root).manifest.parts],
    )


def commit_labels(
    plan: RelabelPlan, parts: Sequence[PartManifest], claimed: Claim | None = None
) -> DatasetManifest:
    """Moves a store over to its new labels.

    Args:
        plan: What the labels were written by, with or without its parts.
        parts: Manifests of all parts, in any order.
        claimed: The claim that they were written under.

    Returns:
        The store's new manifest.

    Raises:
        DataFormatError: If parts are missing, or somebody else has taken over or
            changed the store since it was planned; the old labels are then still
            there.
    """
    found = tuple(sorted(parts, key=lambda part: part.index))
    store = Store(plan.root)
    old = store.manifest
    if found and all(part in old.parts for part in found):
        return old  # A retry of a commit that did go through, or an equal twin's.
    check_unchanged(plan.root, store.content, plan.there)
    if [part.index for part in found] != [part.index for part in old.parts]:
        raise DataFormatError(
            f"{plan.root}: expected labels of {len(old.parts)} parts, got those of "
            f"{[part.index for part in found]}; repeat the command"
        )
    check_seen(plan.root, found)
    of_rows = {n: field for n, field in old.fields.items() if field.per == "row"}
    fields: dict[str, FieldSpec] = of_rows | schema.task_fields(plan.parts[0].discounts)
    value = dataclasses.replace(
        old,
        fields=fields,
        tasks=plan.parts[0].tasks,
        discounts=plan.parts[0].discounts,
        parts=found,
        statistics=merge_statistics(found),
        history=old.after(plan.command, plan.versions),
    )
    if claimed is not None:
        claimed.check()
    for part in found:
        delete_files(plan.root, part.labels_folder, layout.is_unfinished_file)
    data = manifest_json.to_json(value).encode()
    files.commit(plan.root, manifest.DATASET_MANIFEST, data, replacing=store.content)
    return value


def _inputs(
    store: Store, plan: LabelsPlan, block: EpisodeRange
) -> dict[str, npt.NDArray[Any]]:
    """What the labels of a block are made from."""
    names = [name for name in _PHYSICS if name in store.manifest.fields]
    if plan.tasks[0].recipe == "stored":
        names = [schema.REWARDS, schema.MASKS]
    first, last = block.first_row, block.first_row + block.rows
    return {name: store.read_rows(plan.part, name, first, last) for name in names}


def _kept(named: Mapping[str, Any]) -> dict[str, Any]:
    """What belongs to the arrays that stay."""
    return {
        name: value
        for name, value in named.items()
        if name not in (schema.REWARDS, schema.MASKS)
        and not name.startswith("returns/")
    }
