"""Chromium for the tests of pages; `make browser` installs it and its driver."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
# These tests take minutes, and test nothing without a browser.
IN_A_BROWSER = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: make browser"),
]
SCREENS = [(width, scheme) for width in (1280, 400) for scheme in ("light", "dark")]

# Elements that reach beyond the right edge of the screen, and are not inside an element
# that can be scrolled or is folded.
_OVERFLOWING = """() => [...document.querySelectorAll('body *')]
  .filter(e => !e.parentElement.closest('.scroll, pre, details:not([open])'))
  .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5)
  .map(e => e.outerHTML.slice(0, 80))"""
# Pictures that the browser could not decode.
_BROKEN = """() => [...document.images].filter(i => !i.complete || !i.naturalWidth)
  .map(i => i.alt)"""
# Elements with text smaller than 12 px.
_SMALL = """() => [...document.querySelectorAll('body *')]
  .filter(e => [...e.childNodes].some(n => n.nodeType == 3 && n.data.trim()))
  .filter(e => parseFloat(getComputedStyle(e).fontSize) < 12)
  .map(e => e.outerHTML.slice(0, 80))"""
# Links that do not lead to an element of the same page.
_LINKS = """() => [...document.links].map(a => a.getAttribute('href'))
  .filter(h => h[0] != '#' || !document.getElementById(h.slice(1)))"""


@contextmanager
def open_browser() -> Iterator[Any]:
    """Starts Chromium without a window, and ends it after the block."""
    playwright = pytest.importorskip("playwright.sync_api", reason="make browser")
    with playwright.sync_playwright() as driver:
        # The sandbox needs user namespaces, which containers lack. Our own pages need
        # no sandbox.
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@contextmanager
def open_page(browser: Any, width: int, scheme: str) -> Iterator[tuple[Any, ...]]:
    """Opens a tab.

    Yields:
        The page, the messages on its console, and the addresses that it requested.
    """
    page = browser.new_page(
        viewport={"width": width, "height": 900}, color_scheme=scheme
    )
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    yield page, said, asked
    page.close()


def check_page(
    browser: Any, file: Path, width: int, scheme: str, *, pictures: int
) -> None:
    """Asserts that a page is complete, readable and accessible, and loads nothing else.

    Args:
        browser: Browser of ``open_browser``.
        file: The page.
        width: Width of the screen, in pixels.
        scheme: ``"light"`` or ``"dark"``.
        pictures: Least number of pictures on the page.
    """
    with open_page(browser, width, scheme) as (page, said, asked):
        page.goto(file.as_uri())
        assert page.evaluate("document.images.length") >= pictures
        # The folded parts of a page are checked, too.
        page.evaluate(
            "document.querySelectorAll('details').forEach(d => d.open = true)"
        )
        assert page.evaluate("document.documentElement.scrollWidth") == width
        for fault in (_OVERFLOWING, _BROKEN, _SMALL, _LINKS):
            assert page.evaluate(fault) == [], fault
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") is (scheme == "light")
        check_access(page)
        assert said == []
        assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]


def check_access(page: Any, *, without: str | None = None) -> None:
    """Asserts that axe-core finds no fault: contrast, names, order, keyboard.

    Args:
        page: Page of ``open_page``.
        without: Selector of elements that are left out.
    """
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    context = None if without is None else {"exclude": [[without]]}
    # Chromium refuses to preload style sheets of a page from the disk.
    options = {"resultTypes": ["violations"], "preload": False}
    results = axe.Axe().run(page, context, options)
    assert not results.response["violations"], results.generate_report()
    assert len(results.response["passes"]) > 20
