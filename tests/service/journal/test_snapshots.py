"""Snapshots: in parts, seen from one moment on, the two newest kept, on every store."""

import asyncio
import os
import sqlite3
from itertools import count

import pytest
import redis

from dualstream.service.journal.protocol import (
    Conflict,
    Journal,
    LogPosition,
    MissingPosition,
    ModelChanged,
    Snapshot,
    Trimmed,
    Usage,
)
from tests.redis_server import cut_stream
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log, rows

pytestmark = pytest.mark.anyio


async def chains(log: Log, count: int) -> list[str]:
    """Append entries of two rows; return the chain before and after each."""
    return [log.record.chain] + [(await log.append(rows(1, 2))).chain for _ in range(count)]


async def put(log: Log, chain: list[str], entry: int, data: bytes = b"state") -> bool:
    return await log.journal.snapshot_put(log.model, log.incarnation, 2 * entry, chain[entry], data)


async def kept(log: Log) -> list[int]:
    results = [await log.journal.snapshot_get(log.model, log.incarnation, n) for n in range(4)]
    return [snapshot.seq for snapshot in results if snapshot is not None]


async def kept_from(log: Log) -> int:
    """The first seq that is kept."""
    try:
        return (await log.journal.read(log.model, log.incarnation, 0))[0].first_seq
    except Trimmed as trimmed:
        return trimmed.kept_from


def pieces(store: Store) -> int:
    """How many parts of snapshots the store holds."""
    if store.url.startswith("sqlite"):
        connection = sqlite3.connect(store.url.removeprefix("sqlite:///"))
        try:
            count: int = connection.execute("SELECT count(*) FROM snapshot_parts").fetchone()[0]
        finally:
            connection.close()
        return count
    with redis.Redis.from_url(store.url) as client:
        return sum(client.hlen(key) for key in client.keys("ds:*:snap:*"))


async def test_usage_tells_sizes_and_what_no_snapshot_holds(journal: Journal):
    log = await Log.create(journal)
    where = (log.model, log.incarnation)
    assert await journal.usage(*where) == Usage(0, 0, None, None)
    chain = await chains(log, 3)
    entries = await journal.read(*where, 0)
    size = sum(len(entry.body) for entry in entries)
    result = await journal.usage(*where)
    assert result == Usage(result.log_bytes, 0, entries[0].time_ms, entries[0].time_ms)
    assert result.log_bytes == size or size < result.log_bytes < size + 10_000
    data = os.urandom((1 << 20) + 7)
    await put(log, chain, 2, data)
    await put(log, chain, 1, b"older")  # which is not kept
    result = await journal.usage(*where)
    assert result.snapshots_bytes == len(data) and result.unsaved_ms == entries[2].time_ms
    await put(log, chain, 3)
    await journal.trim(*where, 4, behind=1)
    result = await journal.usage(*where)
    assert result.snapshots_bytes == len(data) + len(b"state")
    assert (result.oldest_ms, result.unsaved_ms) == (entries[2].time_ms, None)
    await journal.delete(log.model)
    await journal.create(log.model, b"{}", b"{}")
    with pytest.raises(ModelChanged):
        await journal.usage(*where)


async def test_a_snapshot_comes_back_as_it_was_put(journal: Journal):
    log = await Log.create(journal)
    chain = await chains(log, 2)
    data = os.urandom(5 * (1 << 19) + 7)
    assert await journal.snapshot_get(log.model, log.incarnation) is None
    assert await put(log, chain, 1, data)
    snapshot = await journal.snapshot_get(log.model, log.incarnation)
    assert snapshot == Snapshot(2, chain[1], data, snapshot.where)
    assert await journal.snapshot_get(log.model, log.incarnation, 1) is None


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (1 << 20) + 1])
async def test_snapshots_of_every_number_of_parts_come_back(journal: Journal, size: int):
    log = await Log.create(journal)
    chain = await chains(log, 1)
    data = os.urandom(size)
    assert await put(log, chain, 1, data)
    snapshot = await journal.snapshot_get(log.model, log.incarnation)
    assert snapshot is not None
    assert snapshot.data == data


async def test_the_two_newest_snapshots_are_kept(store: Store):
    async with store.journal() as journal:
        log = await Log.create(journal)
        chain = await chains(log, 5)
        for entry in (1, 2, 3, 5):
            assert await put(log, chain, entry)
        assert await kept(log) == [10, 6]
        assert pieces(store) == 2


async def test_only_an_older_snapshot_is_replaced(journal: Journal):
    log = await Log.create(journal)
    chain = await chains(log, 4)
    assert await put(log, chain, 3)
    assert not await put(log, chain, 3, b"another")
    assert not await put(log, chain, 2)
    assert await kept(log) == [6]
    snapshot = await journal.snapshot_get(log.model, log.incarnation)
    assert snapshot is not None
    assert snapshot.data == b"state"


