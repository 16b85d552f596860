"""Plain values out of JSON, and what is wrong with them in one line for a person."""

import json
from dataclasses import dataclass
from typing import Any

import pydantic

from pipeline.store.errors import DataFormatError


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
