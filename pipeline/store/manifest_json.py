"""Encodes the store's manifests as sealed, canonical JSON, and decodes and checks them.

Keys are sorted and the layout is fixed, so that equal manifests have equal bytes.
"""

import dataclasses
import json
import math
import re
from typing import TypeVar

import pydantic

from pipeline.store.decoding import load_object, read_first_error
from pipeline.store.errors import DataFormatError, FormatVersionError
from pipeline.store.manifest import (
    FORMAT_VERSION,
    PART_MANIFEST,
    DatasetManifest,
    Json,
    PartManifest,
    returns_field,
)
from pipeline.store.seals import check_seal, seal, without_seal

_T = TypeVar("_T")
_DTYPES = {"bool", "float16", "float32", "float64"} | {
    f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
}
# Bounds far above any real store. They refuse damaged numbers before memory is
# allocated for them, and are low enough that no product of two overflows int64.
_MAX_ROWS = 1 << 40
_MAX_ROW_NUMBERS = 1 << 31
_WRITE_AGAIN = "the file is damaged or not of this project, write the store again"
# A run finds finished parts by their `part.json` and skips them, so a damaged one has
# to go before the run can write the part again.
_DELETE = (
    "the file is damaged; if its store is being written, delete the file and repeat "
    "the command"
)
_LABELS = re.compile(r"(labels-[0-9a-f]{16})?")
_KEY = re.compile(r"([0-9a-f]{16})?")
_PER_ROW = ("observations", "actions")
_PER_TASK = ("rewards", "masks")


def to_json(manifest: DatasetManifest | PartManifest) -> str:
    """Encodes a manifest as canonical, indented JSON.

    Args:
        manifest: The manifest of a store or of a part.

    Returns:
        The JSON text, sealed except for stores of version 1.
    """
    # Readers refuse unknown keys. Keys that a later release added are therefore left
    # out while they are empty, so that older releases go on reading older stores.
    entries = dataclasses.asdict(manifest)
    for part in (*entries.get("parts", [entries]), *entries.get("empty_parts", ())):
        if not part["key"]:
            del part["key"]
    for name in ("action_scale", "reference_scores"):
        if entries.get(name, entries) is None:
            del entries[name]
    for name in ("history", "empty_parts"):
        if not entries.get(name, True):
            del entries[name]
    if isinstance(manifest, PartManifest) or manifest.checked:
        entries = seal(entries)
    return json.dumps(entries, indent=1, sort_keys=True) + "\n"


def dataset_from_json(text: str | bytes, *, where: str) -> DatasetManifest:
    """Decodes and validates ``dataset.json``.

    Args:
        text: The file's content.
        where: Path of the file, for the error.

    Returns:
        The manifest.

    Raises:
        FormatVersionError: If its format version is newer than this reader's.
        DataFormatError: If it is no valid manifest, or has changed since it was sealed.
    """
    entries = load_object(text, where=where, remedy=_WRITE_AGAIN, finite=True)
    version = entries.get("format_version")
    # `type` and not isinstance: JSON's true decodes to an int of Python, and is no
    # version.
    if type(version) is int and version > FORMAT_VERSION:
        raise FormatVersionError(
            f"{where}: format version {version!r}, and this reader knows versions up "
            f"to {FORMAT_VERSION}; install a newer vast-rl to read it"
        )
    is_version = type(version) is int and version >= 1
    _require(is_version, where, "format_version", "1 or above", version)
    decoded = _validate(pydantic.TypeAdapter(DatasetManifest), entries, where)
    _check_dataset(decoded, where)
    # The seal is compared last: if an entry is impossible by itself, an error that
    # names its key helps more than one about the whole file.
    required = decoded.checked
    check_seal(entries, where=where, remedy=_WRITE_AGAIN, required=required)
    return decoded


def part_from_json(text: str | bytes, *, where: str) -> PartManifest:
    """Decodes and validates ``part.json``.

    Args:
        text: The file's content.
        where: Path of the file, for the error.

    Returns:
        The manifest.

    Raises:
        DataFormatError: If it is no valid manifest, or has changed since it was sealed.
    """
    entries = load_object(text, where=where, remedy=_DELETE, finite=True)
    part = _validate(pydantic.TypeAdapter(PartManifest), entries, where)
    _check_part(part, where)
    check_seal(entries, where=where, remedy=_DELETE, required=False)
    return part


def _validate(adapter: pydantic.TypeAdapter[_T], entries: Json, where: str) -> _T:
    try:
        return adapter.validate_python(without_seal(entries))
    except pydantic.ValidationError as error:
        first = read_first_error(error)
        raise DataFormatError(
            f"{where}: {first.place}: {first.message} (got {first.given!r:.400}); "
            f"{_remedy(where)}"
        ) from error


