"""Latency of durable learning at shares of the highest rate, by an open-loop generator.

The highest rate is measured by wrk over the same connections immediately before. The server and the
store are on core 0, the generator runs with real-time priority on core 1.
"""

import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dualstream.service.cli.demo.adult import adult_lines
from load_tests.generator import Order, drive_apart
from load_tests.http import (
    CONNECTIONS,
    GENERATOR_CORE,
    SERVER_CORE,
    Load,
    Side,
    as_json,
    ours,
    send,
)
from load_tests.measure import ROUNDS, Row
from load_tests.open_loop import Drive
from load_tests.plots import quantiles
from tests.redis_server import running_redis

TITLE = "Latency"
SHARES = (0.2, 0.5, 0.8)
"""Shares of the highest rate."""
SECONDS, WARM_SECONDS, BODIES = 3.0, 1.0, 5000
MAX_SLIP_MS = 1.0
"""At the 99th percentile: above it a run says more of the generator than of the server."""

_table: list[str] = []
_curves: dict[str, list[float]] = {}
_urgencies: set[str] = set()


def rows() -> list[Row]:
    """No rows, because there is no peer. `about` has the figures."""
    _table.clear()
    _curves.clear()
    _urgencies.clear()
    lines = adult_lines()[:BODIES]
    with tempfile.TemporaryDirectory(prefix="dualstream-bench-") as folder:
        bodies = Path(folder) / "bodies"
        bodies.write_text("\n".join(map(as_json, lines)) + "\n")
        for name in ("SQLite normal", "Redis everysec"):
            with store(name, Path(folder)) as side:
                for line in measured(name, side, Load(bodies)):
                    print(line, flush=True)
                    _table.append(line)
    return []


@contextmanager
def store(name: str, folder: Path) -> Iterator[Side]:
    """A server on an empty store of this name."""
    with ExitStack() as stack:
        url = f"sqlite:///{folder}/bench.db"
        if name.startswith("Redis"):
            redis = stack.enter_context(running_redis(appendfsync=name.split()[1]))
            os.sched_setaffinity(redis.pid, {int(SERVER_CORE)})
            url = redis.url
        yield stack.enter_context(ours(url, name.split()[1]))


def measured(name: str, side: Side, load: Load) -> list[str]:
    """A line of the table for each share."""
    highest = statistics.median(send(load, side) for _ in range(3))
    runs: dict[float, list[Drive]] = {share: [] for share in SHARES}
    warm = _driven(side, load, SHARES[0] * highest, WARM_SECONDS)
    for _ in range(ROUNDS):
        for share in SHARES:
            runs[share].append(_driven(side, load, share * highest, SECONDS))
    every = [warm, *(run for results in runs.values() for run in results)]
    assert side.check is not None
    wrong = side.void or side.check([seq for run in every for seq in run.acks])
    for share, results in runs.items():
        pooled = [ms for run in _standing(results) for ms in run.latencies_ms]
        if pooled and not wrong:
            _curves[f"{name}, {share:.0%}"] = pooled
    return [line_of(name, share, highest, results, wrong) for share, results in runs.items()]


def _driven(side: Side, load: Load, rate: float, seconds: float) -> Drive:
    core = int(GENERATOR_CORE)
    order = Order(side.url, side.target, load.bodies, rate, seconds, CONNECTIONS, core)
    done = drive_apart(order)
    _urgencies.add(done.urgency)
    return done.drive


def _standing(runs: Sequence[Drive]) -> list[Drive]:
    """Runs that are not void."""
    return [run for run in runs if run.slip_ms(0.99) <= MAX_SLIP_MS]


def line_of(name: str, share: float, highest: float, runs: Sequence[Drive], wrong: str) -> str:
    kept = _standing(runs)
    outcome = wrong or f"{len(kept)} of {len(runs)} runs stand"
    quantiles = [_spread([run.latency_ms(at) for run in kept]) for at in (0.5, 0.99, 0.999)]
    slip = _spread([run.slip_ms(0.99) for run in runs])
    cells = [f"{name}, {share:.0%} of {highest:,.0f} requests/s", *quantiles, slip, outcome]
    return "| " + " | ".join(cells) + " |"


def _spread(figures: Sequence[float]) -> str:
    """Median, minimum and maximum."""
    if not figures:
        return "void"
    return f"{statistics.median(figures):.2f} ({min(figures):.2f} to {max(figures):.2f})"


def about() -> list[str]:
    return [
        "`python -m load_tests latency` runs these alone: durable single-sample JSON learn, "
        f"{CONNECTIONS} connections, one worker. Requests are sent when due, and latency counts "
        f"from the due time. {ROUNDS} alternating runs of {SECONDS:.0f} s; ms, median of the runs "
        f"(spread). A run whose generator has a p99 slip above {MAX_SLIP_MS:g} ms is void. The "
        f"generator is a process of its own on core {GENERATOR_CORE}, with "
        f"{' or '.join(sorted(_urgencies))}. The history is checked afterwards.",
        "",
        "| what | p50 | p99 | p99.9 | the generator's p99 slip | |",
        "|---|---|---|---|---|---|",
        *_table,
    ]


def draw(_: Sequence[Row]) -> str:
    """Plot the quantiles of all valid runs."""
    return quantiles(_curves, "latency", "Durable single-sample JSON learn, sent when due")
