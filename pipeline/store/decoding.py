"""Decodes JSON, and reduces errors of decoding and validation to one line."""

import json
from dataclasses import dataclass
from typing import Any

import pydantic

from pipeline.store.errors import DataFormatError


def load_object(
    text: str | bytes, *, where: str, remedy: str, finite: bool = False
) -> dict[str, Any]:
    """Decodes a JSON text that must be an object.

    Args:
        text: The JSON text.
        where: Path of its file, for the error.
        remedy: Advice with which the error ends.
        finite: Whether to refuse NaN and Infinity. JSON has neither, yet Python's
            encoder writes both.

    Returns:
        The decoded object.

    Raises:
        DataFormatError: If the text is not JSON, or its value is not an object.
    """

    def refuse(name: str) -> float:
        raise ValueError(f"{name} is no number")

    try:
        value = json.loads(text, parse_constant=refuse if finite else float)
    # RecursionError: a damaged file may nest brackets deeper than Python recurses.
    except (ValueError, RecursionError) as error:
        raise DataFormatError(
            f"{where}: expected JSON, got text that is none ({error}); {remedy}"
        ) from error
    if not isinstance(value, dict):
        raise DataFormatError(
            f"{where}: expected a JSON object, got {type(value).__name__}; {remedy}"
        )
    return value


@dataclass(frozen=True)
class FirstError:
    """The first error that pydantic reports of a validation.

    Attributes:
        location: Keys and indices that lead to the wrong value.
        kind: Pydantic's name of the error, such as ``"missing"``.
        message: Text of the error; if a check of ours raised an exception, its text.
        given: The wrong value.
    """

    location: tuple[int | str, ...]
    kind: str
    message: str
    given: Any

    @property
    def place(self) -> str:
        """The location joined to one name, such as ``"fields.qpos.dtype"``."""
        return ".".join(str(part) for part in self.location)


def read_first_error(error: pydantic.ValidationError) -> FirstError:
    """Reads the first error of a validation.

    One error is enough for a message of one line, and later errors are often
    consequences of the first.

    Args:
        error: The exception that a validation raised.

    Returns:
        The parts of its first error.
    """
    first = error.errors()[0]
    return FirstError(
        location=first["loc"],
        kind=first["type"],
        # Pydantic puts "Value error" before the text of a ValueError that a
        # ``__post_init__`` raised, which tells a user nothing.
        message=first["msg"]
        .removeprefix("Value error, ")
        .replace("Input should be ", "expected "),
        given=first["input"],
    )
