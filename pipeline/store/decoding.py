"""What pydantic found wrong with plain values, for the one line that a person reads."""

from dataclasses import dataclass
from typing import Any

import pydantic


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
