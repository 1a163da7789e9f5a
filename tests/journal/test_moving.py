"""Models as they are, out of a store and into it: nobody sees what is staged until it is whole."""

import os
import shutil
import sqlite3
from contextlib import closing

import msgspec
import pytest

from service.journal import open_journal
from service.journal.moving import Staged
from service.journal.protocol import (
    AppendRequest,
    Conflict,
    CopyUse,
    Limits,
    ModelChanged,
    ModelRecord,
    Place,
    ToRemember,
    UnknownModel,
    Version,
)
from tests.journal.conftest import Store
from tests.journal.groups import GIVEN, SPEC, keyed, rows
from tests.journal.leftovers import is_in, kept_bytes, marks

pytestmark = pytest.mark.anyio
MODEL = "m.1"


async def written(journal, entries: int = 5) -> ModelRecord:
    """A model with entries, of which each has a row under an id, a cursor and a key."""
    record, _ = await journal.create(MODEL, SPEC, GIVEN)
    for number in range(entries):
        parts = [keyed(f"request {number}", number), rows(10 + number, id=f"id {number}")]
        await journal.append(AppendRequest(MODEL, record.incarnation, os.urandom(16), 10**9, parts))
    return await journal.get(MODEL)


async def taken(journal, record: ModelRecord):
    """Its entries, and its keys."""
    entries = list(await journal.read(record.id, record.incarnation, 0))
    keys, at = [], 0
    while at is not None:
        some, at = await journal.kept_keys(record.id, record.incarnation, at)
        keys += some
    return entries, keys


async def test_staged_model_is_seen_by_nobody_until_it_is_whole(journal):
    record = await written(journal)
    entries, keys = await taken(journal, record)
    appends = await journal.kept_appends(MODEL, record.incarnation)
    assert [key.key[1:] for key in keys[:3]] == [b"request 0", b"id 0", b"request 1"]
    assert [kept.nonce for kept in appends] == [entry.nonce for entry in entries]
    await journal.delete(MODEL)
    # When all but the last step of its return is done
    staged = await journal.stage(record, 0)
    await journal.stage_entries(*staged.own, entries[:2], [])
    assert await journal.stage(record, 0) == Staged(*staged.own, 4, entries[1].chain)
    await journal.stage_entries(*staged.own, entries[2:], [])
    await journal.stage_keys(*staged.own, 0, keys[:3])
    await journal.stage_keys(*staged.own, 3, keys[3:])
    await journal.stage_rest(*staged.own, appends, {"a": "1", "b": "2"})
    # Then there is no model
    with pytest.raises(UnknownModel):
        await journal.get(MODEL)
    assert await journal.list() == []
    assert await journal.count() == 0
    # And after it, it is what it was
    await journal.unstage(record)
    await journal.unstage(record)
    assert await journal.get(MODEL) == record
    assert await journal.list() == [record]
    assert await taken(journal, record) == (entries, keys)
    assert await journal.kept_appends(MODEL, record.incarnation) == appends
    assert await journal.cursors(MODEL, record.incarnation) == {"a": "1", "b": "2"}
    assert await journal.cursor(MODEL, record.incarnation, "b") == "2"


async def test_returned_model_knows_keys_and_nonces_and_goes_on(journal):
    record = await written(journal)
    entries, keys = await taken(journal, record)
    appends = await journal.kept_appends(MODEL, record.incarnation)
    parts = [keyed("request 4", 4), rows(14, id="id 4")]
    again = (MODEL, record.incarnation, entries[-1].nonce, record.seq, parts)
    first = await journal.append(AppendRequest(*again))
    await journal.delete(MODEL)
    staged = await journal.stage(record, 0)
    await journal.stage_entries(*staged.own, entries, [])
    await journal.stage_keys(*staged.own, 0, keys)
    await journal.stage_rest(*staged.own, appends, {})
    await journal.unstage(record)
    # The append of a known nonce is answered as the first time
    assert await journal.append(AppendRequest(*again)) == first
    # A known key is a duplicate, with another payload in conflict, a new one is new
    parts = [rows(12, id="id 2"), rows(9, id="id 3", payload="other"), rows(20, id="id 20")]
    appended = await journal.append(
        AppendRequest(MODEL, record.incarnation, os.urandom(16), record.seq, parts)
    )
    places = [(p.seq, p.duplicate, p.conflict) for p in appended.placed]
    assert places == [(6, True, False), (8, False, True), (11, False, False)]
    assert appended.previous == record.chain


