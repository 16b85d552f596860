"""Text in Markdown: names come from runs, which anybody may have made."""

import re
from collections.abc import Sequence

# What starts a link, a picture, emphasis, code, HTML or another cell in a line. Names
# with `-` and `.` stay as they are: within a line those are text.
_SPECIAL = re.compile(r"[\\`*_\[\]<>&|~$]")


def escape(text: str) -> str:
    r"""Text that Markdown shows as it is, in one line.

    Example:
        >>> print(escape("![a_b](x)"))
        !\[a\_b\](x)
    """
    return _SPECIAL.sub(r"\\\g<0>", " ".join(text.split()))


def to_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of text in Markdown; all text in it is escaped."""
    lines = [
        [escape(heading) for heading in headings],
        ["---"] * len(headings),
        *([escape(cell) for cell in row] for row in rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
