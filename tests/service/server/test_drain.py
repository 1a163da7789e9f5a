"""A server that is stopped serves on for a while, not ready: balancers lose no request."""

import asyncio
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvicorn

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.observability.logs import REQUEST_ID
from dualstream.service.server.serve import Server
from dualstream.service.server.stop_signals import STOP_SIGNALS, handle_stop_signals
from tests.service.conftest import SPEC
from tests.service.server.support import children
from tests.support import until

DRAIN_S = 0.5
USER_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
ROW = {"x": {"1": 1.0}, "y": 1}


@pytest.mark.parametrize("flags", [[], ["--workers", "2"]], ids=["alone", "workers"])
def test_drain_serves_and_closes_connections(tmp_path: Path, flags: list[str]):
    store, log, served = f"sqlite:///{tmp_path / 'a.db'}", tmp_path / "log", 20
    with (
        log.open("w") as errors,
        ServerProcess(store, [*flags, "--drain-s", "100"], stderr=errors) as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        client.put("/models/m", json=SPEC).raise_for_status()
        client.post("/models/m/learn", json=ROW).raise_for_status()
        for pid in (server.process.pid, *children(server)):
            os.kill(pid, signal.SIGUSR1)
            os.kill(pid, signal.SIGUSR2)
        assert client.get("/readyz").status_code == 200
        server.process.send_signal(signal.SIGHUP if flags else signal.SIGTERM)
        until(lambda: log.read_text().count("draining") == (2 if flags else 1))  # each worker
        ready = client.get("/readyz")
        assert ready.status_code == 503 and ready.json()["reason"] == "the server is stopping"
        assert client.get("/v2/health/ready").status_code == 503
        for _ in range(served):  # on new connections, which it closes
            learned = client.post("/models/m/learn", json=ROW)
            assert learned.status_code == 200 and learned.headers["connection"] == "close"
            assert client.get("/healthz").json() == {"alive": True}
        server.process.terminate()  # the second signal stops it at once
        assert server.process.wait(timeout=60) == 0
    flags = [*flags, "--drain-s", str(DRAIN_S)]
    with ServerProcess(store, flags, stderr=subprocess.DEVNULL) as server:
        metrics = httpx.get(f"{server.url}/models/m/metrics", timeout=60).json()
        began = time.monotonic()
        server.process.terminate()
        assert server.process.wait(timeout=60) == 0
        assert time.monotonic() - began >= DRAIN_S
    assert metrics["samples"] == served + 1


def test_connection_ends_after_a_response_while_draining(tmp_path: Path):
    store = f"sqlite:///{tmp_path / 'a.db'}"
    with ServerProcess(store, ["--drain-s", "100"], stderr=subprocess.DEVNULL) as server:
        address = httpx.URL(server.url)
        with socket.create_connection((address.host, address.port or 0), timeout=60) as open_one:
            request = b"GET /livez HTTP/1.1\r\nhost: a\r\n\r\n"
            open_one.sendall(request)
            assert b"connection: close" not in open_one.recv(4096)
            server.process.terminate()
            while httpx.get(f"{server.url}/readyz", timeout=60).status_code == 200:
                time.sleep(0.01)
            open_one.sendall(request)
            answer = b""
            while piece := open_one.recv(4096):
                answer += piece
            assert b"200 OK" in answer and b"connection: close" in answer
        server.process.terminate()  # the second signal stops it at once
        server.process.wait(timeout=60)


def test_the_log_of_a_drain_has_no_id_of_a_request():
    """A signal is handled in the context of what it interrupts, such as a request."""
    ids = []

    class Stopping:
        def drain(self) -> None:
            ids.append(REQUEST_ID.get())

    async def interrupt() -> None:
        server = Server(uvicorn.Config("none"), cast(Any, Stopping()), DRAIN_S, 1.0)
        server._loop, server.started = asyncio.get_running_loop(), True
        REQUEST_ID.set("of-a-request")
        server.handle_exit(signal.SIGTERM, None)
        await asyncio.sleep(0)

    asyncio.run(interrupt())
    assert ids == [None]


@pytest.mark.parametrize("flags", [[], ["--workers", "2"]], ids=["alone", "workers"])
def test_ctrl_c_and_a_second_signal_do_not_wait(tmp_path: Path, flags: list[str]):
    store = f"sqlite:///{tmp_path / 'a.db'}"
    for signals in ([signal.SIGINT], [signal.SIGHUP, signal.SIGTERM]):
        server = ServerProcess(store, ["--drain-s", "60", *flags], stderr=subprocess.DEVNULL)
        with server:
            for number in signals:
                server.process.send_signal(number)
                if len(signals) == 2:
                    wait_until_draining(server)
            assert server.process.wait(timeout=50) == 0


def wait_until_draining(server: ServerProcess) -> None:
    with suppress(httpx.TransportError):
        while httpx.get(f"{server.url}/readyz", timeout=60).status_code == 200:
            time.sleep(0.01)


def test_a_hangup_stays_ignored_under_nohup():
    before = {number: signal.getsignal(number) for number in (*STOP_SIGNALS, *USER_SIGNALS)}
    try:
        for hangup in (signal.SIG_IGN, signal.SIG_DFL):
            signal.signal(signal.SIGHUP, hangup)
            replaced = handle_stop_signals(lambda number, frame: None)
            expected = set(STOP_SIGNALS)
            if hangup == signal.SIG_IGN:
                expected -= {signal.SIGHUP}
                assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert replaced.keys() == expected
            assert {signal.getsignal(number) for number in USER_SIGNALS} == {signal.SIG_IGN}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
