"""Durable learning over HTTP, one sample a request, compared with hand-written services.

The server runs on core 0; the generator (wrk) and Redis, if used, run on core 1. After each run of
Dualstream the journal is read: each answered row must be in the journal once, and in the state.
Otherwise the row is void.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from dualstream.service.cli.demo.adult import adult_lines, sample_of
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.features import ALL
from dualstream.service.http.api_keys import new_key
from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import Journal, ModelRecord
from dualstream.service.replica.recovery import recover
from dualstream.service.replica.replica import Replica
from load_tests.measure import Row, children_cpu_seconds, cpu_seconds, interleaved
from load_tests.span_receiver import SAMPLER, receiver
from tests.history import HistoryBroken, check_history
from tests.redis_server import running_redis

ROOT = Path(__file__).parent.parent
CONNECTIONS = 64
SECONDS = 3
SPEC = {"algorithm": "dual_ascent", "loss": "hinge", "features": {"kind": "indexed", "dim": 123}}
FULL = {"features": {"kind": "hashed"}}
SERVER_CORE, GENERATOR_CORE = "0", "1"


@dataclass
class Side:
    """One server under load: its address, and how to check it after the run."""

    url: str
    server: int
    target: str = "/models/bench/learn"
    check: Callable[[list[int]], str] | None = None
    generator_share: list[float] = field(default_factory=list)
    server_cpu: list[float] = field(default_factory=list)
    """Microseconds of the server's CPU time per request, of each run."""
    void: str = ""
    api_key: str = ""


@dataclass(frozen=True)
class Load:
    """Requests to send: `lines` lines of a file in each."""

    bodies: Path
    lines: int = 1
    content_type: str = "application/json"
    connections: int = CONNECTIONS
    seconds: int = SECONDS


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="dualstream-bench-") as folder, ExitStack() as stack:
        lines = adult_lines()[:5000]
        bodies, named = Load(Path(folder) / "bodies"), Load(Path(folder) / "named")
        bodies.bodies.write_text("\n".join(map(as_json, lines)) + "\n")
        named.bodies.write_text("\n".join(map(named_json, lines)) + "\n")
        redis = stack.enter_context(running_redis(appendfsync="everysec"))
        os.sched_setaffinity(redis.pid, {int(GENERATOR_CORE)})
        specs = {"bench": SPEC, "named": FULL}
        sqlite = stack.enter_context(serving(f"sqlite:///{folder}/bench.db", "normal", specs))
        with_limits = stack.enter_context(limited(f"sqlite:///{folder}/limited.db"))
        plain = stack.enter_context(peer("load_tests.peers.plain:app"))
        sides = {
            "SQLite normal": sqlite["bench"],
            "Redis everysec": stack.enter_context(ours(redis.url, "everysec")),
            "limits": with_limits,
            "full": sqlite["named"],
            "FastAPI": plain,
            "FastAPI, named": Side(plain.url, plain.server, "/models/named/learn"),
        }
        figures = interleaved(
            {
                name: partial(send, named if name in ("full", "FastAPI, named") else bodies, side)
                for name, side in sides.items()
            }
        )
    singles = f"durable single-sample JSON learn, {CONNECTIONS} connections, one worker"
    return [
        compare(f"{singles}, {what}", sides, figures, (name, theirs), gate, goal)
        for name, theirs, what, gate, goal in COMPARED
    ]


COMPARED: tuple[tuple[str, str, str, float | None, float | None], ...] = (
    ("SQLite normal", "FastAPI", "SQLite normal", 2.5, 3.5),
    ("Redis everysec", "FastAPI", "Redis everysec", 2.5, 3.5),
    (
        "limits",
        "FastAPI",
        "SQLite normal, with API key, rate limits, access log, traces of 1 %",
        None,
        None,
    ),
    ("full", "FastAPI, named", "SQLite normal, the default model, named features", 1.5, 2.2),
)
"""Our side, the peer, what it is, gate and goal."""


def compare(
    what: str,
    sides: Mapping[str, Side],
    figures: Mapping[str, list[float]],
    names: tuple[str, str],
    gate: float | None,
    goal: float | None,
) -> Row:
    side, theirs = (sides[name] for name in names)
    share = max(side.generator_share)
    void = side.void or theirs.void or ("the generator was the limit" if share > 0.9 else "")
    return Row(
        what,
        "requests/s",
        figures[names[0]],
        "FastAPI + pydantic, keeps nothing",
        figures[names[1]],
        gate=gate,
        goal=goal,
        notes=[
            f"generator's CPU share at most {share:.0%} (ours), "
            f"{max(theirs.generator_share):.0%} (peer)"
        ],
        void=void,
        cpu=(min(side.server_cpu), min(theirs.server_cpu)),
    )


def as_json(line: bytes) -> str:
    label, *pairs = line.decode().split()
    x = {index: float(value) for index, value in (pair.split(":") for pair in pairs)}
    return json.dumps({"x": x, "y": int(label)}, separators=(",", ":"))


def named_json(line: bytes) -> str:
    """A row as a user writes it: 14 named features."""
    return json.dumps(sample_of(line), separators=(",", ":"))


def pinned(core: str) -> list[str]:
    return ["taskset", "-c", core]


@contextmanager
def ours(store: str, durability: str) -> Iterator[Side]:
    """Dualstream on a store, with a model named `bench`."""
    with serving(store, durability, {"bench": SPEC}) as sides:
        yield sides["bench"]


