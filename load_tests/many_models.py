"""10,000 models with memory for 500 of them, chosen by a Zipf law, against one model.

Each model has learned 2,000 rows before the run; these are appended to the journal directly.
Requests have one sample and come over 64 connections, in two ways. In a closed loop each connection
sends again once it is answered: that measures throughput. In an open loop requests are sent when
due, at the same rate for both sides, 20 % and 50 % of the throughput of the many models. Latency
counts from the due time and includes waiting for a free connection.

Before the first measured round the server runs in, until the models requested often are in memory.
Other models are loaded from their journal, or from the snapshot of their last eviction. Afterwards
the journals of a sample of models are compared with the answers.

A third side has 10,000 models of one row each, with next to nothing to replay. Their extra cost
over one model is the fixed part of a cache miss, and a group of its own for each request.
"""

import asyncio
import os
import random
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import numpy as np

from dualstream.service.cli.demo.adult import adult_lines
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.features import ALL
from dualstream.service.journal import open_journal
from dualstream.service.journal.chain import OURS
from dualstream.service.journal.protocol import AppendRequest, Journal, Part
from dualstream.service.replica.recovery import recover
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import Request
from dualstream.service.replica.spec import canonical
from dualstream.solvers import Batch, resolve_spec
from load_tests.generator import Order, drive_apart
from load_tests.http import (
    CONNECTIONS,
    GENERATOR_CORE,
    ROOT,
    SERVER_CORE,
    as_json,
    check,
    pinned,
    wrk as path_of_wrk,
)
from load_tests.measure import Row, cpu_seconds, interleaved

TITLE = "Many models"
MODELS, ROWS, ENTRY_ROWS = 10_000, 2000, 500
HELD = 500
"""Models in memory at most."""
MODEL_BYTES = {ROWS: 676_072, 1: 53_237}
"""Memory of a model by its number of rows, as the server measures it."""
EXPONENT = 1.1
SHARES = (0.2, 0.5)
"""Open-loop rates, as shares of the closed-loop throughput of the many models."""
MAX_SLIP_MS = 1.0
"""Limit of the generator's own p99 delay; above it a run measures the generator."""
SECONDS, RUN_IN_S = 5, 30
CLOSED = "as fast as they are answered"
SPEC = {
    "algorithm": "dual_ascent",
    "loss": "hinge",
    "features": {"kind": "indexed", "dim": 123},
    "retain": 1000,
}
CHECKED, REPLAYED = 100, 10
"""Models whose journals are compared with the answers; models replayed without snapshots."""

_about: list[str] = []


@dataclass(frozen=True)
class Run:
    """One run of the generator: its results, and the server's counters."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    loads: float
    load_s: float
    evictions: float
    cpu_s: float

    @property
    def per_s(self) -> float:
        return self.requests / self.seconds


@dataclass
class Side:
    """A server and the models that requests name."""

    name: str
    store: str
    url: str
    server: int
    """Its process id."""
    models: int
    length: int
    """Rows that each model learned before the run."""
    runs: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))
    acks: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    void: str = ""
    seed: int = 0

    def counted(self) -> str:
        """The number of models, in words."""
        of = f" of {self.length:,} row" if self.length < ROWS else ""
        return f"{self.models:,} model{'s' * (self.models > 1)}{of}"


def rows() -> Iterator[Row]:
    _about.clear()
    with tempfile.TemporaryDirectory(prefix="dualstream-bench-") as folder, ExitStack() as stack:
        bodies = Path(folder) / "bodies"
        bodies.write_text("\n".join(map(as_json, adult_lines()[5000:10_000])) + "\n")
        sides = {}
        for name, models, length in (("many", MODELS, ROWS), ("one", 1, ROWS), ("new", MODELS, 1)):
            store = f"sqlite:///{folder}/{name}.db"
            asyncio.run(prepare(store, models, length))
            # The checker compares whole journals with the answers afterwards.
            memory = str(HELD * MODEL_BYTES[length])
            flags = ["--keep-records", "1000000000", "--models-bytes", memory]
            with ServerProcess(store, flags):
                pass  # Prepared stores are on disk by now, and kernels are compiled.
            began = time.perf_counter()
            server = stack.enter_context(ServerProcess(store, flags, prefix=pinned(SERVER_CORE)))
            where = (server.url, server.process.pid)
            sides[name] = Side(name, store, *where, models, length)
            _about.append(
                f"Start with {sides[name].counted()} until ready: "
                f"{time.perf_counter() - began:.2f} s."
            )
        for side in sides.values():
            send(bodies, side, "run in", RUN_IN_S if side.models > 1 else 2)
        many = sides["many"]
        figures = interleaved(
            {name: partial(send, bodies, side, CLOSED, SECONDS) for name, side in sides.items()}
        )
        yield compare(CLOSED, sides, figures)
        yield compare(CLOSED, sides, figures, "new")
        del sides["new"]
        for share in SHARES:
            rate = share * statistics.median(run.per_s for run in many.runs[CLOSED])
            load = f"{rate:,.0f} requests/s, sent when due"
            figures = interleaved(
                {
                    name: partial(send_due, bodies, side, load, rate, SECONDS)
                    for name, side in sides.items()
                }
            )
            yield compare(load, sides, figures)


def compare(
    load: str, sides: dict[str, Side], figures: dict[str, list[float]], name: str = "many"
) -> Row:
    many, one = sides[name], sides["one"]
    has_gate = name == "many"
    problems = [side.void or checked(side) for side in (many, one)]
    for side in (many, one) if has_gate else (many,):
        _about.append(f"{load}: {got(side, side.runs[load])}")
    length = f"{many.length:,} row{'s' * (many.length > 1)} each"
    return Row(
        f"learn p99, {MODELS:,} models (dim 123, retain 1,000, {length}), {HELD} in memory, "
        f"Zipf({EXPONENT}), {CONNECTIONS} connections, {load}, SQLite normal",
        "ms",
        figures[name],
        "one model",
        figures["one"],
        gate=3.0 if has_gate else None,
        goal=2.0 if has_gate else None,
        smaller_is_better=True,
        notes=[got(many, many.runs[load])],
        void="; ".join(filter(None, problems)),
    )


def got(side: Side, runs: list[Run]) -> str:
    """Summary of a side's runs."""
    requests = sum(run.requests for run in runs)
    loads, load_s = sum(run.loads for run in runs), sum(run.load_s for run in runs)
    text = (
        f"{side.counted()}: "
        f"p50 {statistics.median(run.p50_ms for run in runs):.3g} ms, "
        f"p99 {statistics.median(run.p99_ms for run in runs):.3g} ms, "
        f"{requests / sum(run.seconds for run in runs):,.0f} requests/s, "
        f"{sum(run.cpu_s for run in runs) / requests * 1e6:,.0f} us of the server's CPU a request"
    )
    if not loads:
        return text
    evictions = sum(run.evictions for run in runs)
    return (
        f"{text}; {loads:,.0f} loads ({loads / requests:.1%} of the requests), "
        f"{load_s / loads * 1000:.2f} ms a load, {evictions:,.0f} evictions"
    )


