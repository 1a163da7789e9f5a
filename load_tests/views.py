"""Time, memory and stall of views: of models of many features that touched few, and of classes.

`python -m load_tests.views` prints a table. Each view is requested from a server of its own model,
while another thread requests `/livez` every 5 ms. Memory is the highest resident size during the
view, above that before it.
"""

import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from dualstream.service.cli.demo.server_process import ServerProcess
from load_tests.measure import cpu_seconds

WIDEST = 2_147_483_646
MIB = 1 << 20
TIMEOUT_S = 300.0
Step = tuple[str, str, str, Any]
"""Name, method, path and body of a request."""


def few(rows: int, classes: int = 2) -> list[dict[str, Any]]:
    """Rows of ten features, with labels 0, 1, ... or named classes."""
    return [
        {
            "x": {f"f{k}": float((n * k) % 7 + 1) for k in range(10)},
            "y": n % 2 if classes == 2 else f"c{n % classes}",
        }
        for n in range(rows)
    ]


def by_index(rows: int) -> list[dict[str, Any]]:
    """Rows of an indexed model that touch the ends of its width."""
    return [
        {"x": {"1": 1.0, str(n % 50 + 2): 2.0, str(WIDEST): 1.0}, "y": n % 2} for n in range(rows)
    ]


WEIGHTS: Step = ("weights", "GET", "/models/m/weights?top=20", None)
SCRAPE: Step = ("scrape", "GET", "/metrics", None)
DIGEST: Step = ("digest", "GET", "/models/m?digest=true", None)
VERSION: Step = ("version", "POST", "/models/m/versions", {})
EXPORT: Step = ("export", "GET", "/models/m/export?format=json", None)
PORTFOLIO = {"algorithm": "portfolio", "members": "eight"}
MULTICLASS = {"task": "multiclass", "features": {"kind": "hashed"}}
CASES: Mapping[str, tuple[dict[str, Any], list[dict[str, Any]], tuple[Step, ...]]] = {
    "portfolio, dim 2,147,483,646": (
        {**PORTFOLIO, "features": {"kind": "indexed", "dim": WIDEST}, "guard": "warn"},
        by_index(1),
        (
            WEIGHTS,
            ("predict", "POST", "/models/m/predict", {"x": by_index(1)[0]["x"]}),
            SCRAPE,
            ("guard, 200 rows", "POST", "/models/m/learn", {"samples": by_index(200)}),
            ("members", "GET", "/models/m/members", None),
            DIGEST,
            VERSION,
            EXPORT,
        ),
    ),
    "portfolio, 26 bits": (
        {**PORTFOLIO, "features": {"kind": "hashed", "bits": 26}},
        few(10),
        (SCRAPE, WEIGHTS),
    ),
    "dual_ascent, 24 bits": (
        {"algorithm": "dual_ascent", "features": {"kind": "hashed", "bits": 24}},
        few(1),
        (
            WEIGHTS,
            ("certificate", "GET", "/models/m/certificate", None),
            SCRAPE,
            DIGEST,
            VERSION,
            EXPORT,
        ),
    ),
    "300 classes": (MULTICLASS, few(300, 300), (WEIGHTS, SCRAPE, DIGEST)),
    "600 classes": (MULTICLASS, few(600, 600), (WEIGHTS, SCRAPE, DIGEST, VERSION)),
}


class Pulse(threading.Thread):
    """Requests `/livez` until it is stopped; `longest` is the longest wait for an answer."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._ends = threading.Event()
        self.longest = 0.0

    def run(self) -> None:
        with httpx.Client(base_url=self._url, timeout=TIMEOUT_S) as client:
            while not self._ends.is_set():
                began = time.perf_counter()
                try:
                    client.get("/livez")
                except httpx.HTTPError:
                    return
                self.longest = max(self.longest, time.perf_counter() - began)
                self._ends.wait(0.005)

    def stop(self) -> None:
        self._ends.set()
        self.join()


def resident(pid: int, field: str) -> int:
    """A size of a process in bytes: VmRSS, or its peak VmHWM."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise ValueError(field)


@contextmanager
def serving(spec: Mapping[str, Any], rows: list[dict[str, Any]]) -> Iterator[ServerProcess]:
    """A server with the model `m` that has learned these rows, with at most 12 GiB of memory."""
    with tempfile.TemporaryDirectory() as folder:
        limit = ("prlimit", f"--as={12 << 30}")
        with ServerProcess(f"sqlite:///{folder}/views.db", prefix=limit) as server:
            with httpx.Client(base_url=server.url, timeout=TIMEOUT_S) as client:
                client.put("/models/m", json=spec).raise_for_status()
                client.post("/models/m/learn", json={"samples": rows}).raise_for_status()
            yield server


def measured(server: ServerProcess, step: Step) -> tuple[str, float, float, float]:
    """Status, milliseconds of CPU, MiB, and milliseconds of the longest wait for `/livez`."""
    _, method, path, body = step
    pid = server.process.pid
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is now the present size
    before, used = resident(pid, "VmRSS"), cpu_seconds(pid)
    pulse = Pulse(server.url)
    pulse.start()
    with httpx.Client(base_url=server.url, timeout=TIMEOUT_S) as client:
        client.get("/livez")
        try:
            status = str(client.request(method, path, json=body).status_code)
        except httpx.HTTPError as error:
            status = type(error).__name__
    pulse.stop()
    if server.process.poll() is not None:
        return "killed", 0.0, 0.0, pulse.longest * 1e3
    spent = cpu_seconds(pid) - used
    grown = resident(pid, "VmHWM") - before
    return status, spent * 1e3, grown / MIB, pulse.longest * 1e3


def main(names: list[str]) -> None:
    print("| model | view | status | CPU, ms | MiB | `/livez`, ms |\n|---|---|---|---|---|---|")
    for name in names or CASES:
        spec, rows, steps = CASES[name]
        with serving(spec, rows) as server:
            for step in steps:
                status, ms, mib, stall = measured(server, step)
                row = f"{status} | {ms:,.0f} | {mib:,.0f} | {stall:,.0f}"
                print(f"| {name} | {step[0]} | {row} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