async def test_one_that_replaces_takes_the_place_of_one_of_its_seq(store: Store):
    async with store.journal() as journal:
        log = await Log.create(journal)
        chain = await chains(log, 3)
        where = (log.model, log.incarnation)
        for entry in (1, 3):
            await put(log, chain, entry)
        assert await journal.snapshot_put(*where, 6, chain[3], b"mine", replaces=True)
        assert not await journal.snapshot_put(*where, 4, chain[2], b"older", replaces=True)
        results = [await journal.snapshot_get(*where, n) for n in range(3)]
        assert [s and (s.seq, s.data) for s in results] == [(6, b"mine"), (2, b"state"), None]
        assert pieces(store) == 2


async def test_the_places_of_snapshots_are_shown_and_older_ones_dropped(store: Store):
    async with store.journal() as journal:
        log = await Log.create(journal)
        where = (log.model, log.incarnation)
        assert await journal.snapshots(*where) == []
        chain = await chains(log, 5)
        for entry in (1, 2, 4):
            await put(log, chain, entry)
        assert await journal.snapshots(*where) == [
            LogPosition(8, chain[4]),
            LogPosition(4, chain[2]),
        ]
        await journal.snapshots_drop(*where, 8)
        assert await journal.snapshots(*where) == [LogPosition(8, chain[4])]
        assert pieces(store) == 1
        # Never the last one that the log holds.
        with pytest.raises(Conflict, match="no snapshot from seq 9 on"):
            await journal.snapshots_drop(*where, 9)
        assert await journal.snapshots(*where) == [LogPosition(8, chain[4])]


async def test_a_log_is_trimmed_no_further_than_its_snapshots_allow(journal: Journal):
    log = await Log.create(journal)
    chain = await chains(log, 6)
    where = (log.model, log.incarnation)

    await journal.trim(*where, 100, behind=0)
    await put(log, chain, 2)
    await journal.trim(*where, 100, behind=1)
    assert await kept_from(log) == 1
    await put(log, chain, 4)
    await journal.trim(*where, 3, behind=1)
    assert await kept_from(log) == 3
    await journal.trim(*where, 100, behind=1)
    assert await kept_from(log) == 5
    await journal.trim(*where, 100, behind=0)
    assert await kept_from(log) == 9


async def test_a_snapshot_that_is_not_of_this_log_is_refused(journal: Journal):
    log = await Log.create(journal)
    chain = await chains(log, 3)
    where = (log.model, log.incarnation)
    for seq, value in ((6, chain[2]), (4, chain[3]), (5, chain[3]), (8, chain[3]), (6, "0" * 40)):
        with pytest.raises(Conflict):
            await journal.snapshot_put(*where, seq, value, b"state")
    assert await journal.snapshot_put(*where, 4, chain[2], b"state")


async def test_a_snapshot_of_a_trimmed_place_is_taken_while_the_chain_leads_on(journal: Journal):
    log = await Log.create(journal)
    chain = await chains(log, 3)
    await journal.trim(log.model, log.incarnation, 4)
    with pytest.raises(Conflict):
        await put(log, chain, 1)
    assert await put(log, chain, 2)
    assert not await put(log, chain, 1)


async def test_late_snapshot_before_the_trimmed_seq_is_not_stored(journal: Journal):
    """Another worker has stored newer ones and trimmed the log. That is no loss of records."""
    log = await Log.create(journal)
    chain = await chains(log, 5)
    for entry in (3, 4):
        assert await put(log, chain, entry)
    await journal.trim(log.model, log.incarnation, 6, behind=1)
    for replaces in (False, True):
        where = (log.model, log.incarnation, 2, chain[1])
        assert not await journal.snapshot_put(*where, b"late", replaces)
    for entry in (3, 4):  # positions that the log still shows
        where = (log.model, log.incarnation, 2 * entry, "0" * 40)
        with pytest.raises(MissingPosition):
            await journal.snapshot_put(*where, b"of a fork")
    assert await kept(log) == [8, 6]
    await journal.delete(log.model)
    await journal.create(log.model, b"{}", b"{}")
    with pytest.raises(ModelChanged):
        await put(log, chain, 5)


async def test_a_snapshot_before_the_first_entry_is_taken(journal: Journal):
    log = await Log.create(journal)
    assert await put(log, [log.record.chain], 0)
    assert await kept(log) == [0]


