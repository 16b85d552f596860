"""The report as one HTML file that needs nothing else: pictures lie inside it."""

import base64
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        name: File name without ending, such as ``"success"``.
        caption: What it shows and how to read it.
        data: Its bytes.
        kind: ``"png"``, or ``"gif"`` of one that moves.
        wide: Whether it takes the page's whole width: one of several panels, whose
            text is too small beside another picture.
    """

    name: str
    caption: str
    data: bytes
    kind: Literal["png", "gif"] = "png"
    wide: bool = False


@dataclass(frozen=True)
class Section:
    """What the page says of one run.

    Attributes:
        title: Heading.
        facts: Label and value of what to know of the run.
        remarks: Sentences above the pictures.
        pictures: In order.
        configuration: The whole configuration, as text, folded away.
    """

    title: str
    facts: Mapping[str, str]
    remarks: Sequence[str]
    pictures: Sequence[Picture]
    configuration: str


@dataclass(frozen=True)
class Table:
    """A table of text.

    Attributes:
        title: Heading.
        headings: Of the columns.
        rows: Cells.
        notes: Below it.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def render(title: str, tables: Sequence[Table], sections: Sequence[Section]) -> str:
    """Writes the page.

    Args:
        title: Of the page.
        tables: At its top.
        sections: One for each run.

    Returns:
        HTML. All text in it is escaped.
    """
    body = [_table(table) for table in tables]
    body += [_section(section) for section in sections]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<h1>{html.escape(title)}</h1>\n" + "\n".join(body) + "\n</body>\n"
        "</html>\n"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in table.headings)
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in table.notes)
    return (
        f'<h2>{html.escape(table.title)}</h2>\n<div class="wide"><table>\n<thead><tr>'
        f"{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>\n"
        + (f'<ul class="notes">{notes}</ul>' if notes else "")
    )


def _section(section: Section) -> str:
    facts = "".join(
        f"<div><dt>{html.escape(label)}</dt><dd>{html.escape(value)}</dd></div>"
        for label, value in section.facts.items()
    )
    remarks = "".join(
        f'<p class="remark">{html.escape(remark)}</p>' for remark in section.remarks
    )
    pictures = "\n".join(_picture(picture) for picture in section.pictures)
    return (
        f"<section>\n<h2>{html.escape(section.title)}</h2>\n<dl>{facts}</dl>\n{remarks}"
        f'\n<div class="pictures">\n{pictures}\n</div>\n<details><summary>Configuration'
        f"</summary><pre>{html.escape(section.configuration)}</pre></details>\n"
        "</section>"
    )


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.data).decode()
    caption = html.escape(picture.caption)
    opening = '<figure class="whole">' if picture.wide else "<figure>"
    return (
        f'{opening}<img alt="{html.escape(picture.name)}" '
        f'src="data:image/{picture.kind};base64,{data}"><figcaption>{caption}</figcaption></figure>'
    )


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff;
  max-width: 1200px; margin: 2rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2rem 0 .75rem; }
section { border-top: 1px solid #ddd; margin-top: 2.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .7rem; text-align: left; white-space: nowrap; }
th { border-bottom: 2px solid #222; font-weight: 600; }
td { border-bottom: 1px solid #e4e4e4; }
tbody tr:hover { background: #f3f7fb; }
.notes { color: #555; font-size: .88rem; max-width: 75ch; padding-left: 1.2rem; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(180px, 1fr));
  gap: .75rem 1.5rem; margin: 1rem 0; }
dt { color: #666; font-size: .8rem; }
dd { margin: 0; font-weight: 600; overflow-wrap: anywhere; }
.remark { background: #fff6e5; border-left: 4px solid #e69f00; padding: .5rem .9rem; }
.pictures { display: grid; gap: 1.5rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 500px), 1fr)); }
figure { margin: 0; }
.whole { grid-column: 1 / -1; }
img { width: 100%; height: auto; }
figcaption { color: #555; font-size: .86rem; }
details { margin-top: 1.25rem; }
summary { cursor: pointer; font-weight: 600; }
pre { background: #f6f6f6; padding: 1rem; overflow-x: auto; font-size: .8rem; }
"""