@contextmanager
def limited(store: str) -> Iterator[Side]:
    """Dualstream with an API key, its rate limits, an access log and traces of 1 %."""
    api_key, key = new_key("bench", "admin", (), 999_999_999, 999_999_999)
    settings = {"DUALSTREAM_KEYS": key.line(), "DUALSTREAM_ACCESS_LOG": "all", **SAMPLER}
    flags = ["--durability", "normal", "--keep-records", "1000000000"]
    with receiver() as (spans, _), open(os.devnull, "w") as log:
        env = {**settings, "OTEL_EXPORTER_OTLP_ENDPOINT": spans}
        with ServerProcess(store, flags, env, pinned(SERVER_CORE), stderr=log) as server:
            create(server.url, "bench", SPEC, api_key)
            check = partial(checked, store, "bench")
            target = "/models/bench/learn"
            yield Side(server.url, server.process.pid, target, check, api_key=api_key)


@contextmanager
def serving(
    store: str,
    durability: str,
    specs: Mapping[str, Mapping[str, Any]],
    core: str | None = SERVER_CORE,
) -> Iterator[dict[str, Side]]:
    """Dualstream on a store, with a model of each name, on one core or on all."""
    # The checker compares the whole journal with the state afterwards.
    flags = ["--durability", durability, "--keep-records", "1000000000"]
    with ServerProcess(store, flags, prefix=pinned(core) if core else []) as server:
        for model, spec in specs.items():
            create(server.url, model, spec)
        yield {
            model: Side(
                server.url,
                server.process.pid,
                f"/models/{model}/learn",
                partial(checked, store, model),
            )
            for model in specs
        }


def create(url: str, model: str, spec: Mapping[str, Any], api_key: str = "") -> None:
    """Create a model. The first of a family on a machine waits for its kernels."""
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    httpx.put(f"{url}/models/{model}", json=spec, headers=headers, timeout=240).raise_for_status()


@contextmanager
def peer(target: str) -> Iterator[Side]:
    """A peer under the same uvicorn with the same options."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [*pinned(SERVER_CORE), sys.executable, "-m", "uvicorn", target, "--port", str(port)]
    command += [
        "--log-level",
        "warning",
        "--no-access-log",
        "--no-server-header",
        "--no-proxy-headers",
    ]
    command += ["--ws", "none"]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + 60
            while True:
                try:
                    httpx.get(url)
                    break
                except httpx.TransportError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
            yield Side(url, process.pid)
        finally:
            process.terminate()


def send(what: Load, side: Side) -> float:
    """Requests per second of one run. A failed check voids the side."""
    with tempfile.NamedTemporaryFile("r", prefix="dualstream-acks-") as acks:
        before, server = children_cpu_seconds(), cpu_seconds(side.server)
        began = time.perf_counter()
        done = subprocess.run(
            [
                *pinned(GENERATOR_CORE),
                wrk(),
                "-t1",
                f"-c{what.connections}",
                f"-d{what.seconds}s",
                "--latency",
                "-s",
                str(Path(__file__).parent / "walk.lua"),
                side.url,
            ],
            env={
                **os.environ,
                "BODIES": str(what.bodies),
                "LINES": str(what.lines),
                "CONTENT_TYPE": what.content_type,
                "ACKS": acks.name,
                "TARGET": side.target,
                "API_KEY": side.api_key,
                "LD_LIBRARY_PATH": str(ROOT / ".cache/wrk/usr/lib/x86_64-linux-gnu"),
            },
            capture_output=True,
            text=True,
            check=True,
        )
        side.generator_share.append(
            (children_cpu_seconds() - before) / (time.perf_counter() - began)
        )
        server = cpu_seconds(side.server) - server
        answered = [int(line) for line in acks]
    result = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    requests, micros, bad, *_ = map(float, result.split()[1:])
    side.server_cpu.append(1e6 * server / max(1.0, requests))
    if bad:
        side.void = f"{bad:.0f} requests failed"
    elif side.check is not None and len(answered) < requests:
        side.void = f"{requests - len(answered):.0f} answers name no seq"
    elif side.check is not None:
        side.void = side.void or side.check(answered)
    return requests / (micros / 1e6)


def wrk() -> str:
    return shutil.which("wrk") or str(ROOT / ".cache/wrk/usr/bin/wrk")


def checked(store: str, model: str, acks: list[int], rows_each: int = 1) -> str:
    """Errors of a model, given the seqs that were acknowledged for `count` rows each."""
    return asyncio.run(check(store, model, acks, rows_each))


async def check(store: str, model: str, acks: list[int], rows_each: int) -> str:
    """Empty if each answered row is in the journal once and in the state."""
    return await check_spans(store, model, [(seq, rows_each) for seq in acks])


async def check_spans(store: str, model: str, answers: Iterable[tuple[int, int]]) -> str:
    """The same check for answers that give their last seq and their number of rows."""
    journal = await open_journal(store)
    try:
        replica = Replica(await _settled(journal, model), ALL)
        await recover(replica, journal)
        report = await check_history(journal, model, [], samples=replica.learner.samples)
        # Rows have no key here. Each answer gives the seqs of its rows.
        end = 0
        for seq, count in sorted(answers):
            if seq - count < end:
                return "history: an answered row is lost or duplicated"
            end = seq
        if end > report.rows:
            return "history: an answered row is lost"
    except HistoryBroken as broken:
        return f"history: {broken}".replace("\n", " ")
    finally:
        await journal.close()
    return ""


async def _settled(journal: Journal, model: str) -> ModelRecord:
    """The model, after requests whose clients stopped waiting have been journalled, too."""
    record = await journal.get(model)
    while True:
        await asyncio.sleep(0.5)
        before, record = record, await journal.get(model)
        if record.seq == before.seq:
            return record