def about() -> list[str]:
    lines = [f"- {line}" for line in _about]
    note = (
        f"`python -m load_tests many_models` runs these alone: {RUN_IN_S} s of running in, then "
        f"alternating runs of {SECONDS} s. {CONNECTIONS} connections in a closed loop measure "
        "throughput: concurrent requests to one model share appends, requests to many models do "
        "not, and a fifth of them miss the model cache. The rows with requests sent when due have "
        f"the latency that a client sees, at {SHARES[0]:.0%} and {SHARES[1]:.0%} of the throughput "
        "of the many models, at the same rate for both sides. All figures include cache misses: a "
        "model that is not in memory is loaded. Models of one row each have next to nothing to "
        "replay; their extra cost over one model is the fixed part of a miss (reading, creating "
        "and evicting a model) and a group for every request. "
        f"The history of {CHECKED} models is checked after each load. {REPLAYED} of them are "
        "replayed without snapshots and compared bit for bit."
    )
    return [note, "", *lines]


# -- preparing -----------------------------------------------------------------------------------


async def prepare(store: str, models: int, length: int) -> None:
    """Create models with `rows` rows in their journals, and nothing else."""
    text = b"\n".join(adult_lines()[:length]) + b"\n"
    batch = Batch.from_libsvm(text, 123).batch
    parts = [
        Request.of(batch[first : first + ENTRY_ROWS], None, None).parts[0]
        for first in range(0, length, ENTRY_ROWS)
    ]
    made = canonical(resolve_spec(SPEC)), canonical(SPEC)
    journal = await open_journal(store)
    try:
        for first in range(0, models, 64):
            some = range(first, min(models, first + 64))
            await asyncio.gather(*(fill(journal, f"m{n:05}", made, parts) for n in some))
    finally:
        await journal.close()


async def fill(journal: Journal, model: str, made: tuple[bytes, bytes], parts: list[Part]) -> None:
    record, _ = await journal.create(model, *made)
    for part in parts:
        await journal.append(AppendRequest(model, record.incarnation, OURS.make(), ROWS, [part]))


# -- sending -------------------------------------------------------------------------------------


