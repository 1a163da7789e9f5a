"""Two workers at constant memory, while large models are created, learned, replaced and deleted.

`make test` runs a sample of the rounds; DUALSTREAM_CHAOS_ROUNDS runs all.
"""

import os
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from dualstream.service.cli.demo.server_process import ServerProcess
from tests.service.server.support import children

ROUNDS = 100 if "DUALSTREAM_CHAOS_ROUNDS" in os.environ else 12
MODEL_BYTES = 8 << 22
LARGE = {"algorithm": "sgd", "loss": "logistic", "features": {"kind": "hashed", "bits": 22}}
OTHER = LARGE | {"loss": "hinge"}
FEATURES, ROWS = 2000, 10
BODY = [
    {"x": {f"f{FEATURES * row + number}": 1.0 for number in range(FEATURES)}, "y": 1}
    for row in range(ROWS)
]
"""Touches most pages of the weights: untouched ones take no memory."""
WARM_UP = 8
"""Rounds until imports, arenas and caches have their size."""
SETTLED_WITHIN_S = 30.0


def private_bytes(server: ServerProcess) -> int:
    """Memory of all workers, without files."""
    result = 0
    for pid in children(server):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                result += int(line.split()[1]) << 10
    return result


def use_in_both(server: ServerProcess, url: str) -> None:
    """Learn rows, then send requests on several connections, so that both workers answer some."""
    httpx.post(f"{url}/learn", json={"samples": BODY}, timeout=60).raise_for_status()
    for _ in range(5):
        httpx.get(url, timeout=60).raise_for_status()


def settled(server: ServerProcess, most: int) -> int:
    """The memory of the workers, once it is at most `most` or has had time to get there."""
    until = time.monotonic() + SETTLED_WITHIN_S
    while (result := private_bytes(server)) > most and time.monotonic() < until:
        time.sleep(0.2)
    return result


@pytest.mark.parametrize("way", ["delete", "replace"])
def test_memory_of_deleted_and_replaced_models_is_freed(tmp_path: Path, way: str) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    with ServerProcess(store, ["--workers", "2"], stderr=subprocess.DEVNULL) as server:
        empty = private_bytes(server)
        sizes = []
        for number in range(ROUNDS):
            url = f"{server.url}/models/{'m' if way == 'replace' else f'm{number}'}"
            spec = OTHER if way == "replace" and number % 2 else LARGE
            inputs = {"if-match": "*"} if way == "replace" and number else {}
            httpx.put(url, json=spec, headers=inputs, timeout=60).raise_for_status()
            use_in_both(server, url)
            sizes.append(private_bytes(server) - empty)
            if way == "delete":
                httpx.delete(url, timeout=60).raise_for_status()
        # The test is about memory that is in use: each worker has touched a model.
        assert max(sizes) > MODEL_BYTES
        # Single rounds see a model and its successor in a worker, and snapshots.
        most = empty + max(sizes[:WARM_UP]) + MODEL_BYTES // 2
        assert settled(server, most) <= most, [size >> 20 for size in sizes]
        assert max(sizes) < 6 * MODEL_BYTES, [size >> 20 for size in sizes]
