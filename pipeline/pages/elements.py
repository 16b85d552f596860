"""What a page is made of besides sentences: tables of text, and pictures."""

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
        caption: What it shows and how to read it.
        alt: What is seen on it, in a sentence, for who does not see it.
        data: Its bytes.
        kind: Ending of its file; ``"gif"`` is one that moves,
            ``"webm"`` one that is played.
        wide: Whether it has a row of the page to itself, in which it is shown larger.
        still: First frame of a GIF, as PNG, for who asks for less motion.
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
        """Name of its file."""
        return f"{self.name}.{self.kind}"

    @property
    def uri(self) -> str:
        """Its bytes as the address of an image."""
        return _uri(_TYPES[self.kind], self.data)

    @property
    def still_uri(self) -> str:
        """Those of its first frame, where it has one."""
        return "" if self.still is None else _uri(_TYPES["png"], self.still)


@dataclass(frozen=True)
class Table:
    """A table of text. The first cell of a row is its heading.

    Attributes:
        title: Heading.
        headings: Of the columns.
        rows: Cells.
        notes: Below it.
        folded: Whether it is opened by a click.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    folded: bool = False


def _uri(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
