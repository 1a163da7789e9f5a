"""Stalls of the event loop, and memory, while one request or load takes long.

A process on the last core requests `/livez` every 4 ms on one connection, while another process
sends the request. The longest wait is the stall. The longest wait in a second before the request
shows what the machine adds. Memory is the highest resident size above that before the request.
"""

import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from dualstream.service.cli.demo.server_process import ServerProcess
from load_tests.measure import FEW_ROUNDS, Row
from load_tests.views import MIB, MULTICLASS, PORTFOLIO, TIMEOUT_S, few, resident

TITLE = "Stalls and memory"
PAUSE_S, IDLE_S, AFTER_S = 0.004, 1.0, 0.2
FLAGS = ("--snapshot-every", "1000000")
CLASSES, LABELS = 600, 500

_about: list[str] = []


class Pulse:
    """Requests `/livez` in a process of its own until `longest` is called."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-m", "load_tests.stalls", url]
        self._process = subprocess.Popen(
            command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def longest(self) -> float:
        """Stop, and return the longest wait in seconds."""
        output, _ = self._process.communicate("\n")
        return float(output)


def pulse(url: str) -> None:
    """Request until the standard input has a line, then print the longest wait."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    os.set_blocking(0, False)
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_S)
    longest, is_first = 0.0, True
    while not sys.stdin.readline():
        began = time.perf_counter()
        connection.request("GET", "/livez")
        connection.getresponse().read()
        longest = max(longest, time.perf_counter() - began)
        if is_first:
            longest, is_first = 0.0, False
            print("began", flush=True)
        time.sleep(PAUSE_S)
    print(longest)


@dataclass(frozen=True)
class Figures:
    """Seconds and bytes of one round."""

    stall: float
    idle: float
    grown: int


class Measured:
    """A server on a store of its own, and the table of what was measured."""

    def __init__(self, folder: str) -> None:
        self._store = f"sqlite:///{folder}/stalls.db"
        self.lines: list[str] = []
        self.start()
        self.server.wait_until("ready")

    def start(self) -> None:
        """Start the server and wait until it answers, but not until its models are loaded."""
        self.server = ServerProcess(self._store, FLAGS, wait=False)
        self.server.wait_until("Dualstream listens")
        self.client = httpx.Client(base_url=self.server.url, timeout=TIMEOUT_S)

    def kill(self) -> None:
        """Kill the server; the store stays."""
        self.client.close()
        self.server.kill()

    def during(self, work: Callable[[], object]) -> Figures:
        """The figures of one piece of work."""
        before = Pulse(self.server.url)
        time.sleep(IDLE_S)
        idle = before.longest()
        return self.now_during(work, idle)

    def now_during(self, work: Callable[[], object], idle: float = 0.0) -> Figures:
        """As `during`, without waiting."""
        pid = self.server.process.pid
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is now the present size
        idle_bytes = resident(pid, "VmRSS")
        asking = Pulse(self.server.url)
        work()
        time.sleep(AFTER_S)
        return Figures(asking.longest(), idle, resident(pid, "VmHWM") - idle_bytes)

    def add(self, what: str, before: str, rounds: list[Figures]) -> None:
        """Add the medians of some rounds to the table."""
        stall = statistics.median(one.stall for one in rounds)
        idle = statistics.median(one.idle for one in rounds)
        grown = statistics.median(one.grown for one in rounds) / MIB
        now = f"{stall:.3f} | {idle:.3f} | {grown:,.0f} | {os.getloadavg()[0]:.1f}"
        self.lines.append(f"| {what} | {before} | {now} |")
        print(self.lines[-1], flush=True)

    def create(self, model: str, spec: Mapping[str, Any]) -> None:
        self.client.put(f"/models/{model}", json=spec).raise_for_status()

    def learn(self, model: str, body: bytes, count: int, kind: str = "application/json") -> None:
        """Send rows, and wait until all are learned: a request may end before."""
        headers = {"content-type": kind}
        self.client.post(f"/models/{model}/learn", content=body, headers=headers)
        while self.client.get(f"/models/{model}").json()["seq"] < count:
            time.sleep(0.1)

    def wait_for_load(self) -> None:
        """Wait until the model `m` is in memory. Requests are refused while the server starts."""
        while self.client.get("/models/m/metrics").status_code != 200:
            time.sleep(0.1)

    def learning(
        self, what: str, before: str, spec: Mapping[str, Any], rows: list[dict[str, Any]]
    ) -> None:
        """Measure learning these rows by a new model, and leave the model `m` of the last round."""
        waits, body = [], json.dumps({"samples": rows}).encode()
        for _ in range(FEW_ROUNDS):
            self.client.delete("/models/m")
            self.create("m", spec)
            waits.append(self.during(lambda: self.learn("m", body, len(rows))))
        self.add(what, before, waits)

    def view(self, what: str, before: str, method: str, path: str, body: Any = None) -> None:
        """Measure one request."""

        def ask() -> None:
            self.client.request(method, path, json=body).raise_for_status()

        self.add(what, before, [self.during(ask) for _ in range(FEW_ROUNDS)])


def hashed(bits: int, **fields: Any) -> dict[str, Any]:
    return {"algorithm": "dual_ascent", "features": {"kind": "hashed", "bits": bits}, **fields}


def in_a_plane(rows: int) -> list[dict[str, Any]]:
    """Distinct rows, so that each may become a landmark."""
    return [{"x": {"1": n % 31 / 3, "2": n / 50}, "y": n % 2} for n in range(rows)]


