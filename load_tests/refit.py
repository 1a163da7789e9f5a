"""Latency of single-sample learning during a refit of 10,000 rows, by an open-loop generator.

The server, the store and the refit's thread share core 0, which is the worst case. The generator
has core 1. With a spare core the refit's thread runs there.
"""

import asyncio
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

from dualstream.service.cli.demo.adult import adult_lines
from dualstream.service.features import ALL
from dualstream.service.journal import open_journal
from dualstream.service.replica.recovery import recover
from dualstream.service.replica.replica import Replica
from load_tests.generator import Order, drive_apart
from load_tests.http import (
    CONNECTIONS,
    GENERATOR_CORE,
    SERVER_CORE,
    SPEC,
    Load,
    Side,
    as_json,
    send,
    serving,
)
from load_tests.latency import MAX_SLIP_MS
from load_tests.measure import ROUNDS, Row
from load_tests.open_loop import Drive
from tests.redis_server import running_redis

TITLE = "Refits"
RETAIN, SHARE, SECONDS, EVERY = 10_000, 0.5, 3.0, 1000
WINDOW = {"retain": RETAIN, "window": {"kind": "sliding", "length": RETAIN}, "rho": 1e-4}
MODELS = {
    "bench": SPEC | WINDOW | {"rho": 1e-9},  # more epochs than any machine finishes
    "every": SPEC | WINDOW | {"refit": {"every": EVERY, "tol": 1e-2}},
}
NEVER_ENDS = {"tol": 1e-12, "max_epochs": 1_000_000}


def rows() -> list[Row]:
    table: list[Row] = []
    lines = adult_lines()
    with tempfile.TemporaryDirectory(prefix="dualstream-bench-") as folder:
        bodies = Path(folder) / "bodies"
        bodies.write_text("\n".join(map(as_json, lines[:5000])) + "\n")
        for name in ("SQLite normal", "Redis everysec"):
            with ExitStack() as stack:
                url = f"sqlite:///{folder}/bench.db"
                if name.startswith("Redis"):
                    redis = stack.enter_context(running_redis(appendfsync="everysec"))
                    os.sched_setaffinity(redis.pid, {int(SERVER_CORE)})
                    url = redis.url
                sides = stack.enter_context(serving(url, name.split()[1], MODELS))
                table += measured(name, url, sides, Load(bodies), lines)
    return table


def measured(
    name: str, store: str, sides: dict[str, Side], load: Load, lines: list[bytes]
) -> list[Row]:
    """A row for a refit that does not end, and one for repeated refits."""
    url = sides["bench"].url
    text = b"\n".join((lines * (1 + RETAIN // len(lines)))[: RETAIN + 1000])
    with httpx.Client(base_url=url, timeout=120) as client:
        for model in MODELS:
            head = {"content-type": "text/x-libsvm"}
            client.post(f"/models/{model}/learn", content=text, headers=head).raise_for_status()
        sides["bench"].check = None
        highest = send(load, sides["bench"])

        def run(model: str) -> Drive:
            target, rate = sides[model].target, SHARE * highest
            core = int(GENERATOR_CORE)
            order = Order(url, target, load.bodies, rate, SECONDS, CONNECTIONS, core)
            return drive_apart(order).drive

        for model in MODELS:
            run(model)
        alone, beside, often = [], [], []
        for _ in range(ROUNDS):
            alone.append(run("bench"))
            job = begin(client)
            beside.append(run("bench"))
            end(client, job)
            often.append(run("every"))
        got = client.get("/models/every/refits").json()["refits"]
    ends = [job for job in got if job["status"] == "done"]
    wrong = " ".join(filter(None, (asyncio.run(lost(store, model)) for model in MODELS)))
    slip = max(one.slip_ms(0.99) for one in (*alone, *beside, *often))
    late = "the generator was late" if slip > MAX_SLIP_MS else ""
    load_text = f"{SHARE:.0%} of {highest:,.0f} requests/s, {name}"

    def row(what: str, runs: list[Drive], notes: list[str]) -> Row:
        return Row(
            f"p99 of learn, {load_text}, {what}",
            "ms",
            [one.latency_ms(0.99) for one in runs],
            "no refit",
            [one.latency_ms(0.99) for one in alone],
            gate=2.0,
            smaller_is_better=True,
            notes=[f"the generator's p99 slip is at most {slip:.2f} ms", *notes],
            void=wrong or late,
        )

    epochs = sorted(job["epochs"] for job in ends)
    note = f"the last {len(ends)} refits took {epochs[0]} to {epochs[-1]} epochs" if ends else ""
    return [
        row(f"while {RETAIN:,} rows are refitted", beside, []),
        row(f"refitted by itself every {EVERY:,} rows", often, [note] if note else []),
    ]


def begin(client: httpx.Client) -> str:
    """A running refit of the model `bench`."""
    answer = client.post("/models/bench/refit", json=NEVER_ENDS)
    answer.raise_for_status()
    job: str = answer.json()["job"]
    while client.get(f"/models/bench/refits/{job}").json()["status"] != "running":
        time.sleep(0.01)
    return job


def end(client: httpx.Client, job: str) -> None:
    while client.delete(f"/models/bench/refits/{job}").json()["status"] != "cancelled":
        time.sleep(0.01)


async def lost(store: str, model: str) -> str:
    """Empty if the state that a new process loads has every row of the journal."""
    journal = await open_journal(store)
    try:
        record = await journal.get(model)
        replica = Replica(record, ALL)
        await recover(replica, journal)
        controls = 0
        entries = await journal.read(model, record.incarnation, 0)
        while entries:
            # The server still runs, and may apply a refit after the state was computed.
            applied = [entry for entry in entries if entry.seq <= replica.seq]
            controls += sum(entry.body[1] & 1 for entry in applied)
            entries = await journal.read(model, record.incarnation, entries[-1].seq)
        rows = replica.seq - controls
        learned = replica.learner.samples
        return "" if rows == learned else f"{model}: {rows} rows, {learned} learned"
    finally:
        await journal.close()


def about() -> list[str]:
    return [
        "`python -m load_tests refit` runs these alone: durable single-sample JSON learn of a9a, "
        f"{CONNECTIONS} connections, one worker on one core, hinge on a sliding window of "
        f"{RETAIN:,} rows. Requests are sent when due, and latency counts from the due time. "
        f"{ROUNDS} alternating runs of {SECONDS:.0f} s: without a refit, during a refit that does "
        "not end, and with refits that are computed and applied one after the other."
    ]
