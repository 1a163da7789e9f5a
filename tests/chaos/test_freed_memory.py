"""Two workers at constant memory, while models are created, learned, replaced and deleted.

`make test` runs a sample of the rounds; DUALSTREAM_CHAOS_ROUNDS runs all.
"""

import os
import subprocess
from pathlib import Path

import httpx
import pytest

from dualstream.service.cli.demo.server_process import ServerProcess
from tests.service.server.test_workers import children

ROUNDS = 100 if "DUALSTREAM_CHAOS_ROUNDS" in os.environ else 14
LARGE = {"algorithm": "sgd", "loss": "logistic", "features": {"kind": "hashed", "bits": 21}}
OTHER = LARGE | {"loss": "hinge"}
ROW = {"x": {"a": 1.0}, "y": 1}
SETTLED_AFTER = 4
"""Rounds until imports, arenas and caches have their size."""


def resident_bytes(server: ServerProcess) -> int:
    """Memory of all workers, with what they share."""
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in children(server)]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE")


def ask_both(server: ServerProcess, method: str, path: str, **given: object) -> httpx.Response:
    """Send the request on several connections, so that both workers answer it."""
    for _ in range(6):
        answer = httpx.request(method, server.url + path, timeout=60, **given)
        answer.raise_for_status()
    return answer


@pytest.mark.parametrize("way", ["delete", "replace"])
def test_memory_of_deleted_and_replaced_models_is_freed(tmp_path: Path, way: str) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    with ServerProcess(store, ["--workers", "2"], stderr=subprocess.DEVNULL) as server:
        sizes = []
        for number in range(ROUNDS):
            spec, headers = LARGE, {}
            if way == "replace" and number:
                spec = OTHER if number % 2 else LARGE
                headers["if-match"] = "*"
            url = f"{server.url}/models/m"
            httpx.put(url, json=spec, headers=headers, timeout=60).raise_for_status()
            ask_both(server, "POST", "/models/m/learn", json=ROW)
            ask_both(server, "GET", "/models/m")
            if way == "delete":
                httpx.delete(f"{server.url}/models/m", timeout=60).raise_for_status()
            sizes.append(resident_bytes(server))
        grown = max(sizes[-3:]) - max(sizes[:SETTLED_AFTER])
        # Each worker holds one model of 16 MB or more, and one more in a snapshot or a request.
        assert grown < 2 * 48 * 2**20, [size >> 20 for size in sizes]