def send(bodies: Path, side: Side, load: str, seconds: int) -> float:
    """p99 latency of a wrk run, in ms."""
    side.seed += 1
    with counting(side, load) as result, tempfile.NamedTemporaryFile("r") as acks:
        command = [*pinned(GENERATOR_CORE), path_of_wrk(), "-t1", f"-c{CONNECTIONS}"]
        command += [f"-d{seconds}s", "--latency", "--timeout", "10s"]
        command += ["-s", str(Path(__file__).parent / "zipf.lua"), side.url]
        options = {
            "BODIES": str(bodies),
            "MODEL": "m",
            "MODELS": str(side.models),
            "EXPONENT": str(EXPONENT),
            "SEED": str(side.seed),
            "ACKS": acks.name,
            "LD_LIBRARY_PATH": str(ROOT / ".cache/wrk/usr/lib/x86_64-linux-gnu"),
        }
        done = subprocess.run(
            command, env={**os.environ, **options}, capture_output=True, text=True, check=True
        )
        result.acks = [(model, int(seq)) for model, seq in map(str.split, acks)]
        line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
        requests, micros, result.bad, p50, p99 = map(float, line.split()[1:])
        result.requests, result.seconds = int(requests), micros / 1e6
        result.p50_ms, result.p99_ms = p50 / 1000, p99 / 1000
    return result.p99_ms


def send_due(bodies: Path, side: Side, load: str, rate: float, seconds: int) -> float:
    """p99 latency of an open-loop run, in ms, counted from the due time."""
    side.seed += 1
    with counting(side, load) as result, tempfile.NamedTemporaryFile("w+") as targets:
        chosen = zipf(side.models, int(rate * seconds), side.seed)
        targets.write("".join(f"/models/m{n:05}/learn\n" for n in chosen))
        targets.flush()
        order = Order(
            side.url, "", bodies, rate, seconds, CONNECTIONS, int(GENERATOR_CORE),
            targets=Path(targets.name),
        )  # fmt: skip
        run = drive_apart(order).drive
        result.acks = list(zip(run.models, run.acks, strict=True))
        result.requests, result.seconds = len(run.latencies), float(seconds)
        result.p50_ms, result.p99_ms = run.latency_ms(0.5), run.latency_ms(0.99)
        if run.slip_ms(0.99) > MAX_SLIP_MS:
            side.void = f"the generator was late by {run.slip_ms(0.99):.2f} ms"
    return result.p99_ms


def zipf(models: int, count: int, seed: int) -> list[int]:
    """Model numbers drawn as zipf.lua draws them; popular models are spread over all numbers."""
    up_to = np.cumsum(np.arange(1, models + 1) ** -EXPONENT)
    luck = np.random.default_rng(seed).random(count) * up_to[-1]
    chosen: list[int] = (np.searchsorted(up_to, luck) * 7919 % models).tolist()
    return chosen


@dataclass
class RunResult:
    """Results of a generator."""

    acks: list[tuple[str, int]] = field(default_factory=list)
    requests: int = 0
    seconds: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    bad: float = 0


@contextmanager
def counting(side: Side, load: str) -> Iterator[RunResult]:
    """Record a run with the server's counters. A failed request voids the run."""
    result, before = RunResult(), scrape(side.url)
    began_s = cpu_seconds(side.server)
    yield result
    cpu_s = cpu_seconds(side.server) - began_s
    after = scrape(side.url)
    for model, seq in result.acks:
        side.acks[model].append(seq)
    if result.bad:
        side.void = f"{result.bad:.0f} requests failed"
    elif len(result.acks) < result.requests:
        side.void = f"{result.requests - len(result.acks)} answers name no seq"
    loads, load_s, evictions = (
        after[name] - before[name]
        for name in (
            "dualstream_model_load_duration_seconds_count",
            "dualstream_model_load_duration_seconds_sum",
            "dualstream_model_evictions_total",
        )
    )
    seen = (result.requests, result.seconds, result.p50_ms, result.p99_ms)
    side.runs[load].append(Run(*seen, loads, load_s, evictions, cpu_s))


def scrape(url: str) -> dict[str, float]:
    """The server's metrics."""
    text = httpx.get(f"{url}/metrics", timeout=60).text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


# -- checking ------------------------------------------------------------------------------------


def checked(side: Side) -> str:
    """Errors in a sample of the requested models; empty if there are none."""
    by_use = sorted(side.acks, key=lambda model: (-len(side.acks[model]), model))
    often = by_use[: CHECKED // 2]
    seldom = by_use[CHECKED // 2 :]
    seldom = random.Random(1).sample(seldom, min(len(seldom), CHECKED - len(often)))
    return asyncio.run(_check(side, often + seldom))


async def _check(side: Side, models: list[str]) -> str:
    for model in models:
        problem = await check(side.store, model, side.acks[model], 1)
        if problem:
            return f"{model}: {problem}"
    journal = await open_journal(side.store)
    try:
        for model in models[:: max(1, len(models) // REPLAYED)]:
            record = await journal.get(model)
            restored, replayed = Replica(record, ALL), Replica(record, ALL)
            await recover(restored, journal)
            await replayed.catch_up(journal)
            if restored.capture().state_digest() != replayed.capture().state_digest():
                return f"{model}: a snapshot and the whole journal give different states"
    finally:
        await journal.close()
    return ""
