"""A model that is kept by its snapshots, in a real store whose bytes a test may change."""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import redis

from dualstream.service.features import ALL
from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import AppendRequest, Journal, ModelRecord, Trimmed
from dualstream.service.replica.commit import Committer
from dualstream.service.replica.recovery import recover
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.requests import Request
from dualstream.service.replica.spec import canonical
from dualstream.solvers import Batch, resolve_spec

T = TypeVar("T")

SPEC = {"algorithm": "dual_ascent", "loss": "hinge", "features": {"kind": "indexed", "dim": 5}}


def rows(count: int, seed: int = 0) -> Batch:
    x = np.random.default_rng(seed).standard_normal((count, 5))
    return Batch.from_dense(x, np.where(x[:, 0] > 0, 1.0, -1.0))


def bits(replica: Replica) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in replica.capture().snapshot_arrays.items()}


class Kept:
    """The model `m`, one replica of it, and what a second process would do."""

    def __init__(self, journal: Journal, record: ModelRecord) -> None:
        self.journal, self.record = journal, record
        self.where = record.id, record.incarnation
        self.replica = Replica(record, ALL)
        self.committer = Committer(journal, self.replica, 5.0)

    async def learn(self, count: int, seed: int = 0) -> Any:
        return await self.committer.submit(Request.of(rows(count, seed), None, None))

    async def append(self, count: int, seed: int = 0) -> None:
        """What another process would."""
        part = Request.of(rows(count, seed), None, None).parts[0]
        await self.journal.append(AppendRequest(*self.where, os.urandom(16), 10**9, [part]))

    async def write(self, replaces: bool = False) -> bool:
        """A snapshot of the replica as it is."""
        await self.committer.refresh()
        taken = self.replica.capture().encode()
        return await self.journal.snapshot_put(
            *self.where, taken.seq, taken.chain, taken.data, replaces
        )

    async def learn_and_write(self, times: int = 2, count: int = 10) -> None:
        for seed in range(times):
            await self.learn(count, seed)
            await self.write()

    async def fresh(self, adopts: bool = False) -> Replica:
        """The replica that a new process would have."""
        replica = Replica(await self.journal.get("m"), ALL)
        await recover(replica, self.journal, adopts)
        return replica

    async def kept_from(self) -> int:
        try:
            return (await self.journal.read(*self.where, 0))[0].first_seq
        except Trimmed as trimmed:
            return trimmed.kept_from


@contextlib.asynccontextmanager
async def opened(store: str, spec: Any = SPEC) -> AsyncIterator[Kept]:
    journal = await open_journal(store)
    try:
        resolved = canonical(resolve_spec(spec))
        record, _ = await journal.create("m", resolved, resolved)
        kept = Kept(journal, record)
        await recover(kept.replica, journal)
        yield kept
    finally:
        await journal.close()


def run(store: str, scenario: Callable[[Kept], Awaitable[T]], spec: Any = SPEC) -> T:
    async def whole() -> T:
        async with opened(store, spec) as kept:
            return await scenario(kept)

    return asyncio.run(whole())


def stored_pieces(store: str, kind: str = "snap") -> Sequence[tuple[Any, bytes]]:
    """The first part of each snapshot (`kind` snap), or copy, the newest first; and its place."""
    if store.startswith("sqlite"):
        tables = {"snap": ("snapshots", "snapshot"), "copy": ("copies", "copy")}
        table, name = tables[kind]
        with contextlib.closing(_connect(store)) as db:
            return db.execute(
                f"SELECT {name}, {name}_parts.bytes FROM {table} JOIN {name}_parts USING ({name})"
                f" WHERE part = 0 ORDER BY {name} DESC"
            ).fetchall()
    with redis.Redis.from_url(store) as client:
        if kind == "copy":
            return [(key, client.hget(key, 0)) for key in client.keys("ds:{m}:copy:*")]
        got = client.hgetall("ds:{m}:snaps")
        tokens = sorted(got, key=lambda token: -int(got[token].split()[0]))
        keys = [b"ds:{m}:snap:" + token for token in tokens]
        return [(key, client.hget(key, 0)) for key in keys]


def store_piece(store: str, place: Any, piece: bytes, kind: str = "snap") -> None:
    """Put other bytes in that place."""
    if store.startswith("sqlite"):
        name = {"snap": "snapshot", "copy": "copy"}[kind]
        with contextlib.closing(_connect(store)) as db, db:
            db.execute(f"UPDATE {name}_parts SET bytes = ? WHERE {name} = ?", (piece, place))
        return
    with redis.Redis.from_url(store) as client:
        client.hset(place, "0", piece)


def spoil(store: str, kind: str = "snap") -> None:
    """Change a bit of each snapshot, or copy, that is stored."""
    for position, piece in stored_pieces(store, kind):
        store_piece(store, position, flipped(piece, len(piece) // 2), kind)


def flipped(data: bytes, at: int, bit: int = 1) -> bytes:
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]


def _connect(store: str) -> sqlite3.Connection:
    return sqlite3.connect(store.removeprefix("sqlite:///"))