def _check_dataset(manifest: DatasetManifest, where: str) -> None:
    """Refuses a store's manifest whose values have the right types but cannot be true.

    Readers compute with these values. A shape of -1, for example, would end in a
    traceback of NumPy, and a field named `../x` would be read outside the store.
    """
    numbers = [task.task for task in manifest.tasks]
    distinct = len(set(numbers)) == len(numbers) > 0 and min(numbers) > 0
    _require(distinct, where, "tasks", "distinct numbers from 1", numbers)
    for discount in manifest.discounts:
        _require(0.0 < discount <= 1.0, where, "discounts", "(0, 1]", discount)
    # The trainer reads these fields without asking; all others are optional.
    per_task = (*_PER_TASK, *map(returns_field, manifest.discounts))
    for name in (*_PER_ROW, *per_task):
        _require(
            name in manifest.fields, where, "fields", name, sorted(manifest.fields)
        )
        per = "row_and_task" if name in per_task else "row"
        actual = manifest.fields[name].per
        _require(actual == per, where, f"fields.{name}.per", per, actual)
    for name, field in manifest.fields.items():
        place = f"fields.{name}"
        inside = not {"", ".", ".."} & set(name.split("/"))
        _require(inside, where, place, "a name within the part", name)
        is_number = field.dtype in _DTYPES
        _require(is_number, where, f"{place}.dtype", "a dtype of numbers", field.dtype)
        fits = min(field.shape, default=1) > 0
        fits = fits and math.prod(field.shape) <= _MAX_ROW_NUMBERS
        _require(fits, where, f"{place}.shape", "lengths from 1", field.shape)
    if manifest.action_scale is not None:
        shape, bounds = manifest.fields["actions"].shape, len(manifest.action_scale.low)
        _require(shape == (bounds,), where, "action_scale", f"{shape} bounds", bounds)
    indices = [part.index for part in manifest.planned_parts]
    distinct = len(set(indices)) == len(indices) and len(manifest.parts) > 0
    _require(distinct, where, "parts", "at least one, of distinct indices", indices)
    for part in manifest.parts:
        _check_part(part, where, place=f"parts.{part.index}.")
    for part in manifest.empty_parts:
        counts, place = (part.rows, part.episodes), f"empty_parts.{part.index}"
        _require(counts == (0, 0), where, place, "no rows and no episodes", counts)
    if manifest.parts_of("train"):
        missing = sorted(manifest.fields.keys() - manifest.statistics.keys())
        _require(not missing, where, "statistics", "those of every field", missing)
    for summary in (manifest.statistics, *(part.statistics for part in manifest.parts)):
        for name, statistics in summary.items():
            width, given_width = _statistics_width(manifest, name), len(statistics.mean)
            place = f"statistics.{name}"
            _require(given_width == width, where, place, width, given_width)


def _check_part(part: PartManifest, where: str, *, place: str = "") -> None:
    """Refuses a part's manifest with values of the right types that cannot be true."""
    _require(0 <= part.index < _MAX_ROWS, where, f"{place}index", "0 up", part.index)
    rows = 0 < part.rows <= _MAX_ROWS
    _require(rows, where, f"{place}rows", f"1 to {_MAX_ROWS}", part.rows)
    episodes = 0 < part.episodes <= part.rows
    expected = f"1 to {part.rows}, the rows"
    _require(episodes, where, f"{place}episodes", expected, part.episodes)
    labels = _LABELS.fullmatch(part.labels) is not None
    _require(labels, where, f"{place}labels", "labels-...", part.labels)
    key = _KEY.fullmatch(part.key) is not None
    _require(key, where, f"{place}key", "16 hexadecimal digits", part.key)
    for name, summary in part.statistics.items():
        columns = (summary.mean, summary.std, summary.minimum, summary.maximum)
        widths = {len(column) for column in columns}
        place_of = f"{place}statistics.{name}"
        _require(len(widths) == 1, where, place_of, "one width", sorted(widths))
        _require(summary.count > 0, where, f"{place_of}.count", "1 up", summary.count)


def _statistics_width(manifest: DatasetManifest, name: str) -> int | None:
    """Returns how many components a field's statistics have; None if no such field."""
    field = manifest.fields.get(name)
    if field is None:
        return None
    if field.per == "row_and_task":
        return len(manifest.tasks)
    return field.shape[-1] if field.shape else 1


def _require(
    holds: bool, where: str, place: str, expected: object, got: object
) -> None:
    """Raises DataFormatError for an entry of a manifest unless a condition holds."""
    if not holds:
        raise DataFormatError(
            f"{where}: {place}: expected {expected}, got {got!r:.80}; {_remedy(where)}"
        )


def _remedy(where: str) -> str:
    """Chooses the advice for a damaged manifest of a store or of a part."""
    return _DELETE if where.endswith(PART_MANIFEST) else _WRITE_AGAIN
