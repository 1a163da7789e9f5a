"""Rows that wait for their labels: the store, memory of the server, stalls of the event loop."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from redis import Redis

from dualstream.service.cli.demo.server_process import ServerProcess
from load_tests.measure import Row
from load_tests.stalls import Pulse
from load_tests.views import MIB, resident
from tests.redis_server import RedisServer, running_redis

TITLE = "Waiting rows"
ROWS, IN_REQUEST, LABELS = 1_000_000, 1000, 200
SPEC = {"algorithm": "dual_ascent", "loss": "logistic", "features": {"kind": "hashed"}}

_about: list[str] = []


def rows() -> list[Row]:
    """No rows, because there is no peer. `about` has the figures."""
    _about.clear()
    with tempfile.TemporaryDirectory(prefix="dualstream-bench-") as folder:
        database = Path(folder) / "bench.db"
        _about.append(_line("SQLite", f"sqlite:///{database}", lambda: _bytes_of(database)))
    with running_redis(appendfsync="everysec") as redis:
        _about.append(_line("Redis", redis.url, lambda: _memory_of(redis)))
    return []


def about() -> list[str]:
    return [
        f"{ROWS:,} rows are predicted with `remember=true`, {IN_REQUEST:,} a request. Memory is "
        "the highest resident size of the server above that after the first request, "
        f"and another client requests `/livez`. Then {LABELS:,} requests have one label each.",
        "",
        "| store | its size | memory of the server | rows/s | longest wait | label, p50 | p99 |",
        "|---|---|---|---|---|---|---|",
        *_about,
    ]


def _line(name: str, store: str, size: Callable[[], int]) -> str:
    with ServerProcess(store) as server, httpx.Client(base_url=server.url, timeout=120) as client:
        client.put("/models/m", json=SPEC).raise_for_status()
        _remember(client, 0)
        pid = server.process.pid
        before = most = resident(pid, "VmRSS")
        pulse, began = Pulse(server.url), time.perf_counter()
        for first in range(IN_REQUEST, ROWS, IN_REQUEST):
            _remember(client, first)
            most = max(most, resident(pid, "VmRSS"))
        rate = (ROWS - IN_REQUEST) / (time.perf_counter() - began)
        stall, stored = pulse.longest(), size()
        took = sorted(_label(client, number * (ROWS // LABELS)) for number in range(LABELS))
    cells = (
        name,
        f"{stored / 1e6:,.0f} MB",
        f"{(most - before) / MIB:.0f} MiB",
        f"{rate:,.0f}",
        f"{1e3 * stall:.0f} ms",
        f"{1e3 * took[LABELS // 2]:.1f} ms",
        f"{1e3 * took[LABELS * 99 // 100]:.1f} ms",
    )
    return f"| {' | '.join(cells)} |"


def _remember(client: httpx.Client, first: int) -> None:
    samples = [_row(number) for number in range(first, first + IN_REQUEST)]
    url = "/models/m/predict?remember=true"
    client.post(url, json={"samples": samples}).raise_for_status()


def _row(number: int) -> dict[str, Any]:
    """A row of about 300 bytes as JSON."""
    features = {f"feature {k}": float((number * k) % 97) for k in range(12)}
    return {"id": f"row {number}", "x": features}


def _label(client: httpx.Client, number: int) -> float:
    began = time.perf_counter()
    client.post("/models/m/labels", json={"id": f"row {number}", "y": 1}).raise_for_status()
    return time.perf_counter() - began


def _bytes_of(database: Path) -> int:
    return sum(file.stat().st_size for file in database.parent.glob(f"{database.name}*"))


def _memory_of(redis: RedisServer) -> int:
    with Redis.from_url(redis.url) as client:
        return int(client.info("memory")["used_memory"])
