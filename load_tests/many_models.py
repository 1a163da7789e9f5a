"""Ten thousand models of which 500 are in memory, chosen by a Zipf law, against one model.

Each has learned 2,000 rows before, appended to the journal directly. Samples come one a request
over 64 connections, once as fast as they are answered, and once paced, so that waiting for others
is no part of it. Before the first measured round the server is run in, until what is asked for
often is in memory; what is asked for seldom comes from its journal, or from the snapshot that it
left with. Afterwards the journals of a sample of models are held against what was answered.
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
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx

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
from load_tests.measure import Row, interleaved
from service.catalog import canonical
from service.demo.adult import adult_lines
from service.demo.server_process import ServerProcess
from service.journal import open_journal
from service.journal.protocol import Journal, Part
from service.replica import Replica
from service.requests import Request
from solvers import Batch, resolve_spec

TITLE = "Many models"
MODELS, HELD, ROWS, ENTRY_ROWS = 10_000, 500, 2000, 500
EXPONENT = 1.1
PACED_PER_S = 200
SECONDS, RUN_IN_S = 5, 60
SPEC = {
    "algorithm": "dual_ascent",
    "loss": "hinge",
    "features": {"kind": "indexed", "dim": 123},
    "retain": 1000,
}
CHECKED, REPLAYED = 200, 20
"""So many models' journals are held against the answers, and so many replayed without snapshots."""

_about: list[str] = []