def measure_learning(on: Measured) -> None:
    perceptron = hashed(18, algorithm="perceptron", task="multiclass")
    on.learning("learn 200 new labels, perceptron", "4.63 s", perceptron, few(200, 200))
    entropy = hashed(22, regularizer="entropy")
    on.learning("learn 20 rows, `entropy`, 22 bits", "3.96 s", entropy, few(20))
    steps = hashed(18, replay={"steps": 500_000})
    on.learning("learn 15 rows, replay of 500,000 steps", "-", steps, few(15))
    nystroem = {"kind": "nystroem", "components": 900, "gamma": 1e4}
    mapped = hashed(18, map=nystroem) | {"features": {"kind": "indexed", "dim": 4}}
    on.learning("learn 901 rows, 900 landmarks", "3.06 s", mapped, in_a_plane(901))
    what = f"learn {LABELS} new labels, portfolio"
    on.learning(what, "29.5 s", MULTICLASS, few(LABELS, LABELS))


def measure_classes(on: Measured) -> None:
    """Views of the model `m`, of which more classes are learned first."""
    rows = few(CLASSES, CLASSES)
    for first in range(LABELS, CLASSES, 25):
        body = json.dumps({"samples": rows[first : first + 25]}).encode()
        on.learn("m", body, first + 25)
    on.view(f"weights, {CLASSES} classes", "33.5 s, 3,603 MiB", "GET", "/models/m/weights?top=20")
    on.view(f"scrape, {CLASSES} classes", "3.23 s", "GET", "/metrics")
    on.view(f"digest, {CLASSES} classes", "4.91 s, 5,083 MiB", "GET", "/models/m?digest=true")
    version = "/models/m/versions"
    on.view(f"version, {CLASSES} classes", "10.5 s, 4,268 MiB", "POST", version, {"name": "v"})
    on.view(f"rollback, {CLASSES} classes", "-", "POST", "/models/m/rollback", {"version": "v"})


def measure_loads(on: Measured) -> None:
    """Loads of the model `m` while the server starts: its whole journal is learned again."""
    on.wait_for_load()
    figures = []
    for _ in range(FEW_ROUNDS):
        on.kill()
        on.start()
        figures.append(on.now_during(on.wait_for_load))
    on.add(f"restart with {CLASSES} classes in the journal", "23.8 s", figures)


def measure_widths(on: Measured) -> None:
    on.client.delete("/models/m")
    on.create("m", {**PORTFOLIO, "features": {"kind": "hashed", "bits": 26}})
    on.learn("m", json.dumps({"samples": few(10)}).encode(), 10)
    on.view("scrape, portfolio, 26 bits", "3.73 s, 596 MiB", "GET", "/metrics")
    on.client.delete("/models/m")
    on.create("m", hashed(24))
    on.learn("m", json.dumps({"samples": few(1)}).encode(), 1)
    weights = "/models/m/weights?top=20"
    on.view("weights, `dual_ascent`, 24 bits", "3.72 s, 401 MiB", "GET", weights)
    on.client.delete("/models/m")
    on.create("m", hashed(24, regularizer={"kind": "elastic_net", "delta": 0.1}))
    on.learn("m", json.dumps({"samples": few(10)}).encode(), 10)
    certificate = "/models/m/certificate"
    on.view("certificate, elastic net, 24 bits", "128 MiB (one array)", "GET", certificate)
    rda = {"algorithm": "rda", "features": {"kind": "hashed", "bits": 20}}
    on.create("sparse", rda)
    for first in range(0, 300_000, 60_000):
        names = range(first, first + 60_000)
        samples = [
            {"x": {f"f{name}": 1.0 for name in names[at : at + 2000]}, "y": at // 2000 % 2}
            for at in range(0, 60_000, 2000)
        ]
        on.learn("sparse", json.dumps({"samples": samples}).encode(), (first + 60_000) // 2000)
    on.view("support of 260,000 features", "0.42 s", "GET", "/models/sparse/support")
    fourier = {"kind": "fourier", "components": 16384}
    on.create("map", hashed(18, map=fourier) | {"features": {"kind": "indexed", "dim": 2048}})
    on.learn("map", json.dumps({"samples": in_a_plane(4)}).encode(), 4)
    back = "/models/map/rollback"
    on.view("rollback to a seq, Fourier map of 2048 x 16384", "4.60 s", "POST", back, {"seq": 2})


def rows(part: str = "") -> list[Row]:
    """No rows, because there is no peer. `about` has the table; `part` measures one part of it."""
    parts = {
        "classes": (measure_learning, measure_classes, measure_loads),
        "widths": (measure_widths,),
    }
    _about.clear()
    with tempfile.TemporaryDirectory(prefix="dualstream-bench-") as folder:
        on = Measured(folder)
        try:
            for measure in parts[part] if part else sum(parts.values(), ()):
                measure(on)
        finally:
            on.kill()
    _about.extend(got(on.lines))
    return []


def got(lines: list[str]) -> list[str]:
    return [
        "`python -m load_tests stalls`: the longest wait for `/livez` in seconds while one request "
        f"or load runs, the median of {FEW_ROUNDS} rounds, and as idle the longest wait in the "
        "second before. A process on the last core asks every 4 ms. Memory is the highest resident "
        "size above that before the request, and the load average is that after the rounds. The "
        "machine is shared: at a load above its two cores, a wait includes that for a core. "
        '"before" was measured by hand once: the last three rows on the tree right before the '
        "change, the others before the event loop was freed.",
        "",
        "| one request or load | before | stall, s | idle, s | memory, MiB | load |",
        "|---|---|---|---|---|---|",
        *lines,
    ]


def about() -> list[str]:
    return _about


if __name__ == "__main__":
    pulse(sys.argv[1])
