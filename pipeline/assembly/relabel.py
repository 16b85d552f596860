"""Adds tasks and discounts to a finished store.

Observations, actions and physics state stay as they are. The per-task arrays are
written again, into a new folder within each part, and one atomic replacement of the
manifest makes readers use them. A reader sees either all old labels or all new ones.
This module knows nothing of Beam.
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

from pipeline.assembly.blocks import BLOCK_ROWS
from pipeline.assembly.commit import (
    are_committed,
    check_seen,
    check_unchanged,
    delete_files,
    digest_content,
)
from pipeline.assembly.labels import check_discounts, label_episodes
from pipeline.assembly.plan import installed_versions
from pipeline.sources.episodes import EpisodeRange, cut
from pipeline.store import claims, files, layout, manifest, manifest_json, schema
from pipeline.store.claims import Claim
from pipeline.store.errors import DataFormatError
from pipeline.store.manifest import DatasetManifest, FieldSpec, PartManifest, Task
from pipeline.store.moments import Summary, merge_statistics
from pipeline.store.reader import Store, read_part
from pipeline.store.writer import ColumnsWriter

CLAIM = "relabel.json"
# Fields that rewards and masks are computed from.
_PHYSICS = ("qpos", "button_states")


@dataclass(frozen=True)
class LabelsPlan:
    """The plan for new labels of one part, which Beam sends to a worker.

    Attributes:
        root: Local path or ``gs://bucket/path`` of the store.
        store: Current manifest of the store, reduced to the part.
        tasks: Tasks of the new columns, in order.
        discounts: Discounts of the new return sums.
        labels: Folder of the new arrays, relative to the part.
    """

    root: str
    store: DatasetManifest
    tasks: tuple[Task, ...]
    discounts: tuple[float, ...]
    labels: str

    @property
    def part(self) -> PartManifest:
        """Current manifest of the part."""
        return self.store.parts[0]


@dataclass(frozen=True)
class RelabelPlan:
    """The plan for new labels of a whole store.

    Attributes:
        root: Local path or ``gs://bucket/path`` of the store.
        planned_for: Digest of the manifest that was planned for; the commit refuses any
            other.
        parts: Plans of the parts in order; only the first in a plan for the commit.
        command: Entry of the store's history.
        versions: Versions of installed packages by name, for the history.
    """

    root: str
    planned_for: str
    parts: tuple[LabelsPlan, ...]
    command: str = ""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of all parts."""
        return sum(plan.part.rows for plan in self.parts)

    def without_parts(self) -> "RelabelPlan":
        """Reduces the plan to what its commit needs: one part names the labels."""
        return dataclasses.replace(self, parts=self.parts[:1])


def plan_relabelling(
    root: str,
    *,
    tasks: Sequence[Task] = (),
    discounts: Sequence[float] = (),
    command: str = "",
) -> RelabelPlan | None:
    """Plans the labels that a store lacks.

    Args:
        root: Local path or ``gs://bucket/path`` of the store.
        tasks: Tasks that the store should hold besides its own.
        discounts: Discounts, in (0, 1], that the store should hold besides its own.
        command: Entry of the store's history.

    Returns:
        The plan; None if the store already holds all tasks and discounts.

    Raises:
        UsageError: If a discount is out of range.
        DataFormatError: If the store cannot be read, or if tasks are to be added
            although the rewards came with the data.
    """
    check_discounts(discounts)
    store = Store(root)
    old = store.manifest
    added = {task.task: task for task in tasks} | {t.task: t for t in old.tasks}
    if len(added) > len(old.tasks) and any(t.recipe == "stored" for t in old.tasks):
        raise DataFormatError(
            f"{root}: expected a store with tasks that are relabelled from physics "
            "state, got one whose rewards came with the data; leave --tasks out"
        )
    wanted = tuple(added[number] for number in sorted(added))
    sums = tuple(sorted({*old.discounts, *map(float, discounts)}))
    if (wanted, sums) == (old.tasks, old.discounts):
        return None
    # The folder is named after its content, so that commands with other tasks write
    # elsewhere. The format's version is part of the name: arrays that an earlier
    # version began have no checksums and must not be mixed in.
    asked = [[dataclasses.asdict(t) for t in wanted], sums, manifest.FORMAT_VERSION]
    text = json.dumps(asked, sort_keys=True)
    labels = f"labels-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    # Workers get what they need of the manifest. Read by each of them, for each part,
    # the bytes would grow with the square of the number of parts.
    reduced = dataclasses.replace(
        old, statistics={}, skipped={}, history=(), empty_parts=()
    )
    parts = (
        LabelsPlan(
            root, dataclasses.replace(reduced, parts=(part,)), wanted, sums, labels
        )
        for part in old.parts
    )
    versions = installed_versions()
    return RelabelPlan(
        root, digest_content(store.content), tuple(parts), command, versions
    )


