"""The hooks of MkDocs: generated pages, included files, tables and equations."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from docs.generate import commands, configuration, equations, tables

ROOT = Path(__file__).parents[2]
# Files of the repository that are pages of the site as well.
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
        # Generated in memory: a copy in the repository could be outdated.
        files.append(File.generated(config, path, content=text))
    return files


def include(source: str) -> str:
    """Turns a file of the repository into a page.

    Args:
        source: Path of the file, relative to the repository.

    Returns:
        Markdown. Links to files that are pages lead to the pages; other links are
        replaced by the path of their file.
    """
    page = Path(INCLUDED[source])

    def convert(link: re.Match[str]) -> str:
        text, path, place = link[1], link[2], link[3] or ""
        target = (ROOT / source).parent.joinpath(path).resolve().relative_to(ROOT)
        if target.as_posix() not in INCLUDED:
            return f"{text} (`{target}`)"
        up = "../" * (len(page.parts) - 1)
        return f"[{text}]({up}{INCLUDED[target.as_posix()]}{place})"

    return _LINK.sub(convert, (ROOT / source).read_text())


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Fills in the generated tables."""
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
