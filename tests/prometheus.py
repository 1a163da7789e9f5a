"""Prometheus and promtool, from Debian's package: where they are, and a server of one's own."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ports import free_port

UNPACKED = Path(__file__).parent.parent / ".cache" / "prometheus" / "usr" / "bin"
"""Where tests/fetch_tool.sh prometheus puts them."""


def tool(name: str) -> str:
    """Path of `prometheus` or `promtool`. Skips the test without it, fails in CI."""
    result = shutil.which(name)
    if result is None and (UNPACKED / name).exists():
        result = str(UNPACKED / name)
    if result is None:
        got = f"no {name}: run tests/fetch_tool.sh prometheus, or install Prometheus 2.42 or newer"
        if os.environ.get("CI"):
            pytest.fail(got)
        pytest.skip(got)
    return result


def promtool(*arguments: str, given: str = "") -> str:
    """Run promtool, which has to succeed; returns its output."""
    done = subprocess.run(
        [tool("promtool"), *arguments],
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


class Prometheus:
    """A running Prometheus, queried by its API."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=f"{url}/api/v1", timeout=30)

    def ask(self, path: str, **parameters: str) -> Any:
        """The `data` of an answer."""
        answer = self._client.get(path, params=parameters).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Present values of the expression."""
        result: list[dict[str, Any]] = self.ask("/query", query=expression)["result"]
        return result

    def firing(self) -> set[tuple[str, str]]:
        """Firing alerts, each with its model."""
        return {
            (alert["labels"]["alertname"], alert["labels"].get("model", ""))
            for alert in self.ask("/alerts")["alerts"]
            if alert["state"] == "firing"
        }

    def close(self) -> None:
        self._client.close()


@contextmanager
def running_prometheus(config: Path, directory: Path) -> Iterator[Prometheus]:
    """Prometheus with this configuration for the duration of a with block."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = [f"--config.file={config}", f"--storage.tsdb.path={directory / 'tsdb'}"]
    arguments += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    log = directory / "prometheus.log"
    with log.open("w") as said:
        process = subprocess.Popen([tool("prometheus"), *arguments], stdout=said, stderr=said)
    server = Prometheus(url)
    try:
        deadline = time.monotonic() + 60
        while not _is_ready(url):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield server
    finally:
        server.close()
        process.kill()
        process.wait(timeout=30)


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/-/ready", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
