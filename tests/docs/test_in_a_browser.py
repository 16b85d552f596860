"""The site as Chromium shows it from the disk: wide and narrow, light and dark.

Nothing overflows, nothing is reported to the console or asked of the network,
equations have a size, wide tables scroll, and search finds. `make browser` installs
what it needs.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_site import build

playwright = pytest.importorskip("playwright.sync_api", reason="make browser")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: make browser"),
]
PAGES = ("index", "concepts/vast", "reference/trainer", "results/index")
SCREENS = [(width, scheme) for width in (1280, 400) for scheme in ("light", "dark")]
# Tables that are wider than the page, and not within something that scrolls.
CUT = """() => [...document.querySelectorAll('.md-typeset table')]
  .filter(t => t.getBoundingClientRect().right > innerWidth + 0.5)
  .filter(t => !t.closest('.md-typeset__scrollwrap'))
  .map(t => t.outerHTML.slice(0, 80))"""
FLAT = """() => [...document.querySelectorAll('math')]
  .filter(m => m.getBoundingClientRect().height < 5).length"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert build(folder).returncode == 0
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        # Containers have no user namespaces for the sandbox, and the page is ours.
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_pages_on_a_screen(browser: Any, site: Path, width: int, scheme: str) -> None:
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme=scheme
    )
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    for name in PAGES:
        page.goto((site / f"{name}.html").as_uri())
        page.wait_for_selector(".md-typeset__scrollwrap", state="attached")
        assert page.evaluate("document.documentElement.scrollWidth") == width, name
        assert page.evaluate(CUT) == [], name
        assert page.evaluate(FLAT) == 0, name
        chosen = page.evaluate("document.body.dataset.mdColorScheme")
        assert chosen == {"light": "default", "dark": "slate"}[scheme]
    assert said == []
    others = [url for url in asked if not url.startswith(("file:", "data:"))]
    assert others == []
    page.close()


def test_a_field_is_found_by_a_part_of_its_name(browser: Any, site: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((site / "index.html").as_uri())
    page.fill("input.md-search__input", "microbatches")
    page.wait_for_selector(".md-search-result__item")
    assert "Configuration fields" in page.inner_text(".md-search-result__list")
    page.close()
