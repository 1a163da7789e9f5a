"""Staged models: no reader finds one until it is whole, and it is what it was then."""

import os
import shutil
import sqlite3
from contextlib import closing

import msgspec
import pytest

from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import (
    AppendRequest,
    Conflict,
    CopyUse,
    Limits,
    LogPosition,
    ModelChanged,
    ModelRecord,
    NewPendingRow,
    NonceForgotten,
    UnknownModel,
    Version,
)
from tests.service.journal.groups import CLIENT_SPEC, SPEC, keyed, rows

pytestmark = pytest.mark.anyio
MODEL = "m.1"


async def written(journal, entries: int = 5) -> ModelRecord:
    """A model with entries, of which each has a row under an id, a cursor and a key."""
    record, _ = await journal.create(MODEL, SPEC, CLIENT_SPEC)
    for number in range(entries):
        parts = [keyed(f"request {number}", number), rows(10 + number, id=f"id {number}")]
        await journal.append(AppendRequest(MODEL, record.incarnation, os.urandom(16), 10**9, parts))
    return await journal.get(MODEL)


async def taken(journal, record: ModelRecord):
    """Its entries, and its keys."""
    log_id = record.id, record.incarnation
    keys = [key async for page in journal.kept_keys(*log_id) for key in page]
    return list(await journal.read(*log_id, 0)), keys


async def test_staged_model_is_invisible_until_it_is_shown(journal):
    record = await written(journal)
    entries, keys = await taken(journal, record)
    assert [key.key[1:] for key in keys[:3]] == [b"request 0", b"id 0", b"request 1"]
    assert [key.seq for key in keys] == sorted(key.seq for key in keys)
    await journal.delete(MODEL)
    staged = await journal.stage(record, 0, {"a": "1", "b": "2"})
    await journal.stage_entries(staged, entries[:2], [])
    await journal.stage_entries(staged, entries[2:], [])
    await journal.stage_keys(staged, keys[:3])
    await journal.stage_keys(staged, keys[3:])
    row = NewPendingRow(b"\6late", b"row", b"", 60.0)
    await journal.remember(*staged, [row])
    rows_ = [page async for page in journal.kept_rows(*staged)]
    for look in (journal.get(MODEL), journal.position(MODEL), journal.delete(MODEL)):
        with pytest.raises(UnknownModel):
            await look
    with pytest.raises(ModelChanged):
        await journal.append(
            AppendRequest(MODEL, record.incarnation, os.urandom(16), 10, [rows(1)])
        )
    assert (await journal.list(), await journal.count()) == ([], 0)
    await journal.show(staged, record)
    assert await journal.list() == [record]
    assert await taken(journal, record) == (entries, keys)
    assert (await journal.position(MODEL)) == (record, 0, {"a": "1", "b": "2"})
    assert await journal.cursor(MODEL, record.incarnation, "b") == "2"
    assert [page async for page in journal.kept_rows(MODEL, record.incarnation)] == rows_
    [waiting] = await journal.awaiting_labels()
    assert (waiting.model, waiting.incarnation, waiting.rows) == (MODEL, record.incarnation, 1)
    # Now it is no staged model any more
    with pytest.raises(ModelChanged):
        await journal.stage_keys(staged, keys[:1])
    await journal.discard(staged)
    assert await journal.list() == [record]


async def restored(journal, record: ModelRecord, entries, keys=()) -> None:
    staged = await journal.stage(record, record.seq if not entries else 0, {})
    if entries:
        await journal.stage_entries(staged, entries, [])
    if keys:
        await journal.stage_keys(staged, keys)
    await journal.show(staged, record)


async def test_restored_model_deduplicates_keys_and_continues(journal):
    record = await written(journal)
    entries, keys = await taken(journal, record)
    await journal.delete(MODEL)
    await restored(journal, record, entries, keys)
    # A known key is a duplicate, with another payload in conflict, a new one is new
    parts = [rows(12, id="id 2"), rows(9, id="id 3", payload="other"), rows(20, id="id 20")]
    appended = await journal.append(
        AppendRequest(MODEL, record.incarnation, os.urandom(16), record.seq, parts)
    )
    positions = [(p.seq, p.duplicate, p.conflict) for p in appended.positions]
    assert positions == [(6, True, False), (8, False, True), (11, False, False)]
    assert appended.previous == record.chain


async def test_an_append_from_before_a_restore_is_repeated_without_learning_it_twice(journal):
    record, _ = await journal.create(MODEL, SPEC, CLIENT_SPEC)
    log_id = MODEL, record.incarnation
    begins = LogPosition(0, record.chain)
    nonces = [os.urandom(16) for _ in range(4)]
    first = await journal.append(AppendRequest(*log_id, nonces[0], 0, [rows(1), rows(2)]))
    await journal.append(AppendRequest(*log_id, nonces[1], 0, [rows(3, id="a")]))
    await journal.append(AppendRequest(*log_id, nonces[2], 0, [rows(3, id="a"), rows(4, id="b")]))
    record = await journal.get(MODEL)
    entries, keys = await taken(journal, record)
    await journal.delete(MODEL)
    await restored(journal, record, entries, keys)
    after = await journal.append(AppendRequest(*log_id, nonces[3], 0, [rows(5)]))
    assert (after.first_seq, after.seq) == (5, 5)
    again = await journal.append(
        AppendRequest(*log_id, nonces[0], 0, [rows(1), rows(2)], repeats=begins)
    )
    assert (again.positions, again.chain) == (first.positions, first.chain)
    # What was left out of an append is not in the log: it is not answered wrongly
    with pytest.raises(NonceForgotten):
        parts = [rows(3, id="a"), rows(4, id="b")]
        await journal.append(AppendRequest(*log_id, nonces[2], 0, parts, repeats=begins))
    again = await journal.append(AppendRequest(*log_id, nonces[3], 0, [rows(5)], repeats=begins))
    assert (again.positions, again.chain) == (after.positions, after.chain)
    assert (await journal.get(MODEL)).seq == 5


