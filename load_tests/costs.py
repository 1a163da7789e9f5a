"""Memory of the server's processes, and bytes of a row in the store.

Neither depends on the speed of the machine or on its load.
"""

import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import redis

from dualstream.service.cli.demo.adult import adult_samples
from dualstream.service.cli.demo.server_process import ServerProcess
from load_tests.measure import Row
from tests.redis_server import running_redis

TITLE = "Memory and bytes"
ROWS = 2000
MB = 1e6
# No snapshot is written, so the store has the journal of all rows and nothing else.
FLAGS = ["--snapshot-every", "1000000"]
_shown: list[str] = []


def rows() -> list[Row]:
    """No rows, because no peer is compared. `about` has the figures."""
    _shown.clear()
    with stores() as urls:
        _shown.extend(memory(urls["SQLite"]))
        _shown.extend(bytes_of_rows(urls))
    return []


def about() -> list[str]:
    return _shown


@contextmanager
def stores() -> Iterator[dict[str, str]]:
    """Empty stores by name."""
    with tempfile.TemporaryDirectory(prefix="dualstream-bench-") as folder, ExitStack() as stack:
        yield {
            "SQLite": f"sqlite:///{Path(folder) / 'bench.db'}",
            "Redis": stack.enter_context(running_redis(appendfsync="everysec")).url,
        }


def memory(store: str) -> Iterator[str]:
    """Memory of ready processes without models, as PSS: processes share what they import."""
    yield "Memory of a ready server without models, over all its processes (PSS):"
    yield ""
    yield "| workers | MB |"
    yield "|---|---|"
    for workers in (1, 2, 4):
        with ServerProcess(store, ["--workers", str(workers)]) as server:
            yield f"| {workers} | {proportional_set(server.process.pid) / MB:.0f} |"
    yield ""


def proportional_set(process: int) -> int:
    """Bytes of memory of a process and its descendants; shared pages count once (PSS)."""
    own = re.search(r"^Pss: +(\d+) kB", Path(f"/proc/{process}/smaps_rollup").read_text(), re.M)
    assert own is not None
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return 1024 * int(own[1]) + sum(proportional_set(int(child)) for child in children)


def bytes_of_rows(urls: dict[str, str]) -> Iterator[str]:
    """Bytes of a row in the store before the journal is trimmed."""
    yield f"Bytes of the store a row, {ROWS:,} rows of Adult, no snapshot yet:"
    yield ""
    yield "| rows | SQLite, its file | Redis, its memory |"
    yield "|---|---|---|"
    samples = list(islice(adult_samples(), ROWS))
    named = [{"samples": [sample]} for sample in samples]
    with_ids = [
        {"samples": [sample | {"id": f"{index:032x}"}]} for index, sample in enumerate(samples)
    ]
    thousands = [{"samples": samples[first : first + 1000]} for first in range(0, ROWS, 1000)]
    for what, bodies in (
        ("14 named features, one a request, one after the other", named),
        ("the same, each with an `id` of 32 characters", with_ids),
        ("14 named features, 1,000 a request", thousands),
    ):
        taken = [taken_by(url, bodies) / ROWS for url in urls.values()]
        yield f"| {what} | " + " | ".join(f"{each:.0f}" for each in taken) + " |"
    yield ""
    yield (
        "The store keeps a digest of each `id` and `Idempotency-Key` with its log position, for "
        "`KEY_TTL_S` and up to a million of them, also after the row is trimmed."
    )


def taken_by(url: str, bodies: list[dict[str, Any]]) -> float:
    """Bytes by which the store grows when it learns these requests."""
    with (
        ServerProcess(url, FLAGS) as server,
        httpx.Client(base_url=server.url, timeout=120) as client,
    ):
        client.put("/models/m", json={}).raise_for_status()
        before = taken(url)
        for body in bodies:
            client.post("/models/m/learn", json=body).raise_for_status()
        grown = taken(url) - before
        client.delete("/models/m").raise_for_status()
    return grown


def taken(url: str) -> int:
    """Bytes of the store. Checkpoints SQLite first, so that the WAL is part of the file."""
    if url.startswith("redis"):
        with redis.Redis.from_url(url) as client:
            return int(client.info("memory")["used_memory_dataset"])
    with sqlite3.connect(url.removeprefix("sqlite:///")) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        (pages,) = file.execute("PRAGMA page_count").fetchone()
        (free,) = file.execute("PRAGMA freelist_count").fetchone()
        (size,) = file.execute("PRAGMA page_size").fetchone()
    return (int(pages) - int(free)) * int(size)
