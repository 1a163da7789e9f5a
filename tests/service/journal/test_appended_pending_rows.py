"""Appends that store pending rows: the record and the row are both there, or neither."""

import asyncio
import os

import msgspec
import pytest

from dualstream.service.journal.protocol import (
    Appended,
    CursorMove,
    Journal,
    JournalUnavailable,
    Limits,
    NewPendingRow,
    OutcomeUnknown,
    Part,
    PartPosition,
    TooManyPendingRows,
)
from tests.service.journal.conftest import Store
from tests.service.journal.faulty import Fault, FaultyJournal
from tests.service.journal.groups import (
    Log,
    label_key,
    late_label,
    observed,
    pending_row,
    places as positions,
    request,
    rows,
    whole,
)

pytestmark = pytest.mark.anyio


def answer_to(appended: Appended) -> tuple[PartPosition, ...]:
    return appended.positions


async def waiting(log: Log, *ids: str) -> list[bytes | None]:
    keys = [label_key(id) for id in ids]
    stored = await log.journal.remembered(log.model, log.incarnation, keys)
    return [None if row is None else row.body for row in stored]


async def number(log: Log) -> int:
    models = await log.journal.awaiting_labels()
    return sum(one.rows for one in models if one.model == log.model)


async def test_an_append_journals_a_record_and_stores_its_row(journal: Journal):
    log = await Log.create(journal)
    appended = await log.append(rows(7), observed("a", 1, b"body", b"0", 60), observed("b", 2))
    assert positions(appended) == [(1, 1, "new"), (2, 2, "new"), (3, 3, "new")]
    assert await log.tags() == [7, 1, 2]
    [row] = await journal.remembered(log.model, log.incarnation, [label_key("a")])
    assert (row.body, row.default, row.due_ms - row.time_ms) == (b"body", b"0", 60_000)
    assert await waiting(log, "b") == [b"row"] and await number(log) == 2
    assert await journal.known(log.model, log.incarnation, [label_key("a")]) == [None]
    assert positions(await log.append(late_label("a"))) == [(4, 4, "new")]
    assert await waiting(log, "a", "b") == [None, b"row"] and await number(log) == 1


async def test_a_row_that_waits_or_is_labelled_is_a_duplicate(journal: Journal):
    log = await Log.create(journal)
    await log.append(observed("a", 1), observed("b", 2), observed("a", 3, b"other"))
    await journal.remember(log.model, log.incarnation, [pending_row("c", b"plain")])
    await log.append(late_label("b", 0.0))
    group = [observed("a", 4, b"later"), observed("b", 5), observed("c", 6), observed("d", 8)]
    appended = await log.append(*group)
    assert positions(appended) == [
        (4, 3, "duplicate"),
        (3, 3, "duplicate"),
        (4, 3, "duplicate"),
        (4, 4, "new"),
    ]
    assert [position.count for position in answer_to(appended)] == [0, 1, 0, 1]
    assert await log.tags() == [1, 2, 0, 8]
    assert await waiting(log, "a", "b", "c", "d") == [b"row", None, b"plain", b"row"]
    alone = await log.append(observed("d", 9))
    assert (alone.seq, positions(alone)) == (None, [(5, 4, "duplicate")])


async def test_an_expired_row_is_a_duplicate_while_its_key_is_kept(store: Store):
    async with store.journal(Limits(remember_s=0.01)) as journal:
        log = await Log.create(journal)
        await log.append(observed("a", 1))
        await asyncio.sleep(0.02)
    async with store.journal() as log.journal:
        assert (await log.journal.overdue(log.model, log.incarnation)).expired == 1
        assert positions(await log.append(observed("a", 2))) == [(2, 1, "duplicate")]
    async with store.journal(Limits(remember_s=0.01)) as log.journal:
        await log.append(observed("b", 3))
        while await waiting(log, "b") != [None]:
            await log.journal.overdue(log.model, log.incarnation)
            await asyncio.sleep(0.005)
    async with store.journal() as log.journal:
        assert positions(await log.append(observed("b", 4, b"new"))) == [(3, 3, "new")]
        assert await waiting(log, "b") == [b"new"]


async def test_a_label_in_the_same_append_takes_the_row_along(journal: Journal):
    log = await Log.create(journal)
    appended = await log.append(observed("a", 1), late_label("a"), observed("a", 2))
    assert positions(appended) == [(1, 1, "new"), (2, 2, "new"), (2, 2, "duplicate")]
    assert await waiting(log, "a") == [None] and await number(log) == 0


