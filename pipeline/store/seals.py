"""Seals: a digest stored among the values of a JSON object when it is written.

A flipped bit can turn a number into another valid number, which no parser notices. A
reader that compares the seal with the digest of the values does. All functions are
pure.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pipeline.store.errors import DataFormatError

_SEAL = "seal"


def digest(value: object) -> str:
    """Computes ``sha256:...`` of plain JSON values; equal values have equal digests."""
    # Sorted keys and fixed separators: the digest must depend neither on the order in
    # which a dictionary was filled nor on how the file was indented.
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def seal(value: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an object with its digest added, for ``check_seal`` to compare."""
    return {**value, _SEAL: digest(value)}


def without_seal(value: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an object without its seal, if it has one."""
    return {name: entry for name, entry in value.items() if name != _SEAL}


def is_as_sealed(value: Mapping[str, Any]) -> bool:
    """Tells whether an object has a seal that equals the digest of its values."""
    return value.get(_SEAL) == digest(without_seal(value))


def check_seal(
    value: Mapping[str, Any], *, where: str, remedy: str, required: bool
) -> None:
    """Refuses an object whose values have changed since it was sealed.

    Args:
        value: The decoded object with its seal.
        where: Path of its file, for the error.
        remedy: Advice with which the error ends.
        required: Whether to refuse an object without a seal too; version 1 of the
            format sets none.

    Raises:
        DataFormatError: If the seal differs from the digest of the values, or is
            missing although required.
    """
    if is_as_sealed(value) or (_SEAL not in value and not required):
        return
    raise DataFormatError(
        f"{where}: expected values of the sealed digest {value.get(_SEAL)!s:.19}..., "
        f"got {digest(without_seal(value)):.19}...: bytes have changed; {remedy}"
    )
