"""A server whose disk fails every sync, at durability `normal`."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from dualstream.service.cli.demo.server_process import ServerProcess
from tests.chaos.trace import traced
from tests.service.server.support import children

WITHIN_S = 60.0


def test_failed_syncs_are_reported_and_learning_stops(tmp_path: Path) -> None:
    store, errors = f"sqlite:///{tmp_path / 'store.db'}", tmp_path / "stderr"
    with errors.open("w") as stderr, ServerProcess(store, stderr=stderr) as server:
        with httpx.Client(base_url=server.url, timeout=WITHIN_S) as client:
            client.put("/models/m", json={"algorithm": "sgd"}).raise_for_status()
            learned = failing_disk(server, client, tmp_path / "trace")
            assert "Input/output error" in errors.read_text()
            # The disk works again.
            answer = until(lambda: learn(client), lambda answer: answer.is_success)
            assert answer.json()["seq"] > learned
            readiness(client, degraded=False)
    with ServerProcess(store, stderr=subprocess.DEVNULL) as server:
        result = httpx.get(f"{server.url}/models/m", timeout=WITHIN_S).json()
        assert result["seq"] > learned


def failing_disk(server: ServerProcess, client: httpx.Client, log: Path) -> int:
    """Learn while every sync fails, until that is reported. Returns the last acknowledged seq."""
    with traced(children(server) or [server.process.pid], log, "fsync,fdatasync"):
        seq, deadline = 0, time.monotonic() + WITHIN_S
        while (answer := learn(client)).is_success:
            seq = answer.json()["seq"]
            assert time.monotonic() < deadline, "no sync failed"
        assert answer.status_code == 503
        assert "check the disk" in answer.json()["detail"]
        ready = readiness(client, degraded=True)
        assert ready["degraded"] == ["store"]
        assert "check the disk" in str(ready["reason"])
        assert client.post("/models/m/predict", json={"x": {"a": 1.0}}).status_code == 200
        assert learn(client).status_code == 503
    return seq


def learn(client: httpx.Client) -> httpx.Response:
    return client.post("/models/m/learn", json={"x": {"a": 1.0}, "y": 1})


def readiness(client: httpx.Client, *, degraded: bool) -> dict[str, object]:
    """The readiness once the store is degraded, or no longer is."""

    def is_so(answer: httpx.Response) -> bool:
        return ("degraded" in answer.json()) is degraded

    result: dict[str, object] = until(lambda: client.get("/readyz"), is_so).json()
    return result


def until(
    ask: Callable[[], httpx.Response], is_so: Callable[[httpx.Response], bool]
) -> httpx.Response:
    """The first answer for which that holds."""
    deadline = time.monotonic() + WITHIN_S
    while not is_so(answer := ask()):
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.1)
    return answer