async def test_what_is_settled_lies_in_the_file_itself(tmp_path):
    """As after a power cut that takes the log of what was committed last."""
    path = tmp_path / "store.db"
    journal = await open_journal(f"sqlite:///{path}")
    try:
        record = await written(journal)
        await journal.settle()
        shutil.copy(path, tmp_path / "cut.db")
        # One who reads keeps the log from being emptied, and nobody waiting
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM models").fetchall()
            await journal.create("another", SPEC, GIVEN)
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
        staged = await journal.stage(record, 0)
        await journal.stage_entries(*staged.own, entries, [])
        old = [msgspec.structs.replace(keys[0], time_ms=keys[0].time_ms - 3_600_000)]
        await journal.stage_keys(*staged.own, 0, old + keys[1:])
        await journal.unstage(record)
        found = await journal.known(MODEL, record.incarnation, [key.key for key in keys])
        assert found[0] is None and found[1] is not None


async def test_what_does_not_follow_is_refused(journal):
    record = await written(journal)
    entries, keys = await taken(journal, record)
    with pytest.raises(Conflict):
        await journal.stage(msgspec.structs.replace(record, incarnation="0" * 32), 0)
    await journal.delete(MODEL)
    staged = await journal.stage(record, 0)
    name, incarnation = staged.own
    other = msgspec.structs.replace(entries[0], nonce=b"another nonce...")
    for wrong in (entries[1:], [entries[0], entries[2]], [other], [*entries, entries[0]]):
        with pytest.raises(Conflict):
            await journal.stage_entries(name, incarnation, wrong, [])
    assert await journal.stage(record, 0) == staged
    with pytest.raises(Conflict):
        await journal.stage_keys(name, incarnation, 1, keys)
    await journal.stage_entries(name, incarnation, entries[:-1], [])
    with pytest.raises(Conflict):
        await journal.unstage(record)
    with pytest.raises(ModelChanged):
        await journal.stage_entries(name, "0" * 32, entries, [])
    # Of another incarnation, it begins anew
    another = msgspec.structs.replace(record, incarnation="0" * 32)
    assert (await journal.stage(another, 0)).seq == 0
    with pytest.raises(ModelChanged):
        await journal.unstage(record)


async def test_model_that_is_there_is_staged_again_for_its_tail(journal):
    record = await written(journal)
    entries, _ = await taken(journal, record)
    await journal.delete(MODEL)
    half = msgspec.structs.replace(record, seq=entries[1].seq, chain=entries[1].chain)
    staged = await journal.stage(half, 0)
    await journal.stage_entries(*staged.own, entries[:2], [])
    await journal.unstage(half)
    assert await journal.get(MODEL) == half
    staged = await journal.stage(record, 0, Place(half.seq, half.chain))
    assert (staged.seq, staged.chain) == (half.seq, half.chain)
    with pytest.raises(UnknownModel):
        await journal.get(MODEL)
    await journal.stage_entries(*staged.own, entries[2:], [])
    await journal.unstage(record)
    assert (await taken(journal, record))[0] == entries


async def test_model_that_has_gone_on_is_not_hidden(journal):
    record = await written(journal)
    for there in (None, Place(8, record.chain), Place(10, "0" * 40)):
        with pytest.raises(Conflict):
            await journal.stage(record, 0, there, is_anew=True)
        assert await journal.get(MODEL) == record


async def test_staged_model_is_not_written_to_by_who_knew_it_before(journal):
    record = await written(journal)
    staged = await journal.stage(record, 0, Place(record.seq, record.chain))
    own = MODEL, record.incarnation
    with pytest.raises(ModelChanged):
        await journal.append(AppendRequest(*own, os.urandom(16), record.seq, [rows(1)]))
    with pytest.raises(ModelChanged):
        await journal.remember(*own, [ToRemember(b"\6a", b"row")])
    with pytest.raises(ModelChanged):
        await journal.snapshot_put(*own, record.seq, record.chain, b"snapshot")
    # It stands where it stood, until it begins anew
    assert await journal.stage(record, 0) == staged
    assert (staged.seq, staged.chain) == (record.seq, record.chain)
    begins = await journal.stage(record, 0, is_anew=True)
    assert (begins.seq, await journal.copies(*begins.own)) == (0, [])
    with pytest.raises(Conflict):
        await journal.unstage(record)


