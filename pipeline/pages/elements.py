"""The elements of a page: tables of text, pictures, and numbers with their nouns."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

_TYPES = {
    "svg": "image/svg+xml",
    "png": "image/png",
    "gif": "image/gif",
    "jpg": "image/jpeg",
    "webm": "video/webm",
}


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        name: File name without ending, such as ``"success"``.
        caption: What the picture shows, and how to read it.
        alt: A sentence that describes the picture to readers who cannot see it.
        data: Bytes of the file.
        kind: Ending of the file; ``"gif"`` is an animation, and ``"webm"`` a video
            with controls.
        wide: Whether the picture has a row of the page to itself, where it is larger.
        still: First frame of a GIF, as PNG, for readers who ask for reduced motion.
    """

    name: str
    caption: str
    alt: str
    data: bytes
    kind: Literal["svg", "png", "gif", "jpg", "webm"] = "svg"
    wide: bool = False
    still: bytes | None = None

    @property
    def file(self) -> str:
        """File name."""
        return f"{self.name}.{self.kind}"

    @property
    def uri(self) -> str:
        """Data URI of the picture."""
        return _uri(_TYPES[self.kind], self.data)

    @property
    def still_uri(self) -> str:
        """Data URI of the first frame, or an empty string if there is none."""
        return "" if self.still is None else _uri(_TYPES["png"], self.still)


@dataclass(frozen=True)
class Table:
    """A table of text. The first cell of a row is its heading.

    Attributes:
        title: Heading of the table.
        headings: Headings of the columns.
        rows: Cells of each row.
        notes: Sentences below the table.
        folded: Whether the table is hidden until a click.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    folded: bool = False


# Pictures lie inside the page, so that one file can be mailed or archived.
def _uri(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
