"""The site is built without a warning, and every link leads somewhere offline."""

import os
import subprocess
import sys
import urllib.parse
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Attributes by which a page loads a file, as opposed to links that a reader may follow.
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src"}


@dataclass
class Page(HTMLParser):
    """Collects what a page loads, its links, its anchors and its equations.

    Attributes:
        loaded: Addresses of the files that the page loads.
        links: Addresses that the page links to.
        places: Anchors within the page.
        equations: Number of equations.
    """

    loaded: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)
    equations: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag, attrs):
        values = {name: value or "" for name, value in attrs}
        self.places |= {values[name] for name in ("id", "name") if name in values}
        if tag in LOADED and LOADED[tag] in values:
            self.loaded.append(values[LOADED[tag]])
        elif tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.equations += tag == "math"


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--config-file", ".mkdocs.yml",
         "--strict", "--site-dir", folder],
        capture_output=True, text=True, cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip


def test_the_site_is_built_without_a_warning_and_reads_offline(tmp_path):
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages = {}
    for file in tmp_path.rglob("*.html"):
        pages[file] = Page()
        pages[file].feed(file.read_text())
    assert len(pages) > 10
    broken = []
    for file, page in pages.items():
        # 404.html is served for any path, so its links begin at /.
        if file.name == "404.html":
            continue
        for link in [*page.loaded, *page.links]:
            url = urllib.parse.urlsplit(link)
            if url.scheme in ("https", "http", "mailto"):
                # Offline, a link to another site can only be checked for its form.
                if link in page.loaded or not (url.netloc or url.path):
                    broken.append((file.name, link))
                continue
            path = urllib.parse.unquote(url.path)
            target = (file.parent / path).resolve() if path else file
            place = urllib.parse.unquote(url.fragment)
            known = pages[target].places if target in pages else set()
            if url.scheme or not target.is_file() or (place and place not in known):
                broken.append((file.name, link))
    assert broken == []
    # Equations are MathML, and no LaTeX is left that a script would have to draw.
    assert sum(page.equations for page in pages.values()) > 0
    assert not any("arithmatex" in file.read_text() for file in pages)
