"""A newcomer's first minutes: from `git clone` to a moving plot in a real browser.

The commands are those of the README. Terminal, folder and kernel cache are new, and pip's cache is
not used. The run ends when the pixels of the plot have changed three times.
"""

import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Queue

from playwright.sync_api import Page, sync_playwright

from load_tests.measure import Row

TITLE = "A newcomer's run"
ROOT = Path(__file__).parent.parent
COMMANDS = (f"git clone {ROOT} dualstream", "cd dualstream", "make demo")
CHANGES = 3
PATIENCE_S = 900.0
URL = re.compile(r"http://127\.0\.0\.1:\d+")
_MOMENTS: list[tuple[str, float]] = []


def rows() -> list[Row]:
    """No rows, because there is no peer. `about` has the times."""
    assert len(COMMANDS) <= 3
    _MOMENTS.clear()
    with tempfile.TemporaryDirectory(prefix="dualstream-newcomer-") as folder:
        began = time.perf_counter()
        with _shell(Path(folder)) as said:
            for moment in _watch(said):
                _MOMENTS.append((moment, time.perf_counter() - began))
                print(f"{_MOMENTS[-1][1]:8.1f} s  {moment}", flush=True)
    return []


def about() -> list[str]:
    return [
        f"{len(COMMANDS)} commands: `{'`, `'.join(('git clone ...', *COMMANDS[1:]))}`. The "
        "environment, the kernel cache and the browser's profile are new, and pip's cache is not "
        "used. The time includes the download of packages from pip's configured index.",
        "",
        "| until | seconds from `git clone` on |",
        "|---|---|",
        *(f"| {moment} | {seconds:.1f} |" for moment, seconds in _MOMENTS),
    ]


@contextmanager
def _shell(folder: Path) -> Iterator[Queue[str | None]]:
    """Lines that the commands print in one shell of a terminal, then None.

    Ends the shell and all its descendants.
    """
    fresh = {"DUALSTREAM_CACHE_DIR": str(folder / "kernels"), "PIP_NO_CACHE_DIR": "1"}
    environment = {**os.environ, **fresh, "PYTHONUNBUFFERED": "1"}
    environment.pop("VIRTUAL_ENV", None)
    environment.pop("PYTHONPATH", None)
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        ["bash", "-e", "-c", "\n".join(COMMANDS)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    said: Queue[str | None] = Queue()
    # Read to the end even without a consumer: a full terminal blocks the writers.
    reader = threading.Thread(target=_read, args=(ours, said))
    reader.start()
    try:
        yield said
    finally:
        # The session has only processes that this shell started.
        subprocess.run(["kill", "--", f"-{process.pid}"], check=False, capture_output=True)
        process.wait(timeout=60)
        reader.join(timeout=60)
        os.close(ours)


def _read(terminal: int, said: Queue[str | None]) -> None:
    rest = ""
    with suppress(OSError):  # reading a closed terminal raises EIO
        while part := os.read(terminal, 1 << 16):
            *lines, rest = (rest + part.decode(errors="replace")).split("\n")
            for line in lines:
                said.put(line)
    said.put(None)


def _watch(said: Queue[str | None]) -> Iterator[str]:
    """Events of the run, each when it happens."""
    lines: list[str] = []
    for line in iter(said.get, None):
        lines.append(line)
        match = URL.search(line)
        if match:
            break
    else:
        raise RuntimeError("the commands ended without a server:\n" + "".join(lines[-20:]))
    yield "a server says where it is"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium-headless-shell") or shutil.which("chromium"),
            args=["--no-sandbox", "--disable-gpu"],
        )
        page = browser.new_page()
        page.goto(match.group())
        yield "the page at / is open"
        page.get_by_role("link", name="adult").first.click(timeout=1000 * PATIENCE_S)
        yield "the page of the model is open"
        for number in range(CHANGES):
            _await_another_picture(page)
            if number == 0:
                yield "a plot is drawn"
        yield f"the plot has moved {CHANGES - 1} times"
        browser.close()


def _await_another_picture(page: Page, pause_s: float = 0.1) -> None:
    """Wait until the pixels of the first plot change."""
    plot = page.locator("canvas").first
    picture = plot.evaluate("c => c.toDataURL()") if plot.count() else None
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        now = plot.evaluate("c => c.toDataURL()") if plot.count() else None
        if now != picture:
            return
        time.sleep(pause_s)
    raise TimeoutError("the plot did not move")
