"""Seals: a digest among the values of a JSON object, set before it is written.

It tells whoever reads whether the values are still the same, where a flipped bit makes
another valid number. Pure.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from pipeline.store.errors import DataFormatError

_SEAL = "seal"


def digest(value: object) -> str:
    """``sha256:...`` of plain values: equal values have equal digests."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def seal(value: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the digest of an object to it, which ``check_seal`` looks at."""
    return {**value, _SEAL: digest(value)}


def without_seal(value: Mapping[str, Any]) -> dict[str, Any]:
    """The values of an object that may be sealed."""
    return {name: each for name, each in value.items() if name != _SEAL}


def is_as_sealed(value: Mapping[str, Any]) -> bool:
    """Tells whether the values of a sealed object are those that were sealed."""
    return value.get(_SEAL) == digest(without_seal(value))


def check_seal(
    value: Mapping[str, Any], *, where: str, remedy: str, required: bool
) -> None:
    """Refuses an object whose values are not those that were sealed.

    Args:
        value: As decoded, with its seal.
        where: Its path, for the error.
        remedy: What to do then.
        required: Whether to refuse one without a seal, too; earlier versions set none.

    Raises:
        DataFormatError: If its digest is another one, or missing and required.
    """
    if is_as_sealed(value) or (_SEAL not in value and not required):
        return
    raise DataFormatError(
        f"{where}: expected values of the digest {value.get(_SEAL)!s:.19}... that they "
        f"were sealed with, got {digest(without_seal(value)):.19}...: bytes have "
        f"changed; {remedy}"
    )
