"""What MkDocs calls: pages made of the code and of other files, and equations."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from docs.generate import commands, configuration, equations, tables

ROOT = Path(__file__).parents[2]
# Pages that are files of the repository, read where they stand.
INCLUDED = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "infra/README.md": "how-to/launching.md",
    "tests/benchmarks/README.md": "results/benchmarks.md",
}
_CELL, _TAG = re.compile(r"<td>(.*?)</td>", re.DOTALL), re.compile(r"<[^>]+>")
_LONG_LETTERS = 60
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages."""
    pages = {
        **dict(commands.list_pages()),
        configuration.PAGE: configuration.make_page(),
        **{page: include(source) for source, page in INCLUDED.items()},
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def include(source: str) -> str:
    """A file of the repository as a page: its links lead to pages, if they can.

    Args:
        source: Path below the repository's root.

    Returns:
        Markdown. A link to a file that is no page becomes its path.
    """
    page = Path(INCLUDED[source])

    def lead(found: re.Match[str]) -> str:
        said, path, place = found[1], found[2], found[3] or ""
        target = (ROOT / source).parent.joinpath(path).resolve().relative_to(ROOT)
        if target.as_posix() not in INCLUDED:
            return f"{said} (`{target}`)"
        up = "../" * (len(page.parts) - 1)
        return f"[{said}]({up}{INCLUDED[target.as_posix()]}{place})"

    return _LINK.sub(lead, (ROOT / source).read_text())


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts in the tables that the code has already."""
    return tables.fill(markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Draws equations, and prepares tables for narrow screens.

    A table gets a box that scrolls and that the keyboard can reach. Cells of long text
    are marked, so that the style sheet can give them room.
    """
    html = html.replace("<table>", '<div class="wide" tabindex="0"><table>')
    html = html.replace("</table>", "</table></div>")
    return equations.draw(_CELL.sub(_mark_long_cell, html))


def _mark_long_cell(cell: re.Match[str]) -> str:
    long = len(_TAG.sub("", cell[1])) > _LONG_LETTERS
    return f'<td class="long">{cell[1]}</td>' if long else cell[0]


def on_post_page(output: str, **_: Any) -> str:
    """Names the search, which the theme leaves without a name for screen readers."""
    return output.replace('role="dialog">', 'role="dialog" aria-label="Search">', 1)
