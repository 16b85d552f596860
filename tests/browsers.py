"""Chromium for the tests of pages; `make browser` installs it and what drives it."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
# Minutes of work, and nothing without a browser.
IN_A_BROWSER = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: make browser"),
]
SCREENS = [(width, scheme) for width in (1280, 400) for scheme in ("light", "dark")]


@contextmanager
def open_browser() -> Iterator[Any]:
    """Starts Chromium without a window, and ends it."""
    playwright = pytest.importorskip("playwright.sync_api", reason="make browser")
    with playwright.sync_playwright() as driver:
        # Containers have no user namespaces for the sandbox, and the pages are ours.
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@contextmanager
def open_page(browser: Any, width: int, scheme: str) -> Iterator[tuple[Any, ...]]:
    """Opens a tab: the page, what its console said, and what was asked for."""
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
