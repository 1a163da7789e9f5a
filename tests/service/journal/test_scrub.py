"""Deleted data is not in a store's keys and files after a scrub."""

import asyncio
import random

import numpy as np
import pytest

from dualstream.service.journal.protocol import Journal, ModelChanged, Part, Version
from dualstream.service.journal.record import encode_rows
from dualstream.service.journal.sqlite.store import SqliteJournal
from tests.redis_server import redis_or_skip
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log, rows
from tests.service.journal.leftovers import append_only_file, count_left, is_in, kept_bytes, marks

pytestmark = pytest.mark.anyio


class Placed(Log):
    """A log that says where it is."""

    @property
    def where(self) -> tuple[str, str]:
        return self.model, self.incarnation


def row(mark: bytes) -> Part:
    """A row whose values have these bytes."""
    numbers = np.frombuffer(mark, "<f8").copy()
    numbers[~np.isfinite(numbers)] = 1.0
    body = encode_rows([0, len(numbers)], range(len(numbers)), numbers, [1.0])
    return Part(body, 1)


async def fill(store: Store, log: Placed, through: int) -> tuple[list[bytes], list[bytes]]:
    """Entries, snapshots and a version, all of different bytes; those up to `through` are let go.

    What is gone, and what is kept.
    """
    mine = marks(40)
    of_states = marks(4, 40_000)
    for seq, mark in enumerate(mine, 1):
        chain = (await log.append(row(mark))).chain
        if seq in (10, 20, 30):
            data = of_states[seq // 10]
            assert await log.journal.snapshot_put(*log.where, seq, chain, data)
        if seq == 12:
            digest = await log.journal.copy_put(*log.where, of_states[0])
            await log.journal.version_put(
                *log.where, Version("old", seq, chain, digest, len(of_states[0]))
            )
    blob = kept_bytes(store.url)
    assert all(is_in(mark, blob) for mark in [*mine, of_states[0], *of_states[2:]])
    await log.journal.snapshots_drop(*log.where, through)
    await log.journal.version_delete(*log.where, "old")
    await log.journal.trim(*log.where, through)
    return [*mine[:through], *of_states[:3]], [*mine[through:], of_states[3]]


async def test_what_is_let_go_of_leaves_keys_and_files(store: Store) -> None:
    async with store.journal() as journal:
        log = await Placed.create(journal)
        gone, kept = await fill(store, log, 30)
        head = await journal.get(log.model)
        assert any(is_in(mark, kept_bytes(store.url)) for mark in gone)
        assert await journal.scrub(*log.where)
        blob = kept_bytes(store.url)
        assert not any(is_in(mark, blob) for mark in gone)
        assert all(is_in(mark, blob) for mark in kept)
        assert await journal.get(log.model) == head
        entries = await journal.read(*log.where, 30)
        assert [entry.seq for entry in entries] == [*range(31, 41)]
        appended = await log.append(rows(7))
        assert (appended.seq, appended.previous) == (41, head.chain)
        assert await journal.scrub(*log.where) and await journal.scrub(*log.where)
        assert len(await journal.read(*log.where, 30)) == 11


async def trim_thousands(store: Store, journal: Journal) -> tuple[list[Placed], list[bytes]]:
    """Interleaved logs of which all but one are trimmed, a few entries at a time.

    SQLite merges the pages that become empty, and moves entries. The last log keeps all pages in
    use. Returns the trimmed logs, and the 8 bytes of each of their entries.
    """
    chance = random.Random(3)
    *logs, kept = [await Placed.create(journal, f"m{number}") for number in range(5)]
    gone: list[bytes] = []
    for _ in range(50):
        appends = []
        for log in [*logs, kept] * 30:
            mark = chance.randbytes(8)
            appends.append(log.append(Part(mark * chance.choice((2, 10, 60, 200)), 1)))
            if log is not kept:
                gone.append(mark)
        await asyncio.gather(*appends)
        for log in logs:
            if chance.random() < 0.5:
                end = (await journal.get(log.model)).seq
                await journal.trim(*log.where, max(0, end - chance.randrange(60)))
    for log in logs:
        await journal.trim(*log.where, (await journal.get(log.model)).seq)
    return logs, gone


async def test_no_byte_of_thousands_of_entries_is_left(store: Store) -> None:
    async with store.journal() as journal:
        logs, gone = await trim_thousands(store, journal)
        if isinstance(journal, SqliteJournal):
            # Overwritten rows and an empty write-ahead log are not enough.
            assert await journal._checkpointer.empty()
            assert count_left(gone, kept_bytes(store.url)) > 2
        for log in logs:
            assert await journal.scrub(*log.where)
        assert count_left(gone, kept_bytes(store.url)) == 0
        assert len(gone) > 5000


async def test_emptied_log_continues(store: Store) -> None:
    async with store.journal() as journal:
        log = await Placed.create(journal)
        first = await log.append(rows(1, 2))
        await journal.trim(*log.where, 2)
        assert await journal.scrub(*log.where)
        second = await log.append(rows(3))
        assert (second.seq, second.previous) == (3, first.chain)
        assert await log.tags(after=2) == [3]
        with pytest.raises(ModelChanged):
            await journal.scrub(log.model, "another")


async def test_the_append_only_file_forgets_at_its_next_rewrite() -> None:
    # With everysec, writes wait in memory for an fsync under way.
    with redis_or_skip(appendfsync="always") as server:
        store = Store(server.url)
        async with store.journal() as journal:
            log = await Placed.create(journal)
            gone, kept = await fill(store, log, 30)
            assert await journal.scrub(*log.where)
            written = append_only_file(server.url, rewrite=False)
            assert all(is_in(mark, written) for mark in gone)
            written = append_only_file(server.url, rewrite=True)
            assert not any(is_in(mark, written) for mark in gone)
            assert all(is_in(mark, written) for mark in kept)


async def test_more_than_one_step_may_move_is_left_for_later(
    redis_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualstream.service.journal.redis.store._LONG", 1 << 30)
    async with redis_store.journal() as journal:
        log = await Placed.create(journal)
        large = Part(encode_rows([0, 750_000], range(750_000), np.random.rand(750_000), [1.0]), 1)
        for _ in range(3):
            await log.append(large)
        assert not await journal.scrub(*log.where)
        assert len(await journal.read(*log.where, 0, 1 << 30)) == 3
        await journal.trim(*log.where, 1)
        assert await journal.scrub(*log.where)
        assert [e.seq for e in await journal.read(*log.where, 1, 1 << 30)] == [2, 3]
