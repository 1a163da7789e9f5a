"""Reading and trimming a log, keys that grow old, and what a reopened store still knows."""

import asyncio
import os
from itertools import accumulate

import msgspec
import pytest

from dualstream.service.journal.page import end_of, size_of
from dualstream.service.journal.protocol import (
    ENTRY_OVERHEAD,
    Appended,
    CursorMove,
    Journal,
    Limits,
    Trimmed,
)
from dualstream.service.journal.record import KeyKind
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log, keyed, places, request, rows

pytestmark = pytest.mark.anyio


async def seqs(log: Log, after: int, **limit: int) -> list[tuple[int, int]]:
    entries = await log.journal.read(log.model, log.incarnation, after, **limit)
    return [(entry.first_seq, entry.seq) for entry in entries]


async def test_an_entry_with_the_seq_in_its_middle_is_read_whole(journal: Journal):
    log = await Log.create(journal)
    for _ in range(3):
        await log.append(rows(1, 2), rows(3))
    assert await seqs(log, 0) == [(1, 3), (4, 6), (7, 9)]
    assert await seqs(log, 3) == [(4, 6), (7, 9)]
    assert await seqs(log, 4) == [(4, 6), (7, 9)]
    assert await seqs(log, 8) == [(7, 9)]
    assert await seqs(log, 9) == []
    assert await seqs(log, 99) == []


async def test_a_read_stops_at_its_limit_but_brings_one_entry(journal: Journal):
    log = await Log.create(journal)
    for _ in range(10):
        await log.append(rows(*range(200)))
    size = len((await journal.read(log.model, log.incarnation, 0))[0].body)
    assert await seqs(log, 0, limit_bytes=1) == [(1, 200)]
    assert len(await seqs(log, 0, limit_bytes=4 * size)) == 3
    assert len(await seqs(log, 0)) == 10


async def test_every_entry_is_read_though_sizes_differ_wildly(journal: Journal):
    log = await Log.create(journal)
    sizes = [1, 5000, 1, 1, 1, 60000, *[1] * 200, 30000, 2]
    for size in sizes:
        await log.append(rows(*[size] * size))
    after, read = 0, []
    while page := await journal.read(log.model, log.incarnation, after, 40_000):
        read += [entry.seq - entry.first_seq + 1 for entry in page]
        assert len(page) == 1 or sum(len(entry.body) for entry in page) <= 40_000
        after = page[-1].seq
    assert read == sizes


async def test_how_far_a_read_reaches_is_shown_without_a_look_at_it(journal: Journal):
    log = await Log.create(journal)
    counts = [1, 5000, *[1] * 150, 2, 3, 20000, 7]
    for count in counts:
        await log.append(rows(*[count] * count))
    pages, after = [], 0
    while page := await journal.read(log.model, log.incarnation, after, 8000):
        pages.append(page)
        after = end_of(page)
    assert after == sum(counts) and 5 < len(pages) < len(counts) / 10
    sizes = [size_of(page) for page in pages]
    assert [end_of(page) for page in pages] == [page[-1].seq for page in pages]
    assert sizes == [sum(len(entry.body) + ENTRY_OVERHEAD for entry in page) for page in pages]
    read = [entry for page in pages for entry in page]
    assert [entry.seq for entry in read] == list(accumulate(counts))
    assert [entry.seq + 1 - entry.first_seq for entry in read] == counts


async def test_trimming_takes_only_whole_entries(journal: Journal):
    log = await Log.create(journal)
    for _ in range(4):
        await log.append(rows(1, 2, 3))
    await journal.trim(log.model, log.incarnation, 8)
    for gone in (0, 3, 5):
        with pytest.raises(Trimmed) as trimmed:
            await seqs(log, gone)
        assert trimmed.value.kept_from == 7
    assert await seqs(log, 6) == [(7, 9), (10, 12)]
    assert places(await log.append(rows(1))) == [(13, 13, "new")]


async def test_trimming_again_changes_nothing(journal: Journal):
    log = await Log.create(journal)
    for _ in range(3):
        await log.append(rows(1))
    for through in (2, 2, 1, 0):
        await journal.trim(log.model, log.incarnation, through)
        assert await seqs(log, 2) == [(3, 3)]


async def test_a_log_may_be_trimmed_to_its_head(journal: Journal):
    log = await Log.create(journal)
    await journal.trim(log.model, log.incarnation, 5)
    assert places(await log.append(rows(1), rows(2))) == [(1, 1, "new"), (2, 2, "new")]
    await journal.trim(log.model, log.incarnation, 99)
    assert await seqs(log, 2) == []
    with pytest.raises(Trimmed) as trimmed:
        await seqs(log, 1)
    assert trimmed.value.kept_from == 3
    before = (await journal.get(log.model)).chain
    appended = await log.append(rows(3))
    assert (appended.previous, appended.first_seq) == (before, 3)
    assert await seqs(log, 2) == [(3, 3)]


async def test_a_long_log_is_trimmed_in_steps(journal: Journal):
    log = await Log.create(journal)
    for start in range(0, 2500, 50):
        await asyncio.gather(*(log.append(rows(tag)) for tag in range(start, start + 50)))
    await journal.trim(log.model, log.incarnation, 2345)
    with pytest.raises(Trimmed) as trimmed:
        await seqs(log, 2344)
    assert trimmed.value.kept_from == 2346
    assert len(await seqs(log, 2345)) == 155