async def test_what_is_settled_lies_in_the_file_itself(tmp_path):
    """As after a power cut that takes the log of what was committed last."""
    path = tmp_path / "store.db"
    journal = await open_journal(f"sqlite:///{path}")
    try:
        record = await written(journal)
        await journal.settle()
        shutil.copy(path, tmp_path / "cut.db")
        # A reader keeps the log from being emptied, and no caller waits
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM models").fetchall()
            await journal.create("another", SPEC, CLIENT_SPEC)
            await journal.settle()
    finally:
        await journal.close()
    after_cut = await open_journal(f"sqlite:///{tmp_path / 'cut.db'}")
    try:
        assert await after_cut.list() == [record]
        assert len(await after_cut.read(MODEL, record.incarnation, 0)) == 5
    finally:
        await after_cut.close()


async def test_keys_expire_when_they_would_have(store):
    async with store.journal(Limits(key_ttl_s=3600)) as journal:
        record = await written(journal, 1)
        entries, keys = await taken(journal, record)
        await journal.delete(MODEL)
        old = [msgspec.structs.replace(keys[0], time_ms=keys[0].time_ms - 3_600_000)]
        await restored(journal, record, entries, old + keys[1:])
        result = await journal.known(MODEL, record.incarnation, [key.key for key in keys])
        assert result[0] is None and result[1] is not None


async def test_what_does_not_follow_is_refused(journal):
    record = await written(journal)
    entries, keys = await taken(journal, record)
    with pytest.raises(Conflict):
        await journal.stage(record, 0, {})
    assert await journal.get(MODEL) == record
    await journal.delete(MODEL)
    staged = await journal.stage(record, 0, {})
    other = msgspec.structs.replace(entries[0], nonce=b"another nonce...")
    for wrong in (entries[1:], [entries[0], entries[2]], [other], [*entries, entries[0]]):
        with pytest.raises(Conflict):
            await journal.stage_entries(staged, wrong, [])
    await journal.stage_entries(staged, entries[:-1], [])
    with pytest.raises(Conflict):
        await journal.show(staged, record)
    await journal.stage_entries(staged, entries[-1:], [])
    made, _ = await journal.create(MODEL, SPEC, CLIENT_SPEC)
    with pytest.raises((Conflict, ModelChanged)):
        await journal.show(staged, record)
    await journal.discard(staged)
    assert await journal.list() == [made]


async def test_the_last_restore_of_a_model_is_the_one_that_counts(journal):
    record = await written(journal)
    entries, keys = await taken(journal, record)
    await journal.delete(MODEL)
    first = await journal.stage(record, 0, {"of": "the first"})
    await journal.stage_entries(first, entries, [])
    await journal.stage_keys(first, keys)
    await journal.copy_put(*first, b"copy")
    await journal.snapshot_put(*first, record.seq, record.chain, b"snapshot")
    second = await journal.stage(record, 0, {})
    for late in (
        journal.stage_keys(first, keys),
        journal.stage_entries(first, entries, []),
        journal.show(first, record),
        journal.copy_put(*first, b"copy"),
    ):
        with pytest.raises(ModelChanged):
            await late
    await journal.discard(first)
    await journal.stage_entries(second, entries, [])
    await journal.show(second, record)
    log_id = MODEL, record.incarnation
    assert await taken(journal, record) == (entries, [])
    assert (await journal.position(MODEL)).cursors == {}
    assert await journal.copies(*log_id, with_partial=True) == []
    assert await journal.snapshots(*log_id) == []


@pytest.mark.parametrize("through", [4, 10])
async def test_trimmed_log_continues_after_the_trimmed_seq(journal, through):
    record = await written(journal)
    entries, _ = await taken(journal, record)
    await journal.delete(MODEL)
    kept = [entry for entry in entries if entry.seq > through]
    staged = await journal.stage(record, through, {})
    if kept:
        await journal.stage_entries(staged, kept, [])
    await journal.show(staged, record)
    assert (await journal.position(MODEL)).trimmed == through
    assert list(await journal.read(MODEL, record.incarnation, through)) == kept
    following = await journal.append(
        AppendRequest(MODEL, record.incarnation, b"n" * 16, 10, [rows(1)])
    )
    assert (following.previous, following.seq) == (record.chain, 11)


async def test_copies_versions_and_snapshots_are_written_under_the_staged_name(journal):
    record = await written(journal)
    entries, _ = await taken(journal, record)
    await journal.delete(MODEL)
    staged = await journal.stage(record, 0, {})
    digest = await journal.copy_put(*staged, b"state")
    uses = [CopyUse(entries[2].seq, digest)]
    await journal.stage_entries(staged, entries, uses)
    version = Version("v", 4, entries[1].chain, digest, 5, created_ms=7, note="a note")
    await journal.version_put(*staged, version)
    assert await journal.snapshot_put(*staged, 4, entries[1].chain, b"snapshot")
    await journal.show(staged, record)
    log_id = MODEL, record.incarnation
    assert await journal.versions(*log_id) == [version]
    assert await journal.copy_uses(*log_id) == uses
    assert await journal.copy_get(*log_id, digest) == b"state"
    result = await journal.snapshot_get(*log_id)
    assert (result.seq, result.data) == (4, b"snapshot")


async def test_identity_is_shown_without_being_claimed(journal):
    assert await journal.identity() is None
    await journal.claim_identity("one")
    assert await journal.identity() == "one"
