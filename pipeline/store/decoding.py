"""Plain values out of JSON, and what is wrong with them in one line for a person.

Values are sealed before they are written: a digest among them tells whoever reads
whether they are still the same, where a flipped bit makes another valid number.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pydantic

from pipeline.store.errors import DataFormatError

_SEAL = "seal"


def load_object(
    text: str | bytes, *, where: str, remedy: str, finite: bool = False
) -> dict[str, Any]:
    """Decodes one object of JSON.

    Args:
        text: JSON.
        where: Its path, for the error.
        remedy: What to do where it is none.
        finite: Whether to refuse NaN and Infinity, which are no JSON, and which
            Python writes all the same.

    Returns:
        The object.

    Raises:
        DataFormatError: If it is no JSON, or JSON of anything else.
    """

    def refuse(name: str) -> float:
        raise ValueError(f"{name} is no number")

    try:
        value = json.loads(text, parse_constant=refuse if finite else float)
    except (ValueError, RecursionError) as error:
        raise DataFormatError(f"{where}: not JSON ({error}); {remedy}") from error
    if not isinstance(value, dict):
        raise DataFormatError(
            f"{where}: expected a JSON object, got {type(value).__name__}; {remedy}"
        )
    return value


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


@dataclass(frozen=True)
class FirstError:
    """The first of the errors of a validation.

    Attributes:
        location: Keys and indices that lead to the value.
        kind: Pydantic's name for what is wrong, such as ``"missing"``.
        message: What is wrong; that of the exception, if a check of ours raised one.
        given: The value.
    """

    location: tuple[int | str, ...]
    kind: str
    message: str
    given: Any

    @property
    def place(self) -> str:
        """The location as one name, such as ``"fields.qpos.dtype"``."""
        return ".".join(str(part) for part in self.location)


def read_first_error(error: pydantic.ValidationError) -> FirstError:
    """Reads the first error, which is the one worth telling: others often follow it.

    Args:
        error: As raised by a validation.

    Returns:
        Its parts.
    """
    first = error.errors()[0]
    return FirstError(
        location=first["loc"],
        kind=first["type"],
        # Pydantic puts these words before what a ``__post_init__`` raised.
        message=first["msg"].removeprefix("Value error, "),
        given=first["input"],
    )
