"""Hearing of appends, and where many logs end, on every store."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from dualstream.service.journal.chain import OURS
from dualstream.service.journal.protocol import (
    Announced,
    AppendRequest,
    Head,
    Journal,
    JournalUnavailable,
)
from dualstream.service.journal.sqlite import store as sqlite_store
from dualstream.service.journal.sqlite.wal import data_version
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log, rows
from tests.service.journal.proxy import running_proxy

pytestmark = pytest.mark.anyio


async def test_heads_are_those_of_the_logs(journal: Journal):
    log = await Log.create(journal, "a")
    other = await Log.create(journal, "b")
    await log.append(rows(1, 2))
    record = await journal.get("a")
    assert await journal.heads(["b", "nobody", "a"]) == [
        Head(other.record.incarnation, 0, other.record.chain),
        None,
        Head(record.incarnation, 2, record.chain),
    ]
    assert await journal.heads([]) == []


async def test_heads_of_many_models_are_shown(journal: Journal):
    ids = [f"m{number}" for number in range(1003)]
    for id_ in ids[::100]:
        await journal.create(id_, b"", b"")
    result = await journal.heads(ids)
    assert [id_ for id_, head in zip(ids, result, strict=True) if head] == ids[::100]


async def test_appends_of_other_processes_are_announced(store: Store):
    async with store.journal() as here, store.journal() as there:
        log = await Log.create(there)
        async with aclosing(here.announcements()) as got:
            assert await _next(got) == Announced()
            for seq in (1, 2):
                await log.append(rows(seq))
                await _until(got, log.model, seq)


async def test_own_appends_to_sqlite_are_not_announced(tmp_path: Path):
    store = Store(f"sqlite:///{tmp_path / 'one.db'}")
    async with store.journal() as here, store.journal() as there:
        log = await Log.create(here)

        async def version(journal: Any = here) -> int:
            return await journal._writer.run(data_version)

        before = await version()
        await log.append(rows(1))
        await here.create("other", b"", b"")
        assert await version() == before
        await there.append(AppendRequest(log.model, log.incarnation, b"n" * 16, 1, [rows(2)]))
        assert await version() != before


async def test_a_revision_tells_of_every_commit_and_of_nothing_else(store: Store):
    async with store.journal() as here, store.journal() as there:
        log = await Log.create(here)
        before = await here.revision()
        if before is None:  # Redis does not count
            return
        assert await here.heads([log.model]) and await here.revision() == before
        for journal in (here, there):
            appended = journal.append(
                AppendRequest(log.model, log.incarnation, os.urandom(16), 0, [rows(1)])
            )
            await appended
            got = await here.revision()
            assert got != before and got == await here.revision()
            before = got
        await here.open()  # what it counts from is not what it counted from before
        assert await here.revision() != before


async def test_an_append_asks_sqlite_for_what_others_have_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    said: list[str] = []
    monkeypatch.setattr(sqlite_store, "WATCH_S", 0.0)
    store = Store(f"sqlite:///{tmp_path / 'one.db'}")
    async with store.journal() as here, store.journal() as there:
        log = await Log.create(here)
        run = here._writer.run

        def asked(task: Any) -> Any:
            said.append("ask")
            return run(task)

        monkeypatch.setattr(here._writer, "run", asked)
        async with aclosing(here.announcements()) as got:
            assert await _next(got) == Announced() and said == ["ask"]
            await there.append(AppendRequest(log.model, log.incarnation, b"n" * 16, 0, [rows(1)]))
            await here.append(AppendRequest(log.model, log.incarnation, OURS.make(), 0, [rows(2)]))
            del said[:]
            assert await _next(got) == Announced() and said == []
            # No append since the last look: SQLite must be asked.
            await there.append(AppendRequest(log.model, log.incarnation, b"o" * 16, 0, [rows(3)]))
            del said[:]
            assert await _next(got) == Announced() and said == ["ask"]


async def test_cancelled_listener_disturbs_no_append(store: Store):
    async with store.journal() as journal:
        log = await Log.create(journal)
        for _ in range(3):
            async with aclosing(journal.announcements()) as got:
                await _next(got)
        await log.append(rows(1))
        waiting = asyncio.create_task(_listen(journal))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await journal.get(log.model)).seq == 1


async def test_broken_connection_is_reported_and_listening_restarts(redis_store: Store):
    port = int(redis_store.url.split(":")[2].split("/")[0])
    async with running_proxy(port) as proxy, redis_store.journal() as there:
        log = await Log.create(there)
        async with Store(proxy.url).journal() as here:
            async with aclosing(here.announcements()) as got:
                await _next(got)
                proxy.swallow = 1
                await log.append(rows(1))
                with pytest.raises(JournalUnavailable):
                    await _next(got)
            async with aclosing(here.announcements()) as got:
                assert await _next(got) == Announced()
                await log.append(rows(2))
                await _until(got, log.model, 2)


async def _next(got: AsyncGenerator[Announced, None]) -> Announced:
    return await asyncio.wait_for(anext(got), 30)


async def _until(got: AsyncGenerator[Announced, None], model: str, seq: int) -> None:
    """Pass over what announces less than this append."""
    while True:
        announced = await _next(got)
        if announced.model is None or (announced.model == model and announced.seq >= seq):
            return


async def _listen(journal: Journal) -> None:
    async with aclosing(journal.announcements()) as got:
        async for _ in got:
            pass
