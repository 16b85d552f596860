"""Writing a store of an earlier version anew, in the one of today: equal rows.

All that the old manifest says of the rows stays, so that runs go on on the new store.
Every array is compared with its checksum on the way: what has been damaged meanwhile is
not sealed as sound. Knows nothing of Beam.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np

from pipeline.assembly.commit import commit_parts, holds_parts
from pipeline.assembly.known_episodes import digest_episodes
from pipeline.assembly.merge import content_key, same_place
from pipeline.assembly.plan import BLOCK_ROWS, installed_versions
from pipeline.sources.episodes import EpisodeRange, cut
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
    """A store to be written anew.

    Attributes:
        store: The store as it is.
        root: The store to be.
    """

    store: Store
    root: str

    @property
    def keys(self) -> list[str]:
        """Keys of the parts to be, in order."""
        return [content_key(part) for part in self.store.manifest.parts]


def plan_upgrade(root: str, out: str) -> UpgradePlan | None:
    """Plans a store of today's version with the rows of an earlier one.

    Args:
        root: The store.
        out: The store to be.

    Returns:
        The plan; None if the store is of today's version already.

    Raises:
        UsageError: If both are the same folder.
        DataFormatError: If the store cannot be read.
    """
    if same_place(root, out):
        raise UsageError(
            f"expected another folder than the store's, got {out}; delete the old "
            "store once the new one is verified"
        )
    store = Store(root)
    if store.manifest.format_version == manifest.FORMAT_VERSION:
        return None
    return UpgradePlan(store, str(out))


def find_upgraded(plan: UpgradePlan) -> bool:
    """Looks whether the store of a plan is finished already.

    Args:
        plan: What is about to be written.

    Returns:
        Whether it is there.

    Raises:
        DataFormatError: If another store is there, or this one and not all of it.
    """
    return holds_parts(plan.root, plan.keys)


def claim(
    plan: UpgradePlan, *, take_over: bool = False
) -> AbstractContextManager[Claim]:
    """Says in the folder what is being written there, as long as a block runs.

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
    asked = [f"sha256:{key}" for key in plan.keys]
    return claims.held(plan.root, CLAIM, asked, what="upgrade", take_over=take_over)


def upgrade(
    plan: UpgradePlan,
    claimed: Claim | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> DatasetManifest:
    """Writes the parts of a plan, and commits the store.

    Args:
        plan: The plan.
        claimed: The claim to work under.
        progress: Called with the rows of each part that is there.

    Returns:
        The store's manifest.

    Raises:
        DataFormatError: If an array is not what its checksum says, or somebody else
            has taken over or committed another store here meanwhile.
        OSError: If there is no room.
    """
    old = plan.store.manifest
    parts = []
    for part in old.parts:
        parts.append(_write(plan, part))
        if progress is not None:
            progress(part.rows)
    value = dataclasses.replace(
        old, parts=tuple(parts), format_version=manifest.FORMAT_VERSION
    )
    command = f"upgrade from format version {old.format_version}"
    history = value.after(command, installed_versions())
    value = dataclasses.replace(value, history=history)

    commit_parts(plan.root, value, claimed)
    return value


def _write(plan: UpgradePlan, part: PartManifest) -> PartManifest:
    """Writes one part anew, unless it is there."""
    store, fields = plan.store, plan.store.manifest.fields
    renewed = dataclasses.replace(part, key=content_key(part), labels="")
    done = read_part(plan.root, renewed.folder)
    if done is not None:
        return done
    lengths = store.episode_lengths(part)
    found = {"episode_lengths": f"sha256:{hashlib.sha256(lengths.data).hexdigest()}"}
    # Before anything is cut by them.
    _check_sums(plan, part, found)
    tasks = len(store.manifest.tasks)
    writer = PartWriter(plan.root, renewed.folder, fields, rows=part.rows, tasks=tasks)
    digests = []
    for block in cut(EpisodeRange(0, 0, tuple(lengths.tolist())), BLOCK_ROWS):
        first, last = block.first_row, block.first_row + block.rows
        rows = {name: store.read_rows(part, name, first, last) for name in fields}
        writer.append(rows)
        digests.append(digest_episodes(rows, np.asarray(block.lengths, np.int64)))
    found = writer.finish(lengths, np.concatenate(digests))
    _check_sums(plan, part, found)
    written = dataclasses.replace(renewed, checksums=found)
    writer.commit(written)
    return written


def _check_sums(plan: UpgradePlan, part: PartManifest, found: dict[str, str]) -> None:
    for name in sorted(found.keys() & part.checksums.keys()):
        if found[name] != part.checksums[name]:
            path = plan.store.manifest.array_folder(part, name)
            raise DataFormatError(
                f"{plan.store.root}/{path}: checksum {found[name][:19]}..., expected "
                f"{part.checksums[name][:19]}...: bytes have changed since it was "
                "written; fetch that store again, or write it from its source"
            )
