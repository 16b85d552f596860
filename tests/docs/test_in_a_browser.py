"""The site in Chromium, read from the disk: wide and narrow, light and dark.

Nothing overflows, the console stays empty, nothing is asked of the network, equations
have a size, wide tables scroll, axe-core finds no fault, and the search works.
`make browser` installs what the tests need.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browsers import (
    IN_A_BROWSER,
    SCREENS,
    check_access,
    open_browser,
    open_page,
)
from tests.docs.test_site import build

pytestmark = IN_A_BROWSER
# Each kind of page: text, equations, code, a generated reference, tables of results.
PAGES = (
    "index",
    "concepts/vast",
    "how-to/own-agent",
    "reference/trainer",
    "reference/api",
    "results/index",
    "results/benchmarks",
)
# Tables that are wider than the page, and not within something that scrolls.
CUT = """() => [...document.querySelectorAll('.md-typeset table')]
  .filter(t => t.getBoundingClientRect().right > innerWidth + 0.5)
  .filter(t => !t.closest('.wide'))
  .map(t => t.outerHTML.slice(0, 80))"""
# The theme's script puts a button into each block of code, in a `nav` without a name.
COPY = ".md-code__nav"
# The theme's script has wrapped the tables of the page, if it has any.
STARTED = """() => !document.querySelector('.md-typeset table')
  || document.querySelector('.md-typeset__scrollwrap')"""
FLAT = """() => [...document.querySelectorAll('math')]
  .filter(m => m.getBoundingClientRect().height < 5).length"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert build(folder).returncode == 0
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as browser:
        yield browser


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_pages_on_a_screen(browser: Any, site: Path, width: int, scheme: str) -> None:
    with open_page(browser, width, scheme) as (page, said, asked):
        for name in PAGES:
            page.goto((site / f"{name}.html").as_uri())
            page.wait_for_function(STARTED)
            assert page.evaluate("document.documentElement.scrollWidth") == width, name
            assert page.evaluate(CUT) == [], name
            assert page.evaluate(FLAT) == 0, name
            chosen = page.evaluate("document.body.dataset.mdColorScheme")
            assert chosen == {"light": "default", "dark": "slate"}[scheme]
            check_access(page, without=COPY)
    assert said == []
    others = [url for url in asked if not url.startswith(("file:", "data:"))]
    assert others == []


def test_a_field_is_found_by_a_part_of_its_name(browser: Any, site: Path) -> None:
    with open_page(browser, 1280, "light") as (page, *_):
        page.goto((site / "index.html").as_uri())
        page.fill("input.md-search__input", "microbatches")
        page.wait_for_selector(".md-search-result__item")
        assert "Configuration fields" in page.inner_text(".md-search-result__list")