@dataclass(frozen=True)
class Run:
    """One run of the generator: what it saw, and what the server did for it."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    loads: float
    load_s: float
    evictions: float


@dataclass
class Side:
    """A server and the models that it is asked for."""

    name: str
    store: str
    url: str
    models: int
    runs: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))
    acks: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    void: str = ""
    seed: int = 0


def rows() -> Iterator[Row]:
    _about.clear()
    with tempfile.TemporaryDirectory(prefix="dualstream-bench-") as folder, ExitStack() as stack:
        bodies = Path(folder) / "bodies"
        bodies.write_text("\n".join(map(as_json, adult_lines()[5000:10_000])) + "\n")
        sides = {}
        for name, models in (("many", MODELS), ("one", 1)):
            store = f"sqlite:///{folder}/{name}.db"
            asyncio.run(prepare(store, models))
            # The whole journals are held against the answers afterwards.
            flags = ["--models-held", str(HELD), "--keep-records", "1000000000"]
            with ServerProcess(store, flags):
                pass  # what was written just before is on the disk now, and kernels are compiled
            began = time.perf_counter()
            server = stack.enter_context(ServerProcess(store, flags, prefix=pinned(SERVER_CORE)))
            _about.append(
                f"Start with {counted(models)} until ready: {time.perf_counter() - began:.2f} s."
            )
            sides[name] = Side(name, store, server.url, models)
        for side in sides.values():
            send(bodies, side, "run in", 0.0, RUN_IN_S if side.models > 1 else 2)
        paces = {"as fast as they are answered": 0.0, "paced": CONNECTIONS / PACED_PER_S}
        for load, delay_s in paces.items():
            figures = interleaved(
                {
                    name: partial(send, bodies, side, load, delay_s, SECONDS)
                    for name, side in sides.items()
                }
            )
            yield compare(load, sides, figures)
        many = sides["many"]
        held = scrape(many.url)
        per_model = held["dualstream_models_bytes"] / held['dualstream_models{state="held"}']
        _about.append(f"Memory of a model in use, as measured by the server: {per_model:,.0f} B.")


def compare(load: str, sides: dict[str, Side], figures: dict[str, list[float]]) -> Row:
    many, one = sides["many"], sides["one"]
    problems = [side.void or checked(side) for side in sides.values()]
    pace = f"{PACED_PER_S} requests/s" if load == "paced" else load
    for side in (many, one):
        _about.append(f"{pace}: {told(side, side.runs[load])}")
    return Row(
        f"learn p99, {MODELS:,} models (dim 123, retain 1,000, {ROWS:,} rows each), {HELD} in "
        f"memory, Zipf({EXPONENT}), {CONNECTIONS} connections, {pace}, SQLite normal",
        "ms",
        figures["many"],
        "one model",
        figures["one"],
        gate=3.0,
        goal=2.0,
        smaller_is_better=True,
        notes=[told(many, many.runs[load])],
        void="; ".join(filter(None, problems)),
    )


def told(side: Side, runs: list[Run]) -> str:
    """What the runs of a side came to."""
    requests = sum(run.requests for run in runs)
    loads, load_s = sum(run.loads for run in runs), sum(run.load_s for run in runs)
    text = (
        f"{counted(side.models)}: "
        f"p50 {statistics.median(run.p50_ms for run in runs):.3g} ms, "
        f"p99 {statistics.median(run.p99_ms for run in runs):.3g} ms, "
        f"{requests / sum(run.seconds for run in runs):,.0f} requests/s"
    )
    if not loads:
        return text
    evictions = sum(run.evictions for run in runs)
    return (
        f"{text}; {loads:,.0f} misses ({loads / requests:.1%}), "
        f"{load_s / loads * 1000:.2f} ms a load, {evictions:,.0f} evictions"
    )


def counted(models: int) -> str:
    return f"{models:,} model{'s' * (models > 1)}"


def about() -> list[str]:
    lines = [f"- {line}" for line in _about]
    note = (
        f"`python -m load_tests many_models` runs these alone: {RUN_IN_S} s of running in, then "
        f"runs of {SECONDS} s in turns. The history of {CHECKED} models is checked after each "
        f"load, and {REPLAYED} of them are replayed without snapshots and compared bit for bit."
    )
    return [note, "", *lines]


# -- preparing -----------------------------------------------------------------------------------


async def prepare(store: str, models: int) -> None:
    """Models with rows in their journals, and nothing else."""
    text = b"\n".join(adult_lines()[:ROWS]) + b"\n"
    batch = Batch.from_libsvm(text, 123).batch
    parts = [
        Request.of(batch[first : first + ENTRY_ROWS], None, None).part
        for first in range(0, ROWS, ENTRY_ROWS)
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
        await journal.append(model, record.incarnation, os.urandom(16), ROWS, [part])


# -- sending -------------------------------------------------------------------------------------


def send(bodies: Path, side: Side, load: str, delay_s: float, seconds: int) -> float:
    """The 99th percentile of a run's latencies, in ms; a failed request makes the side void."""
    side.seed += 1
    before = scrape(side.url)
    with tempfile.NamedTemporaryFile("r", prefix="dualstream-acks-") as acks:
        command = [*pinned(GENERATOR_CORE), path_of_wrk(), "-t1", f"-c{CONNECTIONS}"]
        command += [f"-d{seconds}s", "--latency", "--timeout", "10s"]
        command += ["-s", str(Path(__file__).parent / "zipf.lua"), side.url]
        given = {
            "BODIES": str(bodies),
            "MODEL": "m",
            "MODELS": str(side.models),
            "EXPONENT": str(EXPONENT),
            "SEED": str(side.seed),
            "DELAY_MS": str(1000 * delay_s),
            "ACKS": acks.name,
            "LD_LIBRARY_PATH": str(ROOT / ".cache/wrk/usr/lib/x86_64-linux-gnu"),
        }
        done = subprocess.run(
            command, env={**os.environ, **given}, capture_output=True, text=True, check=True
        )
        answered = [line.split() for line in acks]
    for model, seq in answered:
        side.acks[model].append(int(seq))
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    requests, micros, bad, p50, p99 = map(float, line.split()[1:])
    if bad:
        side.void = f"{bad:.0f} requests failed"
    elif len(answered) < requests:
        side.void = f"{requests - len(answered):.0f} answers name no seq"
    after = scrape(side.url)
    loads, load_s, evictions = (
        after[name] - before[name]
        for name in (
            "dualstream_model_load_seconds_count",
            "dualstream_model_load_seconds_sum",
            "dualstream_model_evictions_total",
        )
    )
    side.runs[load].append(
        Run(int(requests), micros / 1e6, p50 / 1000, p99 / 1000, loads, load_s, evictions)
    )
    return p99 / 1000


def scrape(url: str) -> dict[str, float]:
    """The server's metrics."""
    text = httpx.get(f"{url}/metrics", timeout=60).text
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


# -- checking ------------------------------------------------------------------------------------


def checked(side: Side) -> str:
    """What is wrong with a sample of the models that were asked for; empty for nothing."""
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
            restored, replayed = Replica(record), Replica(record)
            await restored.load(journal)
            await replayed.catch_up(journal)
            if restored.capture().state_digest() != replayed.capture().state_digest():
                return f"{model}: a snapshot and the whole journal give different states"
    finally:
        await journal.close()
    return ""
