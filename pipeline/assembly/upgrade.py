"""Rewrites a store of an earlier format version in the current version.

Rows and everything that the manifest tells of them stay equal, so that runs continue on
the new store. Every array is compared with its old checksum on the way: damaged rows
would otherwise get a new, valid checksum. This module knows nothing of Beam.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from pipeline.assembly.blocks import cut_part
from pipeline.assembly.commit import commit_parts, holds_parts
from pipeline.assembly.known_episodes import digest_episodes
from pipeline.assembly.merge import content_key, is_same_folder
from pipeline.assembly.plan import installed_versions
from pipeline.store import claims, manifest
from pipeline.store.claims import Claim
from pipeline.store.errors import DataFormatError, UsageError
from pipeline.store.folder import check_folder
from pipeline.store.manifest import DatasetManifest, PartManifest
from pipeline.store.reader import Store, read_part
from pipeline.store.writer import PartWriter

CLAIM = "upgrade.json"


@dataclass(frozen=True)
class UpgradePlan:
    """The plan of rewriting a store.

    Attributes:
        store: The old store.
        root: Local path or ``gs://bucket/path`` of the new store.
    """

    store: Store
    root: str

    @property
    def keys(self) -> list[str]:
        """Keys of the new parts, in order."""
        return [content_key(part) for part in self.store.manifest.parts]


def plan_upgrade(root: str, out: str) -> UpgradePlan | None:
    """Plans to rewrite a store.

    Args:
        root: Local path or ``gs://bucket/path`` of the old store.
        out: Local path or ``gs://bucket/path`` of the new store.

    Returns:
        The plan; None if the store already has the current version.

    Raises:
        UsageError: If both paths are the same folder.
        DataFormatError: If the old store cannot be read.
    """
    if is_same_folder(root, out):
        raise UsageError(
            f"expected another folder than the store's, got {out}; delete the old "
            "store once the new one is verified"
        )
    store = Store(root)
    if store.manifest.format_version == manifest.FORMAT_VERSION:
        return None
    return UpgradePlan(store, str(out))


def find_upgraded(plan: UpgradePlan) -> bool:
    """Tells whether the new store of a plan is already finished.

    Args:
        plan: The plan.

    Returns:
        Whether the store is finished.

    Raises:
        DataFormatError: If another store is finished there, or if files of this one
            are missing.
    """
    return holds_parts(plan.root, plan.keys, dataset=plan.store.manifest.dataset)


def claim(
    plan: UpgradePlan, *, take_over: bool = False
) -> AbstractContextManager[Claim]:
    """Claims the folder of the new store; see `pipeline.store.claims.hold`.

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
    asked = [f"sha256:{key}" for key in plan.keys]
    return claims.hold(plan.root, CLAIM, asked, what="upgrade", take_over=take_over)


def upgrade(
    plan: UpgradePlan,
    claimed: Claim | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> DatasetManifest:
    """Writes the parts of a plan, and commits the new store.

    Args:
        plan: The plan.
        claimed: Claim to work under.
        progress: Called with the rows of each part that is finished.

    Returns:
        Manifest of the new store.

    Raises:
        DataFormatError: If an array differs from its checksum, or if another process
            has taken over or committed another store meanwhile.
        OSError: If the disk is full or fails.
    """
    old = plan.store.manifest
    parts = []
    for part in old.parts:
        parts.append(_write(plan, part))
        if progress is not None:
            progress(part.rows)
    upgraded = dataclasses.replace(
        old, parts=tuple(parts), format_version=manifest.FORMAT_VERSION
    )
    command = f"upgrade from format version {old.format_version}"
    history = upgraded.after(command, installed_versions())
    upgraded = dataclasses.replace(upgraded, history=history)

    commit_parts(plan.root, upgraded, claimed)
    return upgraded


def _write(plan: UpgradePlan, part: PartManifest) -> PartManifest:
    """Rewrites one part, unless it is finished."""
    store, fields = plan.store, plan.store.manifest.fields
    renewed = dataclasses.replace(part, key=content_key(part), labels="")
    done = read_part(plan.root, renewed.folder)
    if done is not None:
        return done
    lengths = store.episode_lengths(part)
    # The lengths are checked first, because all other arrays are cut by them.
    checksum = f"sha256:{hashlib.sha256(lengths.data).hexdigest()}"
    _check_sums(plan, part, {"episode_lengths": checksum})
    tasks = len(store.manifest.tasks)
    writer = PartWriter(plan.root, renewed.folder, fields, rows=part.rows, tasks=tasks)
    digests = []
    for block in cut_part(lengths, fields):
        first, last = block.first_row, block.first_row + block.rows
        rows = {name: store.read_rows(part, name, first, last) for name in fields}
        writer.append(rows)
        digests.append(digest_episodes(rows, np.asarray(block.lengths, np.int64)))
    checksums = writer.finish(lengths, np.concatenate(digests))
    _check_sums(plan, part, checksums)
    written = dataclasses.replace(renewed, checksums=checksums)
    writer.commit(written)
    return written


def _check_sums(plan: UpgradePlan, part: PartManifest, sums: dict[str, str]) -> None:
    """Refuses arrays whose checksums differ from those of the old manifest."""
    for name in sorted(sums.keys() & part.checksums.keys()):
        if sums[name] != part.checksums[name]:
            path = plan.store.manifest.array_folder(part, name)
            raise DataFormatError(
                f"{plan.store.root}/{path}: checksum {sums[name][:19]}..., expected "
                f"{part.checksums[name][:19]}...: bytes have changed since it was "
                "written; fetch that store again, or write it from its source"
            )
