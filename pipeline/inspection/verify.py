"""Checks a store against its manifests, and its labels against its physics states.

Checking reads and recomputes, and never writes. It returns all faults as findings,
instead of raising an error at the first.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.assembly.blocks import cut_part
from pipeline.assembly.known_episodes import Digests, digest_episodes, read_digests
from pipeline.assembly.labels import label_episodes
from pipeline.store import arrays, reader, schema
from pipeline.store.errors import BadEpisodeError, DataFormatError
from pipeline.store.manifest import EPISODE_DIGESTS, PartManifest, Statistics
from pipeline.store.moments import Summary, merge_statistics
from pipeline.store.reader import Store

Array = npt.NDArray[Any]

# Relative to the largest value of a field. Mean and deviation depend on the order in
# which blocks were merged, and the writer may have cut blocks elsewhere; counts and
# extremes do not.
_STATISTICS_TOLERANCE = {
    "count": 0.0,
    "mean": 1e-9,
    "std": 1e-9,
    "minimum": 0.0,
    "maximum": 0.0,
}


def verify_store(
    store: Store,
    *,
    deep: bool = False,
    progress: Callable[[int], None] | None = None,
) -> list[str]:
    """Checks a store against everything its manifests state.

    Args:
        store: The store.
        deep: Whether to recompute rewards, masks, return sums and statistics as well,
            and to look for NaN and Inf.
        progress: Called after each part, with its number of rows.

    Returns:
        Findings, a sentence each; empty if the store is sound.
    """
    findings = []
    for part in store.manifest.parts:
        faults = list(_check_part(store, part))
        # Labels that follow from damaged arrays would only repeat the finding.
        if deep and not faults:
            faults = list(_check_labels(store, part))
        findings += [f"{part.folder}/{fault}" for fault in faults]
        if progress is not None:
            progress(part.rows)
    merged = merge_statistics(store.manifest.parts)
    findings += _compare_statistics(
        "dataset.json", merged, store.manifest.statistics, "merged over its parts"
    )
    return findings


def _check_part(store: Store, part: PartManifest) -> Iterator[str]:
    """Checks manifest, arrays, checksums and episode table of one part."""
    try:
        alone = reader.read_part(store.root, part.labels_folder)
    except DataFormatError as error:
        yield f"part.json: {error}"
    else:
        if alone is None:
            yield "part.json: is missing"
        # Writers read part.json and readers dataset.json, so both must say the same.
        elif alone != part:
            yield "part.json: differs from what dataset.json says of this part"
    fields = {**store.manifest.fields, **part.table}
    for name in sorted(part.checksums.keys() - fields.keys()):
        yield f"{name}: has a checksum, and dataset.json knows no such field"
    whole = True
    for name, field in fields.items():
        rows = part.episodes if name in part.table else part.rows
        tasks = len(store.manifest.tasks)
        shape = arrays.array_shape(field, rows=rows, tasks=tasks)
        try:
            path = store.manifest.array_folder(part, name)
            array = arrays.open_array(store.root, path)
            if array.shape != shape or array.dtype.numpy_dtype != field.dtype:
                yield (
                    f"{name}: expected {field.dtype}{list(shape)}, got "
                    f"{array.dtype.name}{list(array.shape)}"
                )
                whole = False
                continue
            if store.manifest.checked and not arrays.has_checksums(array):
                yield f"{name}: its chunks have no checksums, as format 2 has them"
            # Checksums are of values, and do not depend on chunks or compression.
            checksum = _checksum(array, arrays.shard_rows(field))
        except (ValueError, OSError) as error:
            yield f"{name}: cannot be read ({_first_line(error)})"
            whole = False
            continue
        if checksum != part.checksums.get(name):
            yield (
                f"{name}: checksum {checksum[:19]}..., expected "
                f"{part.checksums.get(name, 'none')[:19]}...: bytes have changed"
            )
            whole = False
    if whole:
        yield from _check_episodes(store, part)


def _check_episodes(store: Store, part: PartManifest) -> Iterator[str]:
    lengths = store.read_rows(part, "episode_lengths", 0, part.episodes)
    starts = store.read_rows(part, "episode_starts", 0, part.episodes)
    if (lengths < 1).any():
        yield f"episode_lengths: episode {int(np.argmax(lengths < 1))} has no rows"
    if lengths.sum() != part.rows:
        yield f"episode_lengths: sum to {lengths.sum()}, expected {part.rows} rows"
    if not np.array_equal(starts, np.cumsum(lengths) - lengths):
        yield "episode_starts: do not follow from the lengths"


def _check_labels(store: Store, part: PartManifest) -> Iterator[str]:
    """Recomputes everything of a part that follows from its other arrays."""
    manifest = store.manifest
    lengths = store.read_rows(part, "episode_lengths", 0, part.episodes)
    summary = Summary()
    digests: list[Digests] = []
    wrong: dict[str, tuple[int, int]] = {}
    # Blocks hold whole episodes, because returns accumulate within an episode.
    for block in cut_part(lengths, manifest.fields):
        first, last = block.first_row, block.first_row + block.rows
        rows = {
            name: store.read_rows(part, name, first, last) for name in manifest.fields
        }
        counts = np.asarray(block.lengths, np.int64)
        summary.add(rows, counts)
        digests.append(digest_episodes(rows, counts))
        where = f"rows {first} to {last - 1}"
        try:
            schema.check_rows(rows, where=where, lengths=counts)
        except BadEpisodeError as error:
            yield str(error)
        labels = label_episodes(
            manifest.tasks,
            manifest.discounts,
            rows,
            counts,
        )
        for name, values in labels.items():
            # The same code made the labels, so they have to be equal to the bit.
            unequal = (values != rows[name]).any(axis=1)
            if unequal.any():
                row, count = wrong.get(name, (first + int(np.argmax(unequal)), 0))
                wrong[name] = (row, count + int(unequal.sum()))
    if EPISODE_DIGESTS in part.checksums:
        kept = read_digests(store, part)
        unequal = kept != np.concatenate(digests)
        if unequal.any():
            first = int(np.argmax(unequal))
            yield f"{EPISODE_DIGESTS}: that of episode {first} is not of its rows"
    for name, (row, count) in wrong.items():
        yield (
            f"{name}: {count} of {part.rows} rows are not what physics state and tasks "
            f"give, the first of them row {row}"
        )
    yield from _compare_statistics(
        "part.json", summary.statistics(), part.statistics, "of its rows"
    )


def _compare_statistics(
    where: str,
    computed: dict[str, Statistics],
    stated: dict[str, Statistics],
    what: str,
) -> list[str]:
    findings = []
    for name in sorted(computed.keys() | stated.keys()):
        if name not in computed or name not in stated:
            findings.append(f"{where}: statistics of {name} are missing")
            continue
        for key in _STATISTICS_TOLERANCE:
            ours = np.asarray(getattr(computed[name], key), np.float64)
            theirs = np.asarray(getattr(stated[name], key), np.float64)
            # The bound comes from the computed values alone, and the comparison asks
            # whether values are near: a manifest may state anything, even NaN.
            bound = _STATISTICS_TOLERANCE[key] * _largest_size(computed[name])
            if ours.shape != theirs.shape or not (np.abs(ours - theirs) <= bound).all():
                findings.append(
                    f"{where}: {key} of {name} is {_show_first(theirs)}, not that "
                    f"{what}, {_show_first(ours)}"
                )
    return findings


def _largest_size(statistics: Statistics) -> npt.NDArray[np.float64]:
    """Returns the largest absolute value of each component."""
    ends = np.array([statistics.minimum, statistics.maximum], np.float64)
    return np.asarray(np.abs(ends).max(axis=0))


def _show_first(values: Array) -> str:
    shown = ", ".join(f"{value:.6g}" for value in values.reshape(-1)[:3])
    return f"{shown}, ..." if values.size > 3 else shown


def _checksum(array: Any, step: int) -> str:
    digest = hashlib.sha256()
    for first in range(0, array.shape[0], step):
        values = array[first : min(first + step, array.shape[0])].read().result()
        digest.update(np.ascontiguousarray(values).data)
    return f"sha256:{digest.hexdigest()}"


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:160]
