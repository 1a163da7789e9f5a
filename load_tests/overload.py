"""Overload: five times as many requests as the server can learn.

Open loop, as for latency, over enough connections that fast refusals leave one free. A request that
is due while no connection is free is counted and not sent. The generator asks /livez on a
connection of its own, and the server's memory is sampled.
"""

import statistics
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dualstream.service.cli.demo.adult import adult_lines
from load_tests.generator import Order, drive_apart
from load_tests.http import GENERATOR_CORE, Load, Side, as_json, send
from load_tests.latency import BODIES, MAX_SLIP_MS, store
from load_tests.measure import Row
from load_tests.open_loop import Drive
from load_tests.soak import resident_bytes

TITLE = "Overload"
TIMES, HALF = 5.0, 0.5
SECONDS, SHORT_SECONDS, HALF_SECONDS = 60.0, 15.0, 10.0
CONNECTIONS = 1000
LOOK_S = 0.05
MAX_REFUSAL_MS, MAX_LIVEZ_MS, MAX_TIMES, MAX_GROWTH = 250.0, 250.0, 5.0, 0.05
WARM_SHARE = 0.2
"""Share of the time after which memory has to be flat."""

_about: list[str] = []


@dataclass
class Memory:
    """Resident bytes of the server, sampled in a thread."""

    pid: int
    resident: list[int] = field(default_factory=list)
    _is_over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Memory":
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_S):
            self.resident.append(resident_bytes(self.pid))

    @property
    def growth(self) -> float:
        """Growth from the end of the warm-up to the maximum."""
        settled = self.resident[int(WARM_SHARE * len(self.resident)) :]
        return max(settled) / settled[0] - 1.0


def rows(length: str = "") -> list[Row]:
    """No rows, because there is no peer. `about` has the figures; `short` runs a few seconds."""
    _about.clear()
    seconds = SHORT_SECONDS if length == "short" else SECONDS
    with tempfile.TemporaryDirectory(prefix="dualstream-bench-") as folder:
        bodies = Path(folder) / "bodies"
        bodies.write_text("\n".join(map(as_json, adult_lines()[:BODIES])) + "\n")
        lines = []
        for name in ("SQLite normal", "Redis everysec"):
            with store(name, Path(folder)) as side:
                lines.append(measured(name, side, Load(bodies), seconds))
    _about.extend(got(lines, seconds))
    return []


def measured(name: str, side: Side, load: Load, seconds: float) -> str:
    """A line of the table."""
    capacity = statistics.median(send(load, side) for _ in range(3))
    half = _driven(side, load, HALF * capacity, HALF_SECONDS)
    with Memory(side.server) as memory:
        run = _driven(side, load, TIMES * capacity, seconds)
    assert side.check is not None
    wrong = side.void or side.check([*half.acks, *run.acks])
    return line_of(name, capacity, half, run, memory, wrong)


def _driven(side: Side, load: Load, rate: float, seconds: float) -> Drive:
    core = int(GENERATOR_CORE)
    bodies, target = load.bodies, side.target
    order = Order(side.url, target, bodies, rate, seconds, CONNECTIONS, core, True, "/livez")
    return drive_apart(order).drive


def line_of(name: str, capacity: float, half: Drive, run: Drive, memory: Memory, wrong: str) -> str:
    before, after = half.latency_ms(0.99), run.latency_ms(0.99)
    refusal, livez = _p99_ms(run.refusals), _p99_ms(run.probes)
    missed = [
        what
        for what, is_met in (
            ("learns", after <= MAX_TIMES * before),
            ("refusals", refusal <= MAX_REFUSAL_MS),
            ("/livez", livez <= MAX_LIVEZ_MS),
            ("memory", memory.growth <= MAX_GROWTH),
            ("slip", run.slip_ms(0.99) <= MAX_SLIP_MS),
            ("none refused at 50%", not half.refusals),
        )
        if not is_met
    ]
    outcome = f"void: {wrong}" if wrong else f"gate MISSED: {', '.join(missed)}"
    cells = [
        name,
        f"{capacity:,.0f}",
        f"{len(run.latencies):,} / {len(run.refusals):,} / {run.unsent:,}",
        f"{before:.1f}",
        f"{after:.1f} ({after / before:.1f}x)",
        f"{refusal:.1f} ({_max_ms(run.refusals):.0f})",
        f"{livez:.1f} ({_max_ms(run.probes):.0f})",
        f"{max(memory.resident) / 1e6:.1f} MB, {memory.growth:+.1%}",
        f"{run.slip_ms(0.99):.2f}",
        outcome if wrong or missed else "gate met",
    ]
    return "| " + " | ".join(cells) + " |"


def _p99_ms(seconds: Sequence[float]) -> float:
    return float(1000.0 * np.quantile(seconds, 0.99)) if seconds else 0.0


def _max_ms(seconds: Sequence[float]) -> float:
    return 1000.0 * max(seconds, default=0.0)


def got(lines: Sequence[str], seconds: float) -> list[str]:
    return [
        f"`python -m load_tests overload`: {TIMES:g} times the highest rate of wrk, {seconds:g} s, "
        f"open loop over {CONNECTIONS:,} connections; durable single-sample JSON learn, one "
        "worker. A request that is due while every connection waits is not sent. Limits: the p99 "
        f"of learns, from their due time, is at most {MAX_TIMES:g}x the p99 at {HALF:.0%} of the "
        f"rate; the p99 of refusals is at most {MAX_REFUSAL_MS:g} ms, that of /livez "
        f"{MAX_LIVEZ_MS:g} ms; memory grows by at most {MAX_GROWTH:.0%} after a fifth of the time; "
        f"the generator's p99 slip is at most {MAX_SLIP_MS:g} ms. The history is checked "
        "afterwards.",
        "",
        "| store | highest rate, requests/s | learned / refused / not sent | p99 at 50%, ms "
        "| p99 of learns, ms | p99 of refusals (maximum), ms | p99 of /livez (maximum), ms "
        "| memory | slip, ms | |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *lines,
    ]


def about() -> list[str]:
    return _about
