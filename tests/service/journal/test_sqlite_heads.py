"""Heads that the connection that writes knows from before: never another one than the file's."""

import os
import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from dualstream.service.journal.protocol import (
    AppendRequest,
    JournalUnavailable,
    ModelChanged,
    OutcomeUnknown,
    UnknownCopy,
)
from dualstream.service.journal.sqlite import SqliteJournal
from dualstream.service.journal.sqlite.log import HeadCache
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log, rows
from tests.service.journal.sqlite_support import Connection, at_once, journal, logs_of

__all__ = ["journal"]

pytestmark = pytest.mark.anyio


def looked_up(said: list[str]) -> int:
    return sum(["FROM models" in statement for statement in said])


async def test_heads_are_looked_up_where_somebody_else_may_have_moved_them(
    journal: SqliteJournal, sqlite_store: Store
):
    logs = await logs_of(journal, 5)

    async def append() -> int:
        _, said = await at_once(journal, logs, rows(1))
        return looked_up(said)

    assert [await append() for _ in range(3)] == [1, 0, 0]
    async with sqlite_store.journal() as there:
        await there.append(AppendRequest("m1", logs[1].incarnation, os.urandom(16), 0, [rows(2)]))
    assert [await append() for _ in range(2)] == [1, 0]
    await logs[2].append(rows(3, id="a"))
    assert [await append() for _ in range(2)] == [1, 0]
    Connection.fails_after = True
    assert [await append() for _ in range(3)] == [0, 1, 0]
    assert await logs[1].tags() == [1, 1, 1, 2, *[1] * 7]


async def test_those_that_were_moved_longest_ago_are_forgotten(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(HeadCache, "MAX_HEADS", 2)
    logs = await logs_of(journal, 3)
    for log, expected in zip([*logs, logs[2], logs[1], logs[0]], [1, 1, 1, 0, 0, 1], strict=True):
        _, said = await at_once(journal, [log], rows(1))
        assert looked_up(said) == expected


@pytest.mark.parametrize("seed", range(3))
async def test_every_append_follows_the_one_before_it(
    journal: SqliteJournal, sqlite_store: Store, seed: int
):
    """For entries of any process and any kind of append, also with failures in the same group."""
    random_ = random.Random(seed)
    logs = await logs_of(journal, 4)
    async with sqlite_store.journal() as there:

        async def elsewhere(log: Log) -> None:
            await there.append(
                AppendRequest(log.model, log.incarnation, os.urandom(16), 0, [rows(0)])
            )

        async def with_key(log: Log) -> None:
            await log.append(rows(0, id=os.urandom(4).hex()))

        async def refused(log: Log) -> None:
            with pytest.raises(UnknownCopy):
                await log.append(rows(0), copy="0" * 64)

        async def trimmed(log: Log) -> None:
            await journal.trim(log.model, log.incarnation, random_.randrange(20))

        async def anew(log: Log) -> None:
            await random_.choice([journal, there]).delete(log.model)
            with pytest.raises(ModelChanged):
                await log.append(rows(0))
            logs[logs.index(log)] = await Log.create(journal, log.model)

        async def failed(log: Log) -> None:
            Connection.code = random_.choice([10, 13])  # IOERR, FULL
            Connection.fails_after = Connection.code == 10 and random_.random() < 0.5
            with pytest.raises((OutcomeUnknown, JournalUnavailable)):
                await log.append(rows(0))

        others: list[Callable] = [elsewhere, with_key, refused, trimmed, anew, failed]
        for _ in range(60):
            if random_.random() < 0.4:
                await random_.choice(others)(random_.choice(logs))
            some = random_.choices(logs, k=random_.randrange(1, 6))
            before = {log.model: await there.get(log.model) for log in some}
            outcomes, _ = await at_once(journal, some, rows(1))
            for log, appended in zip(some, outcomes, strict=True):
                record = before[log.model]
                assert (appended.first_seq, appended.previous) == (record.seq + 1, record.chain)
                before[log.model] = replace(record, seq=appended.seq, chain=appended.chain)
            for model, record in before.items():
                assert await there.get(model) == record