async def test_what_is_staged_and_not_whole_goes_when_it_is_gone_on_with(store: Store, monkeypatch):
    for module in ("sqlite.copies", "sqlite.snapshots", "redis.copies", "redis.store"):
        monkeypatch.setattr(f"service.journal.{module}.PART_BYTES", 1000)
    [of_copy, of_snapshot] = marks(2, 4000)
    async with store.journal() as journal:
        record = await written(journal)
        entries, _ = await taken(journal, record)
        await journal.delete(MODEL)
        staged = await journal.stage(record, 0)
        await journal.stage_entries(*staged.own, entries, [])
        place = record.seq, record.chain
        for write in (
            lambda: journal.copy_put(*staged.own, of_copy),
            lambda: journal.snapshot_put(*staged.own, *place, of_snapshot),
        ):
            with monkeypatch.context() as patched:
                await cut_off(journal, patched, write)
        assert is_in(of_copy, kept_bytes(store.url)) and is_in(of_snapshot, kept_bytes(store.url))
        whole = await journal.copy_put(*staged.own, b"whole")
        assert (await journal.stage(record, 0)).seq == record.seq
        assert [copy.digest for copy in await journal.copies(*staged.own)] == [whole]
        await journal.settle()
        blob = kept_bytes(store.url)
        assert not is_in(of_copy, blob) and not is_in(of_snapshot, blob)
        await journal.unstage(record)
        assert (await taken(journal, record))[0] == entries


async def cut_off(journal, monkeypatch, write) -> None:
    """The writer dies once some of the parts are there."""
    of, name = (journal._others, "run") if hasattr(journal, "_others") else (journal, "_write")
    true, left = getattr(of, name), 3

    async def counted(*given, **named):
        nonlocal left
        left -= 1
        if left < 0:
            raise ConnectionError
        return await true(*given, **named)

    monkeypatch.setattr(of, name, counted)
    with pytest.raises(ConnectionError):
        await write()


@pytest.mark.parametrize("through", [4, 10])
async def test_trimmed_log_goes_on_from_where_it_was_trimmed(journal, through):
    record = await written(journal)
    entries, _ = await taken(journal, record)
    await journal.delete(MODEL)
    kept = [entry for entry in entries if entry.seq > through]
    early = await journal.stage(record, 2)
    await journal.stage_entries(*early.own, entries[1:2], [])
    staged = await journal.stage(record, through)  # what begins elsewhere is thrown away
    assert staged.seq == through
    if kept:
        await journal.stage_entries(*staged.own, kept, [])
    await journal.unstage(record)
    assert list(await journal.read(MODEL, record.incarnation, through)) == kept
    following = await journal.append(
        AppendRequest(MODEL, record.incarnation, b"n" * 16, 10, [rows(1)])
    )
    assert (following.previous, following.seq) == (record.chain, 11)


async def test_copies_versions_and_snapshots_go_under_the_staged_name(journal):
    record = await written(journal)
    entries, _ = await taken(journal, record)
    await journal.delete(MODEL)
    staged = await journal.stage(record, 0)
    name, incarnation = staged.own
    digest = await journal.copy_put(name, incarnation, b"state")
    uses = [CopyUse(entries[2].seq, digest)]
    await journal.stage_entries(name, incarnation, entries, uses)
    version = Version("v", 4, entries[1].chain, digest, 5, created_ms=7, note="a note")
    await journal.version_put(name, incarnation, version)
    assert await journal.snapshot_put(name, incarnation, 4, entries[1].chain, b"snapshot")
    await journal.unstage(record)
    own = MODEL, record.incarnation
    assert await journal.versions(*own) == [version]
    assert await journal.copy_uses(*own) == uses
    assert await journal.copy_get(*own, digest) == b"state"
    found = await journal.snapshot_get(*own)
    assert (found.seq, found.data) == (4, b"snapshot")


async def test_identity_is_told_without_being_claimed(journal):
    assert await journal.identity() is None
    await journal.claim_identity("one")
    assert await journal.identity() == "one"


async def test_what_goes_between_two_looks_at_redis_is_left_out(redis_store: Store, monkeypatch):
    async with redis_store.journal() as journal:
        record = await written(journal)
        own = record.id, record.incarnation
        waiting = [ToRemember(b"\6" + id_, b"row", b"", 60.0) for id_ in (b"a", b"b")]
        await journal.remember(*own, waiting)
        read, found = journal._read, {}

        async def seen_before(*command):
            answer = found[command[2]] = await read(*command)
            gone, key = answer[0], command[3]
            name = key.replace(b"nonceq", b"nonces").replace(b"waitq", b"waits")
            await journal._others.call("HDEL", name, gone)
            return answer

        monkeypatch.setattr(journal, "_read", seen_before)
        appends = await journal.kept_appends(*own)
        assert [kept.nonce for kept in appends] == found["LRANGE"][:0:-1]
        rows_left, _ = await journal.kept_rows(*own, 0)
        assert [row.key for row in rows_left] == found["ZRANGE"][1:]
