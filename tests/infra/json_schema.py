"""Parts of JSON schemas of custom resources."""

from typing import Any

TEXT = {"type": "string", "minLength": 1}


def closed_object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    """Schema of an object with these properties and no others."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
    }