def write_labels(plan: LabelsPlan) -> PartManifest:
    """Writes the new per-task arrays of one part, unless they are finished.

    Args:
        plan: Plan of the part.

    Returns:
        Manifest of the part with its new labels.

    Raises:
        DataFormatError: If arrays of the part cannot be read.
    """
    renewed = dataclasses.replace(plan.part, labels=plan.labels)
    done = read_part(plan.root, renewed.labels_folder)
    if done is not None and done.plan == plan.part.plan:
        return done
    store = Store(plan.root, plan.store)
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
        counts = np.asarray(block.lengths, np.int64)
        columns = label_episodes(
            plan.tasks, plan.discounts, _read_inputs(store, plan, block), counts
        )
        writer.append(columns)
        summary.add(columns, counts)
    result = dataclasses.replace(
        renewed,
        statistics=_drop_labels(plan.part.statistics) | summary.statistics(),
        checksums=_drop_labels(plan.part.checksums)
        | writer.finish_columns(plan.part.rows),
    )
    writer.commit(result)
    return result


def claim(
    plan: RelabelPlan, *, take_over: bool = False
) -> AbstractContextManager[Claim]:
    """Claims a store for the labels of a plan; see `pipeline.store.claims.hold`.

    Args:
        plan: The plan.
        take_over: Whether to take the claim of a process that may still run.

    Returns:
        A context manager that holds the claim.

    Raises:
        DataFormatError: If another relabelling was begun in the store, or if a process
            that may still run holds the claim.
    """
    return claims.hold(
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
    """Commits new labels: readers of the store use them from now on.

    Args:
        plan: Plan that the labels were written by, with or without its parts.
        parts: Manifests of all parts, in any order.
        claimed: Claim that the labels were written under.

    Returns:
        The store's new manifest.

    Raises:
        DataFormatError: If parts are missing, or if another process has taken over or
            changed the store since the plan was made. The store then keeps its old
            labels.
    """
    renewed = tuple(sorted(parts, key=lambda part: part.index))
    store = Store(plan.root)
    old = store.manifest
    # Runners may run the committing step twice, and another process may have committed
    # the same labels: both count as success.
    if renewed and are_committed(old, renewed):
        return old
    check_unchanged(plan.root, store.content, plan.planned_for)
    if [part.index for part in renewed] != [part.index for part in old.parts]:
        raise DataFormatError(
            f"{plan.root}: expected labels of {len(old.parts)} parts, got those of "
            f"{[part.index for part in renewed]}; repeat the command"
        )
    check_seen(plan.root, renewed)
    of_rows = {n: field for n, field in old.fields.items() if field.per == "row"}
    fields: dict[str, FieldSpec] = of_rows | schema.task_fields(plan.parts[0].discounts)
    changed = dataclasses.replace(
        old,
        fields=fields,
        tasks=plan.parts[0].tasks,
        discounts=plan.parts[0].discounts,
        parts=renewed,
        statistics=merge_statistics(renewed),
        history=old.after(plan.command, plan.versions),
    )
    if claimed is not None:
        claimed.check()
    # Killed writers leave temporary files on disks alone; a bucket would be asked for a
    # listing for each part.
    if not files.is_remote(plan.root):
        for part in renewed:
            delete_files(plan.root, part.labels_folder, layout.is_unfinished_file)
    data = manifest_json.to_json(changed).encode()
    files.commit(plan.root, manifest.DATASET_MANIFEST, data, replacing=store.content)
    return changed


def _read_inputs(
    store: Store, plan: LabelsPlan, block: EpisodeRange
) -> dict[str, npt.NDArray[Any]]:
    """Reads the rows that the labels of a block are computed from."""
    names = [name for name in _PHYSICS if name in store.manifest.fields]
    if plan.tasks[0].recipe == "stored":
        names = [schema.REWARDS, schema.MASKS]
    first, last = block.first_row, block.first_row + block.rows
    return {name: store.read_rows(plan.part, name, first, last) for name in names}


def _drop_labels(by_field: Mapping[str, Any]) -> dict[str, Any]:
    """Returns entries of the fields that relabelling keeps, by field name."""
    return {
        name: entry
        for name, entry in by_field.items()
        if name not in (schema.REWARDS, schema.MASKS)
        and not name.startswith("returns/")
    }
