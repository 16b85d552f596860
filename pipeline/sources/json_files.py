"""Small files of JSON that come with data, read with whatever they may say."""

import json
from typing import Any

from pipeline.sources import files
from pipeline.store.errors import DataFormatError


def read_object(path: str) -> dict[str, Any]:
    """Reads a file that holds an object.

    Args:
        path: The file, local or ``gs://``.

    Returns:
        Its values by name.

    Raises:
        UsageError: If there is no such file.
        DataFormatError: If it is not JSON, or no object.
    """
    with files.open_file(path) as stream:
        return parse_object(stream.read(), path)


def parse_object(text: str | bytes, where: str) -> dict[str, Any]:
    """Reads an object from its text.

    Args:
        text: JSON.
        where: File, for the error.

    Returns:
        Its values by name.

    Raises:
        DataFormatError: If it is not JSON, or no object, or text in it is no Unicode.
    """
    try:
        value = json.loads(text)
        # Half a character, which JSON may escape, ends in a traceback once printed.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise DataFormatError(f"{where}: not JSON ({error}); fetch it again") from error
    if not isinstance(value, dict):
        raise DataFormatError(
            f"{where}: expected a JSON object, got {type(value).__name__}"
        )
    return value
