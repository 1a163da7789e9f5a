"""Two servers behind nginx are restarted one after the other: clients lose no request."""

import os
import subprocess
import threading
import time
from pathlib import Path

import httpx

from dualstream.service.cli.demo.server_process import ServerProcess
from tests.ports import free_port
from tests.service.conftest import SPEC
from tests.service.server.nginx import balancing

IS_FULL = "DUALSTREAM_CHAOS_ROUNDS" in os.environ
REQUESTS = 20_000 if IS_FULL else 2_000
"""Least number of requests in all; `make chaos` sends more."""
SENDERS = 4


def test_rolling_restart_loses_no_request(tmp_path: Path):
    store = f"sqlite:///{tmp_path / 'a.db'}"
    ports = [free_port(), free_port()]

    def start(port: int) -> ServerProcess:
        flags = ["--port", str(port), "--drain-s", "2"]
        return ServerProcess(store, flags, stderr=subprocess.DEVNULL)

    servers = [start(port) for port in ports]
    learned: list[int] = []
    predicted: list[int] = []
    errors: list[str] = []
    ending = threading.Event()

    def send(number: int, transport: httpx.BaseTransport) -> None:
        client = httpx.Client(transport=transport, base_url="http://nginx", timeout=60)
        sent = 0
        while not ending.is_set() or sent < REQUESTS / SENDERS:
            sent += 1
            try:
                if sent % 2:
                    row = {"x": {"1": 1.0}, "y": 1, "id": f"{number}-{sent}"}
                    learned.append(client.post("/models/m/learn", json=row).status_code)
                else:
                    predicted.append(client.get("/models/m/predict?x=1:1").status_code)
            except httpx.HTTPError as error:
                errors.append(repr(error))

    try:
        httpx.put(f"{servers[0].url}/models/m", json=SPEC, timeout=60).raise_for_status()
        with balancing(tmp_path, ports) as transport:
            senders = [
                threading.Thread(target=send, args=(number, transport)) for number in range(SENDERS)
            ]
            for sender in senders:
                sender.start()
            try:
                for number, port in enumerate(ports):
                    servers[number].stop()
                    servers[number] = start(port)
            finally:
                ending.set()
                for sender in senders:
                    sender.join()
        # A server applies what the other one appended within about a second.
        seq, deadline = 0, time.monotonic() + 60
        while seq < len(learned) and time.monotonic() < deadline:
            seq = httpx.get(f"{servers[0].url}/models/m", timeout=60).json()["seq"]
            time.sleep(0.02)
    finally:
        for server in servers:
            server.__exit__()
    assert errors == [] and {*learned, *predicted} == {200}
    assert len(learned) + len(predicted) >= REQUESTS
    assert seq == len(learned)
