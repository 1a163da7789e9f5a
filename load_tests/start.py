"""Time from process start to the first learned sample, with a warm kernel cache."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx

from dualstream.service.cli.demo.server_process import ServerProcess
from load_tests.measure import Row, children_cpu_seconds, interleaved

SPEC = {"algorithm": "dual_ascent", "loss": "hinge", "features": {"kind": "indexed", "dim": 5}}


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="dualstream-bench-") as folder:
        store = f"sqlite:///{Path(folder) / 'start.db'}"
        with ServerProcess(store) as server:
            httpx.put(f"{server.url}/models/m", json=SPEC, timeout=120).raise_for_status()
        to_first_sample(store)
        spent: dict[str, list[float]] = {"ours": [], "peer": []}
        sides = {"ours": partial(to_first_sample, store), "peer": import_peer}
        figures = interleaved(
            {name: partial(_with_cpu, side, spent[name]) for name, side in sides.items()}
        )
    return [
        Row(
            "process start to first learned sample, warm cache",
            "s",
            figures["ours"],
            'python -c "import fastapi, numba, numpy"',
            figures["peer"],
            gate=3.0,
            goal=2.0,
            smaller_is_better=True,
            cpu=(min(spent["ours"]), min(spent["peer"])),
        )
    ]


def _with_cpu(side: Callable[[], float], spent: list[float]) -> float:
    before = children_cpu_seconds()
    seconds = side()
    spent.append(1e6 * (children_cpu_seconds() - before))
    return seconds


def to_first_sample(store: str) -> float:
    began = time.perf_counter()
    with ServerProcess(store) as server:
        sample = {"x": [1, 0, 0, 0, 2], "y": 1}
        httpx.post(f"{server.url}/models/m/learn", json=sample).raise_for_status()
        return time.perf_counter() - began


def import_peer() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import fastapi, numba, numpy"], check=True)
    return time.perf_counter() - began
