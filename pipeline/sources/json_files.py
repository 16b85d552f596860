"""Reads small JSON files that come with data, and refuses damaged ones."""

import json
from typing import Any

from pipeline.sources import files
from pipeline.store.errors import DataFormatError


def read_object(path: str) -> dict[str, Any]:
    """Reads a JSON file that must hold an object.

    Args:
        path: The file, local or ``gs://``.

    Returns:
        The values of the object by name.

    Raises:
        UsageError: If there is no such file.
        DataFormatError: If the file is not JSON, or its value is not an object.
    """
    with files.open_file(path) as stream:
        return parse_object(stream.read(), path)


def parse_object(text: str | bytes, where: str) -> dict[str, Any]:
    """Decodes a JSON text that must be an object.

    Args:
        text: The JSON text.
        where: Path of its file, for the error.

    Returns:
        The values of the object by name.

    Raises:
        DataFormatError: If the text is not JSON, its value is not an object, or a
            string in it is not valid Unicode.
    """
    try:
        value = json.loads(text)
        # JSON can escape half of a surrogate pair. Printing such a string would raise
        # UnicodeEncodeError later, so the object is encoded once here.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise DataFormatError(f"{where}: not JSON ({error}); fetch it again") from error
    if not isinstance(value, dict):
        raise DataFormatError(
            f"{where}: expected a JSON object, got {type(value).__name__}; fetch it "
            "again"
        )
    return value