async def test_readers_never_see_a_snapshot_that_is_not_complete(journal: Journal):
    log = await Log.create(journal)
    chain = await chains(log, 8)
    sizes = set()

    async def write() -> None:
        for entry in range(1, 9):
            await put(log, chain, entry, bytes([entry]) * (2 << 20))

    writing = asyncio.create_task(write())
    is_written = False
    while not is_written:  # the last one is read even if the first look takes long
        is_written = writing.done()
        snapshot = await journal.snapshot_get(log.model, log.incarnation)
        if snapshot is not None:
            assert set(snapshot.data) == {snapshot.seq // 2}
            sizes.add(len(snapshot.data))
        await asyncio.sleep(0.001)
    await writing
    assert sizes == {2 << 20}


async def test_next_snapshot_deletes_the_rest_of_a_dead_writer(store: Store):
    async with store.journal() as journal:
        log = await Log.create(journal)
        chain = await chains(log, 2)
        writing = asyncio.create_task(put(log, chain, 1, bytes(64 << 20)))
        while pieces(store) < 2:
            await asyncio.sleep(0.001)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert await kept(log) == []
        assert await put(log, chain, 2)
        assert await kept(log) == [4]
        assert pieces(store) == 1


async def test_a_slow_writer_of_an_older_snapshot_stops(
    store: Store, monkeypatch: pytest.MonkeyPatch
):
    for module in (
        "dualstream.service.journal.sqlite.snapshots",
        "dualstream.service.journal.redis.store",
    ):
        monkeypatch.setattr(f"{module}.PART_BYTES", 8 << 10)
    async with store.journal() as slow, store.journal() as quick:
        log = await Log.create(slow)
        chain = await chains(log, 2)
        begun, goes_on = asyncio.Event(), asyncio.Event()
        method = "_put_snapshot_part" if store.url.startswith("sqlite") else "_snapshot"
        put_part, calls = getattr(slow, method), count(1)

        async def slowly(*args):
            answer = await put_part(*args)
            if next(calls) == 3:
                begun.set()
                await goes_on.wait()
            return answer

        monkeypatch.setattr(slow, method, slowly)
        writing = asyncio.create_task(put(log, chain, 1, bytes(1 << 20)))
        await begun.wait()
        assert pieces(store) >= 2
        log.journal = quick
        assert await put(log, chain, 2)
        goes_on.set()
        assert not await writing
        assert await kept(log) == [4]
        assert pieces(store) == 1


async def test_snapshots_go_with_their_model(store: Store):
    async with store.journal() as journal:
        log = await Log.create(journal)
        chain = await chains(log, 2)
        await put(log, chain, 1, bytes(3 << 20))
        await put(log, chain, 2)
        assert pieces(store) == 4
        await journal.delete(log.model)
        assert pieces(store) == 0


async def test_appends_go_on_while_a_snapshot_is_written(journal: Journal):
    log = await Log.create(journal)
    chain = await chains(log, 1)
    writing = asyncio.create_task(put(log, chain, 1, bytes(32 << 20)))
    appends = 0
    while not writing.done():
        await log.append(rows(1))
        appends += 1
    assert await writing
    assert appends >= 10


async def test_a_snapshot_of_lost_entries_is_in_nobodys_way(store: Store):
    # Given snapshots of which the newest stands on entries that the store then loses
    async with store.journal() as journal:
        log = await Log.create(journal)
        chain = await chains(log, 4)
        await put(log, chain, 1)
        await put(log, chain, 4)
        lose_last_entries(store, log, 2, chain)
        log.known_seq = 4
        # When one is written where there was a newer one
        appended = await log.append(rows(7, 8))
        await journal.trim(log.model, log.incarnation, 100, behind=1)
        assert await kept_from(log) == 1
        assert await journal.snapshot_put(log.model, log.incarnation, 6, appended.chain, b"new")
        # Then that one goes, and the older one stays, up to which the log may be trimmed
        assert await kept(log) == [6, 2]
        await journal.trim(log.model, log.incarnation, 100, behind=1)
        assert await kept_from(log) == 3


def lose_last_entries(store: Store, log: Log, entry: int, chain: list[str]) -> None:
    """The log ends with this entry, as on a copy of the store that was behind."""
    seq = 2 * entry
    if store.url.startswith("sqlite"):
        with sqlite3.connect(store.url.removeprefix("sqlite:///")) as connection:
            connection.execute("DELETE FROM entries WHERE seq > ?", (seq,))
            connection.execute("UPDATE heads SET seq = ?, chain = ?", (seq, chain[entry]))
        connection.close()
        return
    with redis.Redis.from_url(store.url) as client:
        prefix = f"ds:{{{log.model}}}:"
        cut_stream(client, f"{prefix}log", seq)
        client.hset(f"{prefix}head", mapping={"seq": seq, "chain": chain[entry]})
