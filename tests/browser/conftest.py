"""A real server, and a real browser that opens its dashboard."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from dualstream.service.cli.demo.server_process import ServerProcess

# The test browser makes no requests of its own.
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
# A generous limit for a busy machine; conditions that hold already cost no time.
PATIENCE_MS = 90_000
expect.set_options(timeout=PATIENCE_MS)


# Module scope at most: Playwright's event loop runs in this thread, in which other tests could not
# run theirs.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if path is None:
        message = "no chromium is installed"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def serving(folder: Path) -> Iterator[httpx.Client]:
    """A client of a server with a store of its own."""
    with (
        ServerProcess(f"sqlite:///{folder / 'test.db'}") as process,
        httpx.Client(base_url=process.url, timeout=60) as client,
    ):
        yield client


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """The server of all modules but those that count its models."""
    with serving(tmp_path_factory.mktemp("browser")) as client:
        yield client


@pytest.fixture
def complaints() -> list[str]:
    """Errors in the console; a test that expects some checks and clears them."""
    return []


@pytest.fixture(params=["wide", "phone"])
def page(
    request: pytest.FixtureRequest, browser: Browser, server: httpx.Client, complaints: list[str]
) -> Iterator[Page]:
    """A light desktop and a dark phone. An error in the console fails the test."""
    is_wide = request.param == "wide"
    context = browser.new_context(
        base_url=str(server.base_url),
        viewport={"width": 1280, "height": 900} if is_wide else {"width": 390, "height": 844},
        color_scheme="light" if is_wide else "dark",
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.on("console", lambda got: complaints.append(got.text) if got.type != "log" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda query: query.url.startswith(str(server.base_url)) or complaints.append(query.url),
    )
    yield page
    context.close()
    assert complaints == []


@pytest.fixture
def screenshot(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Page, str], None]:
    """Save a picture of the whole page to DUALSTREAM_SCREENSHOTS, if that is set."""
    folder = Path(os.environ.get("DUALSTREAM_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)

    def take(page: Page, name: str) -> None:
        width = page.viewport_size["width"] if page.viewport_size else 0
        path = folder / f"{name}-{width}.png"
        page.screenshot(path=path, full_page=True)
        assert path.stat().st_size > 10_000
        # No horizontal scrolling.
        assert page.evaluate("document.documentElement.scrollWidth") <= width

    return take