async def test_a_reopened_store_knows_everything(store: Store):
    nonce = os.urandom(16)
    group = [rows(1, id="a"), keyed("r", 2, 3)]
    async with store.journal() as journal:
        log = await Log.create(journal)
        first = await log.append(*group, nonce=nonce, cursor=CursorMove("in", None, "1"))
        await journal.snapshot_put(log.model, log.incarnation, 3, first.chain, b"state")
    async with store.journal() as journal:
        assert await journal.get(log.model) == Log(journal, await journal.get(log.model)).record
        log.journal = journal
        assert await log.append(*group, nonce=nonce, known_seq=0) == first
        assert places(await log.append(*group)) == [(1, 1, "duplicate"), (2, 3, "duplicate")]
        assert await journal.cursor(log.model, log.incarnation, "in") == "1"
        snapshot = await journal.snapshot_get(log.model, log.incarnation)
        assert snapshot is not None
        assert (snapshot.seq, snapshot.chain, snapshot.data) == (3, first.chain, b"state")
        assert places(await log.append(rows(4))) == [(4, 4, "new")]


async def test_a_journal_may_be_opened_again(journal: Journal):
    log = await Log.create(journal)
    await log.append(rows(1))
    await journal.close()
    await journal.close()
    await journal.open()
    await log.append(rows(2))
    assert await log.tags() == [1, 2]


async def happened(log: Log, *ids: str) -> list[str]:
    return [places(await log.append(rows(1, id=id)))[0][2] for id in ids]


TTL_S = 3600


async def expire_keys(log: Log) -> None:
    """Make all keys older than TTL_S. Keys that would expire by themselves may do so too early."""
    where, journal = (log.model, log.incarnation), log.journal
    record, entries = await journal.get(log.model), await journal.read(*where, 0)
    keys = [key async for page in journal.kept_keys(*where) for key in page]
    older = [
        msgspec.structs.replace(key, time_ms=key.time_ms - 1000 * (TTL_S + 100)) for key in keys
    ]
    await journal.delete(log.model)
    staged = await journal.stage(record, 0, {})
    await journal.stage_entries(staged, list(entries), [])
    await journal.stage_keys(staged, older)
    await journal.show(staged, record)


async def test_keys_are_forgotten_after_their_time(store: Store):
    async with store.journal(Limits(key_ttl_s=TTL_S)) as journal:
        log = await Log.create(journal)
        assert await happened(log, "a", "a") == ["new", "duplicate"]
        await log.append(keyed("r", 1))
        await expire_keys(log)
        assert await happened(log, "a", "b", "a", "b") == ["new", "new", "duplicate", "duplicate"]
        assert places(await log.append(keyed("r", 1)))[0][2] == "new"
        await expire_keys(log)
        assert await happened(log, "b", "a", "b") == ["new", "new", "duplicate"]


async def test_the_oldest_keys_are_forgotten_first_when_there_are_too_many(store: Store):
    async with store.journal(Limits(max_keys=3)) as journal:
        log = await Log.create(journal)
        await happened(log, "a", "b", "c")
        assert await happened(log, "a", "d") == ["duplicate", "new"]
        assert await happened(log, "b", "c", "d") == ["duplicate"] * 3
        assert await happened(log, "a") == ["new"]
        assert await happened(log, "c", "d", "a") == ["duplicate"] * 3
        assert await happened(log, "b") == ["new"]


async def test_a_key_that_came_again_is_not_forgotten_with_its_first_time(store: Store):
    async with store.journal(Limits(key_ttl_s=TTL_S, max_keys=300)) as journal:
        log = await Log.create(journal)
        many = [rows(1, id=f"old {number}") for number in range(200)]
        await log.append(*many, rows(1, id="a"))
        await expire_keys(log)
        # More are expired than one append deletes, so the old place of "a" is still kept.
        assert await happened(log, "a") == ["new"]
        for number in range(20):
            assert await happened(log, f"new {number}") == ["new"]
        assert await happened(log, "a") == ["duplicate"]


async def test_a_group_may_hold_more_keys_than_are_kept(store: Store):
    async with store.journal(Limits(max_keys=10)) as journal:
        log = await Log.create(journal)
        await log.append(*(rows(1, id=str(number)) for number in range(100)))
        assert await happened(log, "99", "90", "89") == ["duplicate", "duplicate", "new"]


async def test_only_the_last_nonces_are_kept(store: Store):
    async with store.journal(Limits(nonces=5)) as journal:
        log = await Log.create(journal)
        nonces = [os.urandom(16) for _ in range(200)]
        for nonce in nonces:
            await log.append(rows(1), nonce=nonce)
        last = await log.last_seq()
        for nonce in nonces[-5:]:
            await log.append(rows(1), nonce=nonce)
        assert await log.last_seq() == last
        await log.append(rows(1), nonce=nonces[0])
        assert await log.last_seq() == last + 1


async def test_a_repeat_brings_what_is_unseen_at_that_time(journal: Journal):
    log = await Log.create(journal)
    nonce = os.urandom(16)
    await log.append(rows(1))
    first = await log.append(rows(2), nonce=nonce, known_seq=0)
    await log.append(rows(3))
    again: Appended = await log.append(rows(2), nonce=nonce, known_seq=1)
    assert [entry.seq for entry in first.entries] == [1]
    assert (again.entries, again.more) == ((), False)
    assert again.positions == first.positions


async def test_large_groups_with_keys_are_sorted_out(journal: Journal):
    log = await Log.create(journal)
    ids = [rows(number, id=str(number)) for number in range(0, 3000, 2)]
    await log.append(*ids)
    everything = [rows(number, id=str(number)) for number in range(3000)]
    group = request("r", *everything, kind=KeyKind.CHUNK)
    appended = await log.append(*group)
    assert [position.duplicate for position in appended.positions[1:]] == [True, False] * 1500
    assert await log.tags(1500) == list(range(1, 3000, 2))
    again = await log.append(*group)
    assert {(position.first_seq, position.seq, position.count) for position in again.positions} == {
        (1501, 3000, 1500)
    }
