"""The report in Markdown, with all text escaped: anybody may have named the runs."""

import re
import urllib.parse
from collections.abc import Iterator, Sequence

from pipeline.pages.elements import Picture, Table
from trainer.report.page import Page

# Characters that start a link, a picture, emphasis, code, HTML or another cell. `-` and
# `.` are plain text within a line, so that most names stay as they are.
_SPECIAL = re.compile(r"[\\`*_\[\]<>&|~$]")


def escape(text: str) -> str:
    r"""Escapes text, so that Markdown shows it as it is, in one line.

    Example:
        >>> print(escape("![a_b](x)"))
        !\[a\_b\](x)
    """
    return _SPECIAL.sub(r"\\\g<0>", " ".join(text.split()))


def to_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Writes a table of text as Markdown; all text in it is escaped."""
    lines = [
        [escape(heading) for heading in headings],
        ["---"] * len(headings),
        *([escape(cell) for cell in row] for row in rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def to_markdown(page: Page) -> str:
    """Writes a report as Markdown, to be put beside the files of its pictures.

    Args:
        page: The report.

    Returns:
        Markdown. All names in it are escaped.
    """
    return "\n\n".join(_write_paragraphs(page)) + "\n"


def _write_paragraphs(page: Page) -> Iterator[str]:
    yield f"# {escape(page.title)}"
    yield escape(page.lead)
    if page.sentences:
        yield "\n".join(f"- {escape(sentence)}" for sentence in page.sentences)
    for table in page.tables:
        yield from _write_table(table)
    if page.comparison is not None:
        yield "## Methods compared"
        yield "\n".join(f"- {escape(note)}" for note in page.comparison.notes)
        for picture in page.comparison.pictures:
            yield _show_picture(picture, picture.file)
        for table in page.comparison.tables:
            yield from _write_table(table)
    for section in page.sections:
        yield f"## {escape(section.title)}"
        yield escape(section.outcome)
        yield "\n".join(
            f"- {escape(label)}: {escape(value)}"
            for label, value in section.properties.items()
        )
        yield from section.remarks
        for picture in section.pictures:
            yield _show_picture(picture, f"{section.title}/{picture.file}")
    if page.paper is not None:
        yield from _write_table(page.paper)


def _write_table(table: Table) -> Iterator[str]:
    yield f"## {escape(table.title)}"
    yield to_table(table.headings, table.rows)
    if table.notes:
        yield "\n".join(f"- {escape(note)}" for note in table.notes)


def _show_picture(picture: Picture, file: str) -> str:
    address = urllib.parse.quote(file)
    # Markdown has no videos: a link leads to the file.
    mark = "" if picture.kind == "webm" else "!"
    return f"{mark}[{escape(picture.alt)}]({address})\n\n{escape(picture.caption)}"
