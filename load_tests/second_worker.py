"""Cost of a second worker: CPU of all processes per request, at a fixed rate.

64 connections send single samples in turn, each when due. CPU of workers and store counts, CPU of
the generator does not. Afterwards the journal is read: each answered row must be in it once and in
the state, or the row is void.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from dualstream.service.cli.demo.adult import adult_lines
from dualstream.service.cli.demo.server_process import ServerProcess
from load_tests.http import CONNECTIONS, SPEC, as_json, checked, create
from load_tests.measure import FEW_ROUNDS, Row, cpu_seconds, interleaved
from load_tests.open_loop import drive, post
from tests.redis_server import running_redis

TITLE = "Two workers"
RATE = 1000
SECONDS = 5
WARM_SECONDS = 1


def rows() -> list[Row]:
    return [against_one(store) for store in ("SQLite normal", "Redis everysec")]


def against_one(store: str) -> Row:
    void: list[str] = []
    figures = interleaved(
        {str(workers): partial(cost, store, workers, void) for workers in (1, 2)}, FEW_ROUNDS
    )
    what = f"{RATE:,} a second, {CONNECTIONS} connections, {store}"
    return Row(
        f"CPU per durable single-sample learn, {what}",
        "us",
        figures["2"],
        "one worker",
        figures["1"],
        gate=1.25,
        smaller_is_better=True,
        void=void[0] if void else "",
    )


def cost(store: str, workers: int, void: list[str]) -> float:
    """Microseconds of CPU per request, including the store's."""
    with new_store(store) as (url, of_store):
        flags = ["--workers", str(workers), "--durability", store.split()[1]]
        with ServerProcess(url, flags) as server:
            create(server.url, "bench", SPEC)
            acks = send(server.url, WARM_SECONDS)
            counted = [*family(server.process.pid), *of_store]
            before = sum(map(cpu_seconds, counted))
            answered = send(server.url, SECONDS)
            spent = sum(map(cpu_seconds, counted)) - before
        wrong = checked(url, "bench", acks + answered)
        if wrong:
            void.append(wrong)
        return 1e6 * spent / len(answered)


@contextmanager
def new_store(name: str) -> Iterator[tuple[str, list[int]]]:
    """URL of an empty store, and its processes."""
    with ExitStack() as stack:
        if name.startswith("Redis"):
            redis = stack.enter_context(running_redis(appendfsync=name.split()[1]))
            yield redis.url, [redis.pid]
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dualstream-bench-"))
            yield f"sqlite:///{Path(folder) / 'bench.db'}", []


def family(pid: int) -> list[int]:
    """A process and all its descendants."""
    children = [
        int(child)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
    return [pid, *(each for child in children for each in family(child))]


def send(url: str, seconds: float) -> list[int]:
    """Send requests at RATE; returns the seq of each answer. Raises RuntimeError on refusal."""
    bodies = [as_json(line).encode() for line in adult_lines()[:2000]]
    requests = [post("/models/bench/learn", body) for body in bodies]
    return drive(url, requests, RATE, seconds, CONNECTIONS).acks


def about() -> list[str]:
    return [
        "`python -m load_tests second_worker` runs these alone: "
        f"{os.cpu_count()} cores, no process pinned; {SECONDS} s each after {WARM_SECONDS} s of "
        "warm-up, on a new store. At the same rate two workers append smaller groups, and each "
        "applies the other's groups, too."
    ]
