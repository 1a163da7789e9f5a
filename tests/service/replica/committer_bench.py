"""A committer over a journal that fails, and checks of what it leaves."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from dualstream.service.features import ALL
from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import DEFAULT_LIMITS, JournalUnavailable, Limits
from dualstream.service.journal.record import KeyKind, make_key
from dualstream.service.replica.commit import CommitListener, Committer
from dualstream.service.replica.groups import BULK_ROWS
from dualstream.service.replica.recovery import recover
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import Request
from dualstream.service.replica.spec import canonical
from dualstream.solvers import Batch, resolve_spec
from tests.history import Acknowledged, check_history
from tests.service.journal.faulty import Fault, FaultyJournal
from tests.service.support import lose_last_entry

SPEC = {"algorithm": "dual_ascent", "loss": "logistic", "features": {"kind": "indexed", "dim": 3}}
PRINT = b"f" * 16


def learn_in_slices(replica: Replica) -> None:
    """Make the rows of a replica look slow, so that a batch is learned in slices, in a thread."""
    replica.learning.ratio = 20.0
    replica.learning.estimate(replica.learning.cost)


class Bench(CommitListener):
    """A committer over a faulty journal, with the means to look behind it."""

    def __init__(self, journal: Any, replica: Replica, faults: list[Fault], timeout_s: float):
        self.faulty = FaultyJournal(journal, faults)
        self.replica = replica
        self.groups: list[int] = []
        self.committer = Committer(self.faulty, replica, timeout_s, listener=self)
        self.acknowledged: list[Acknowledged] = []

    def on_group(self, rows: int, seconds: float) -> None:
        self.groups.append(rows)

    async def send(self, key: str, rows: int = 1) -> Any:
        receipt = await self.committer.submit(request(key, rows))
        placement = receipt.position
        self.acknowledged.append(Acknowledged(key, placement.seq, placement.count))
        return receipt


def request(key: str | None, rows: int = 1) -> Request:
    seed = sum(map(ord, key or ""))
    x = np.random.default_rng(seed).standard_normal((rows, 3))
    batch = Batch.from_dense(x, np.where(x[:, 0] > 0, 1.0, -1.0))
    if key is None:
        return Request.of(batch, None, None)
    return Request.of(batch, make_key(KeyKind.REQUEST, key), PRINT)


def run(
    tmp_path: Path,
    scenario: Callable[[Bench], Awaitable[None]],
    faults: list[Fault] = [],  # noqa: B006
    timeout_s: float = 5.0,
    limits: Limits = DEFAULT_LIMITS,
) -> Bench:
    """Runs the scenario, then checks the history and that a fresh replica has the same bits."""

    async def whole() -> Bench:
        journal = await open_journal(f"sqlite:///{tmp_path / 'c.db'}", limits=limits)
        try:
            spec = canonical(resolve_spec(SPEC))
            record, _ = await journal.create("m", spec, spec)
            bench = Bench(journal, Replica(record, ALL), faults, timeout_s)
            await scenario(bench)
            await bench.committer.drain()
            await bench.replica.catch_up(journal)
            samples = bench.replica.learner.samples
            await check_history(journal, "m", bench.acknowledged, samples=samples)
            fresh = Replica(record, ALL)
            await recover(fresh, journal)
            live = bench.replica.capture().snapshot_arrays
            for name, array in fresh.capture().snapshot_arrays.items():
                assert live[name].tobytes() == array.tobytes(), name
            return bench
        finally:
            await journal.close()

    return asyncio.run(whole())


def lose(tmp_path: Path, count: int) -> None:
    """The journal's last entries, as a failover to a copy that was behind does."""
    for _ in range(count):
        lose_last_entry(sqlite3.connect(tmp_path / "c.db"))


MORE = BULK_ROWS + 5


def failing(monkeypatch, meanwhile: Callable[[Committer], Awaitable[None]]) -> None:
    """Let this come in the place of what is learned first, and fail."""
    apply, left = Committer._apply, [JournalUnavailable("planted")]

    async def fail_once(self: Committer, *args: Any) -> Any:
        if not left:
            return await apply(self, *args)
        error = left.pop()
        await meanwhile(self)
        raise error

    monkeypatch.setattr(Committer, "_apply", fail_once)


async def front_and_behind(
    bench: Bench, key: str | None = None
) -> tuple["asyncio.Future[Any]", "asyncio.Future[Any]"]:
    """Rows in bulk, and others that are submitted once these are journalled."""
    first, stands = request(key and f"front {key}", BULK_ROWS), asyncio.Event()
    first.on_journalled = stands.set
    front = bench.committer.submit(first)
    await stands.wait()
    return front, bench.committer.submit(request(key and f"behind {key}", MORE))
