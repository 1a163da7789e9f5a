"""Creating, finding, listing, replacing and deleting models, on every store."""

import asyncio
import time

import pytest

from dualstream.service.journal.chain import first_chain
from dualstream.service.journal.protocol import (
    Conflict,
    CursorMove,
    Journal,
    LogPosition,
    ModelChanged,
    UnknownModel,
)
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log, places, rows

pytestmark = pytest.mark.anyio


async def test_a_created_model_is_found_as_it_was_made(journal: Journal):
    before = time.time() * 1000 - 1
    record, is_created = await journal.create("adult", b"\x00spec", b"given\xff")
    assert is_created
    assert (record.id, record.spec, record.given) == ("adult", b"\x00spec", b"given\xff")
    assert (record.seq, record.chain) == (0, first_chain(record.incarnation))
    assert before <= record.created_ms <= time.time() * 1000 + 1
    assert await journal.get("adult") == record


async def test_an_existing_model_is_returned_unchanged(journal: Journal):
    log = await Log.create(journal)
    await log.append(rows(1, 2))
    record, is_created = await journal.create(log.model, b"other", b"other")
    assert not is_created
    assert record == await journal.get(log.model)
    assert (record.spec, record.seq) == (log.record.spec, 2)


async def test_of_concurrent_creations_one_is_made(store: Store):
    async with store.journal() as first, store.journal() as second:
        answers = await asyncio.gather(
            *(journal.create("adult", b"", b"") for journal in (first, second) for _ in range(4))
        )
        assert sum(is_created for _, is_created in answers) == 1
        assert len({record.incarnation for record, _ in answers}) == 1


async def test_an_unknown_model_is_named(journal: Journal):
    with pytest.raises(UnknownModel, match="nobody"):
        await journal.get("nobody")
    with pytest.raises(UnknownModel):
        await journal.delete("nobody")
    with pytest.raises(UnknownModel):
        await journal.replace("nobody", "", 0, "", b"", b"")


async def test_models_are_listed_in_pages(journal: Journal):
    names = ["B", "a", "a-1", "a.b", "a1", "b", "z"]
    for name in reversed(names):
        await journal.create(name, b"", b"")
    assert await journal.count() == 7
    assert [record.id for record in await journal.list()] == names
    pages = [await journal.list(after, 3) for after in ("", "a-1", "b", "z")]
    assert [[record.id for record in page] for page in pages] == [
        ["B", "a", "a-1"],
        ["a.b", "a1", "b"],
        ["z"],
        [],
    ]
    assert pages[0][1] == await journal.get("a")


async def test_a_deleted_model_is_neither_found_nor_listed(journal: Journal):
    log = await Log.create(journal)
    await Log.create(journal, "other")
    await log.append(rows(1))
    await journal.delete(log.model)
    with pytest.raises(UnknownModel):
        await journal.get(log.model)
    assert [record.id for record in await journal.list()] == ["other"]
    assert await journal.count() == 1


async def test_a_model_of_another_incarnation_is_not_deleted(journal: Journal):
    log = await Log.create(journal)
    with pytest.raises(ModelChanged):
        await journal.delete(log.model, "another")
    await journal.delete(log.model, log.incarnation)
    with pytest.raises(UnknownModel):
        await journal.delete(log.model, log.incarnation)


async def test_a_model_that_has_moved_on_is_not_deleted(journal: Journal):
    log = await Log.create(journal)
    appended = await log.append(rows(1))
    for seq, chain in ((0, log.record.chain), (0, appended.chain), (1, log.record.chain)):
        with pytest.raises(Conflict, match="is at seq 1"):
            await journal.delete(log.model, log.incarnation, None, LogPosition(seq, chain))
    with pytest.raises(ModelChanged):
        await journal.delete(log.model, "another", None, LogPosition(1, appended.chain))
    assert await log.tags() == [1]
    await journal.delete(log.model, log.incarnation, None, LogPosition(1, appended.chain))
    with pytest.raises(UnknownModel):
        await journal.delete(log.model, None, None, LogPosition(1, appended.chain))


async def test_nothing_of_a_deleted_model_answers(journal: Journal):
    log = await Log.create(journal)
    appended = await log.append(rows(1))
    await journal.delete(log.model)
    await Log.create(journal, log.model)
    where = (log.model, log.incarnation)
    with pytest.raises(ModelChanged):
        await journal.read(*where, 0)
    with pytest.raises(ModelChanged):
        await journal.trim(*where, 1)
    with pytest.raises(ModelChanged):
        await journal.snapshot_put(*where, 1, appended.chain, b"state")
    with pytest.raises(ModelChanged):
        await journal.snapshot_get(*where)
    with pytest.raises(ModelChanged):
        await journal.cursor(*where, "in")
    with pytest.raises(ModelChanged):
        await journal.cursors(*where, "")


async def test_replaced_model_starts_empty(journal: Journal):
    log = await Log.create(journal)
    appended = await log.append(rows(1, id="a"), cursor=CursorMove("in", None, "1"))
    where = (log.model, log.incarnation, 1, appended.chain)
    record = await journal.replace(*where, b"new", b"given")
    assert await journal.cursors(log.model, record.incarnation, "") == {}
    assert (record.spec, record.given, record.seq) == (b"new", b"given", 0)
    assert record.incarnation != log.incarnation
    assert await journal.get(log.model) == record
    with pytest.raises(ModelChanged):
        await log.append(rows(2))
    new = Log(journal, record)
    assert places(await new.append(rows(3, id="a"))) == [(1, 1, "new")]
    assert await new.tags() == [3]


async def test_a_model_that_has_moved_on_is_not_replaced(journal: Journal):
    log = await Log.create(journal)
    appended = await log.append(rows(1))
    for incarnation, seq, chain in (
        ("another", 1, appended.chain),
        (log.incarnation, 0, appended.chain),
        (log.incarnation, 1, log.record.chain),
    ):
        with pytest.raises(Conflict):
            await journal.replace(log.model, incarnation, seq, chain, b"new", b"given")
    assert await log.tags() == [1]


async def test_of_concurrent_replacements_one_is_made(store: Store):
    async with store.journal() as first, store.journal() as second:
        log = await Log.create(first)
        where = (log.model, log.incarnation, 0, log.record.chain)
        answers = await asyncio.gather(
            *(j.replace(*where, b"", b"") for j in (first, second) for _ in range(4)),
            return_exceptions=True,
        )
        assert sum(isinstance(answer, Conflict) for answer in answers) == 7


async def test_the_first_identity_stays_in_force_until_another_is_adopted(store: Store):
    async with store.journal() as journal, store.journal() as other:
        assert await other.identity() is None
        assert await journal.claim_identity("mine") == "mine"
        assert await other.identity() == "mine"
        assert await other.claim_identity("yours") == "mine"
        await other.adopt_identity("yours")
        assert await journal.identity() == "yours"
        assert await journal.claim_identity("mine") == "yours"


async def test_an_open_journal_answers_a_ping(journal: Journal):
    await journal.ping()