async def test_a_repeated_nonce_has_the_first_answer_and_stores_nothing(store: Store):
    async with store.journal(Limits(nonces=20)) as journal:
        log = await Log.create(journal)
        nonces = [os.urandom(16) for _ in range(3)]
        groups = [
            [observed("a", 1), observed("b", 2)],
            [observed("a", 3), observed("c", 4)],
            [observed("c", 5)],
        ]
        first = [
            answer_to(await log.append(*group, nonce=nonce))
            for group, nonce in zip(groups, nonces, strict=True)
        ]
        await log.append(late_label("a"), late_label("b"), late_label("c"))
        for group, nonce, before in zip(groups, nonces, first, strict=True):
            assert answer_to(await log.append(*group, nonce=nonce)) == before
        assert await number(log) == 0 and await log.tags() == [1, 2, 4, 0, 0, 0]


async def test_beyond_the_limits_nothing_of_the_append_is_done(store: Store):
    size = len(label_key("a")) + 10
    async with store.journal(Limits(max_remembered=3, remembered_bytes=3 * size)) as journal:
        log = await Log.create(journal)
        await log.append(observed("a", 1, b"." * 10), observed("b", 2, b"." * 10))
        too_many = [observed("c", 3, b"."), observed("d", 4, b".")]
        too_long = [observed("c", 3, b"." * 11)]
        for group in (too_many, too_long):
            with pytest.raises(TooManyPendingRows, match="2 rows of model 'adult'"):
                await log.append(
                    rows(9, id="x"), *group, nonce=(nonce := os.urandom(16)),
                    cursor=CursorMove("in", None, "1"),
                )  # fmt: skip
            with pytest.raises(TooManyPendingRows):
                await log.append(*group, nonce=nonce)
        assert await log.tags() == [1, 2] and await number(log) == 2
        assert await journal.cursor(log.model, log.incarnation, "in") is None
        assert await waiting(log, "c", "d") == [None, None]
        assert positions(await log.append(rows(9, id="x"), observed("a", 5))) == [
            (3, 3, "new"),
            (4, 3, "duplicate"),
        ]
        await log.append(late_label("a"))
        assert positions(await log.append(*too_many[:1])) == [(5, 5, "new")]


async def test_rows_of_a_request_are_stored_with_it_or_not_at_all(journal: Journal):
    log = await Log.create(journal)
    await log.append(rows(1, id="x", payload="one"))
    bad = whole(*request("r", observed("a", 2), rows(3, id="x", payload="two")))
    appended = await log.append(*bad, observed("a", 4, b"alone"))
    assert [position.refused for position in answer_to(appended)] == [True] * 3 + [False]
    assert await waiting(log, "a") == [b"alone"]
    good = request("s", observed("a", 5), observed("b", 6))
    assert positions(await log.append(*good)) == [(3, 2, "new"), (3, 2, "duplicate"), (3, 3, "new")]
    again = await log.append(*request("s", observed("a", 5), observed("c", 7)))
    assert {what for *_, what in positions(again)} == {"duplicate"}
    assert await waiting(log, "c") == [None] and await log.tags() == [1, 4, 6]


@pytest.mark.parametrize("fault", list(Fault))
async def test_a_lost_answer_doubles_nothing(journal: Journal, fault: Fault):
    log = await Log.create(FaultyJournal(journal, [fault, fault]))
    nonce = os.urandom(16)
    while True:
        try:
            appended = await log.append(observed("a", 1), nonce=nonce)
            break
        except (OutcomeUnknown, JournalUnavailable):
            assert len(await log.tags()) == await number(log)
    assert positions(appended) == [(1, 1, "new")]
    assert await log.tags() == [1] and await number(log) == 1


async def test_two_that_append_one_row_store_it_once(store: Store):
    async with store.journal() as one, store.journal() as other:
        log = await Log.create(one)
        second = Log(other, log.record)
        answers = await asyncio.gather(
            log.append(observed("a", 1)), second.append(observed("a", 2))
        )
        assert sorted(position.duplicate for got in answers for position in answer_to(got)) == [
            False,
            True,
        ]
        assert len(await log.tags()) == 1 == await number(log)


@pytest.mark.parametrize("key", [None, label_key("b")])
async def test_a_part_must_have_the_key_of_its_row(journal: Journal, key: bytes | None):
    log = await Log.create(journal)
    wrong = msgspec.structs.replace(rows(1), key=key, pending=NewPendingRow(label_key("a"), b"."))
    assert isinstance(wrong, Part)
    with pytest.raises(ValueError, match="another key than its pending row"):
        await log.append(wrong)
    assert await log.tags() == []
