"""Hearing of appends, and where many logs end, on every store."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from service.journal.protocol import Announced, Head, Journal, JournalUnavailable
from service.journal.sqlite.store import _data_version
from tests.journal.conftest import Store
from tests.journal.groups import Log, rows
from tests.journal.proxy import running_proxy

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


async def test_heads_of_many_models_are_told(journal: Journal):
    ids = [f"m{number}" for number in range(1003)]
    for id_ in ids[::100]:
        await journal.create(id_, b"", b"")
    found = await journal.heads(ids)
    assert [id_ for id_, head in zip(ids, found, strict=True) if head] == ids[::100]


async def test_appends_of_other_processes_are_announced(store: Store):
    async with store.journal() as here, store.journal() as there:
        log = await Log.create(there)
        async with aclosing(here.announcements()) as told:
            assert await _next(told) == Announced()
            for seq in (1, 2):
                await log.append(rows(seq))
                await _until(told, log.model, seq)


async def test_own_appends_to_sqlite_are_not_announced(tmp_path: Path):
    store = Store(f"sqlite:///{tmp_path / 'one.db'}")
    async with store.journal() as here, store.journal() as there:
        log = await Log.create(here)

        async def version(journal: Any = here) -> int:
            return await journal._writer.run(_data_version)

        before = await version()
        await log.append(rows(1))
        await here.create("other", b"", b"")
        assert await version() == before
        await there.append(log.model, log.incarnation, b"n" * 16, 1, [rows(2)])
        assert await version() != before


async def test_a_closed_listener_leaves_nothing_behind(store: Store):
    async with store.journal() as journal:
        log = await Log.create(journal)
        for _ in range(3):
            async with aclosing(journal.announcements()) as told:
                await _next(told)
        await log.append(rows(1))
        waiting = asyncio.create_task(_listen(journal))
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await journal.get(log.model)).seq == 1


async def test_a_broken_connection_is_told_and_listening_begins_anew(redis_store: Store):
    port = int(redis_store.url.split(":")[2].split("/")[0])
    async with running_proxy(port) as proxy, redis_store.journal() as there:
        log = await Log.create(there)
        async with Store(proxy.url).journal() as here:
            async with aclosing(here.announcements()) as told:
                await _next(told)
                proxy.swallow = 1
                await log.append(rows(1))
                with pytest.raises(JournalUnavailable):
                    await _next(told)
            async with aclosing(here.announcements()) as told:
                assert await _next(told) == Announced()
                await log.append(rows(2))
                await _until(told, log.model, 2)


async def _next(told: AsyncGenerator[Announced, None]) -> Announced:
    return await asyncio.wait_for(anext(told), 5)


async def _until(told: AsyncGenerator[Announced, None], model: str, seq: int) -> None:
    """Pass over what announces less than this append."""
    while True:
        announced = await _next(told)
        if announced.model is None or (announced.model == model and announced.seq >= seq):
            return


async def _listen(journal: Journal) -> None:
    async with aclosing(journal.announcements()) as told:
        async for _ in told:
            pass
