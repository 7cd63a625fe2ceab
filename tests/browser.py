"""Open pages in a real browser: the Chromium or Chrome of this computer, driven by Playwright."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

__all__ = ["SCREENS", "close", "open_page", "untested", "wait_until"]

_NO_BROWSER = "neither Chromium nor Chrome is installed"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# Width and height in CSS pixels, and color scheme: each width and each scheme once, as neither depends on the other.
SCREENS = [(1280, 900, "light"), (390, 844, "dark")]
# The browser, from the first page of a test file to its end: it takes longer to start than a page to open.
_browsers: list[Any] = []
_started = contextlib.ExitStack()


@contextlib.contextmanager
def open_page(path: Path, width: int = 1280, height: int = 900, scheme: str = "light") -> Iterator[Any]:
    """The page of a file when its plots are drawn; fails if the page complained, opened a dialog or asked the network.

    Skips if Playwright or a browser is not installed.
    """
    complaints: list[str] = []
    is_phone = width < 600
    context = _browser().new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, is_mobile=is_phone, has_touch=is_phone
    )
    with contextlib.closing(context):
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: complaints.append(request.url) if "://" in request.url[:8] else None)
        page.goto(path.absolute().as_uri())
        complaints.clear()  # the file itself
        page.wait_for_selector("html[data-plots]")
        yield page
    assert not complaints, complaints


def _browser() -> Any:
    if not _browsers:
        playwright = pytest.importorskip("playwright.sync_api")
        found = next(filter(None, map(shutil.which, _NAMES)), None)
        if found is None:
            pytest.skip(_NO_BROWSER)
        driver = _started.enter_context(playwright.sync_playwright())
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        _browsers.append(_started.enter_context(browser))
    return _browsers[0]


def close() -> None:
    """End the browser, if it was started; with it, its event loop, in which no other test could use asyncio."""
    _browsers.clear()
    _started.close()


def wait_until(page: Any, condition: str, seconds: float = 30.0) -> None:
    """Wait until an expression is true in a page. Playwright's own waiting evaluates text in the page, which the policy
    of the pages refuses as soon as it has to look twice.
    """
    end = time.monotonic() + seconds
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"{condition} is false after {seconds:g} s"
        page.wait_for_timeout(50)


def untested(skipped: Iterable[pytest.TestReport]) -> str:
    """The line that says how many tests were skipped because there is no browser; empty if none was.

    Args:
        skipped: The reports of all skipped tests.
    """
    number = sum(_NO_BROWSER in str(report.longrepr) for report in skipped)
    return f"NOT TESTED in a browser: {number} skipped, as {_NO_BROWSER} (.ci/chromium installs it)" if number else ""
