"""A portfolio in a store that fails, its rows and its controls."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import numpy as np

from dualstream.service.features import ALL
from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import AppendRequest, Part
from dualstream.service.replica.commit import CommitListener, Committer
from dualstream.service.replica.controls import Order
from dualstream.service.replica.recovery import recover
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import ControlRequest, Request
from dualstream.service.replica.spec import canonical
from dualstream.solvers import Batch, resolve_spec
from tests.history import check_history
from tests.service.features.members.support import PAIR
from tests.service.journal.faulty import Fault, FaultyJournal
from tests.service.support import bits


def rows(count: int, seed: int = 0) -> Batch:
    x = np.random.default_rng(seed).standard_normal((count, 5))
    return Batch.from_dense(x, np.where(x[:, 0] > 0, 1.0, -1.0))


def row_request(count: int, seed: int = 0) -> Request:
    return Request.of(rows(count, seed), None, None)


class Bench(CommitListener):
    """A model in a store that may be faulty: its committer and replica, the sizes of its groups."""

    def __init__(self, journal: Any, record: Any, faults: list[Fault], timeout_s: float) -> None:
        self.record = record
        self.journal = FaultyJournal(journal, faults)
        self.replica = Replica(record, ALL)
        self.groups: list[int] = []
        self.committer = Committer(self.journal, self.replica, timeout_s, listener=self)

    def on_group(self, rows: int, seconds: float) -> None:
        self.groups.append(rows)

    def learn(self, count: int, seed: int = 0) -> Awaitable[Any]:
        return self.committer.submit(row_request(count, seed))

    def order(self, order: Order, key: bytes | None = None) -> Awaitable[Any]:
        return self.committer.submit(ControlRequest.of(order, key))

    def names(self) -> list[str]:
        return [view.name for view in self.replica.learner.members()]

    async def append(self, *parts: Part) -> None:
        """What another process would."""
        nonce = os.urandom(16)
        await self.journal.append(AppendRequest("m", self.record.incarnation, nonce, 10**9, parts))


@contextlib.asynccontextmanager
async def benched(store: str, spec: Any, faults: list[Fault], timeout_s: float) -> AsyncIterator:
    journal = await open_journal(store)
    try:
        resolved = canonical(resolve_spec(spec))
        record, _ = await journal.create("m", resolved, resolved)
        yield Bench(journal, record, faults, timeout_s)
    finally:
        await journal.close()


def run(
    store: str,
    scenario: Callable[[Bench], Awaitable[None]],
    faults: list[Fault] = [],  # noqa: B006
    timeout_s: float = 5.0,
    spec: Any = PAIR,
) -> None:
    """Runs the scenario; afterwards a fresh replica has the same bits and the history holds."""

    async def whole() -> None:
        async with benched(store, spec, faults, timeout_s) as bench:
            await scenario(bench)
            await bench.committer.drain()
            await bench.committer.refresh()
            fresh = Replica(bench.record, ALL)
            await recover(fresh, bench.journal)
            assert bits(fresh) == bits(bench.replica)
            assert (fresh.seq, fresh.chain) == (bench.replica.seq, bench.replica.chain)
            samples = fresh.learner.samples
            counts = {"samples": samples, "rejected": fresh.rejected}
            await check_history(bench.journal, "m", [], tags_of=_untagged, **counts)

    asyncio.run(whole())


def _untagged(block: Any) -> list[None]:
    return [None] * len(block)
