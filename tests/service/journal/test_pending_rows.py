"""Pending rows: stored, bounded, deleted with their label or on expiry."""

import asyncio
import os

import pytest

from dualstream.service.journal.protocol import (
    DEFAULT_LIMITS,
    AppendRequest,
    AwaitingLabels,
    Journal,
    Limits,
    ModelChanged,
    ModelRecord,
    TooManyPendingRows,
)
from tests.service.journal.groups import (
    CLIENT_SPEC,
    SPEC,
    Part,
    label_key,
    late_label,
    pending_row,
    request,
    rows,
    whole,
)

pytestmark = pytest.mark.anyio
MODEL = "m.1"


async def made(journal: Journal) -> ModelRecord:
    return (await journal.create(MODEL, SPEC, CLIENT_SPEC))[0]


async def append(journal: Journal, record: ModelRecord, *parts: Part):
    return await journal.append(
        AppendRequest(MODEL, record.incarnation, os.urandom(16), 10**9, parts)
    )


async def bodies(journal: Journal, record: ModelRecord, *ids: str) -> list[bytes | None]:
    result = await journal.remembered(MODEL, record.incarnation, [label_key(id) for id in ids])
    return [None if one is None else one.body for one in result]


async def expired_at_last(journal: Journal, record: ModelRecord, count: int) -> None:
    seen = 0
    while seen < count:
        seen += (await journal.overdue(MODEL, record.incarnation)).expired
        await asyncio.sleep(0.005)
    assert seen == count


async def test_a_row_waits_until_its_label_is_journalled(journal):
    record = await made(journal)
    assert await journal.awaiting_labels() == []
    await journal.remember(
        MODEL, record.incarnation, [pending_row("a", b"first"), pending_row("b")]
    )
    assert await bodies(journal, record, "a", "c", "b") == [b"first", None, b"row"]
    assert await journal.awaiting_labels() == [AwaitingLabels(MODEL, record.incarnation, 2, False)]
    # Served again: the newer row waits.
    await journal.remember(MODEL, record.incarnation, [pending_row("a", b"second")])
    assert await bodies(journal, record, "a") == [b"second"]
    assert (await journal.awaiting_labels())[0].rows == 2
    await append(journal, record, late_label("a"))
    assert await bodies(journal, record, "a", "b") == [None, b"row"]
    assert (await journal.awaiting_labels())[0].rows == 1
    await append(journal, record, late_label("b"))
    assert await journal.awaiting_labels() == []
    assert (await journal.get(MODEL)).seq == 2


async def test_only_labels_let_go_of_a_row(journal):
    record = await made(journal)
    await journal.remember(MODEL, record.incarnation, [pending_row("a"), pending_row("b")])
    await append(journal, record, rows(1, id="a"), rows(2, id="b"))
    assert await bodies(journal, record, "a", "b") == [b"row", b"row"]
    await append(journal, record, late_label("a"))
    assert await bodies(journal, record, "a", "b") == [None, b"row"]


async def test_a_row_whose_label_is_known_does_not_wait_again(store):
    mine = (("a", b"1"), ("b", b""))
    again = [pending_row(id, b"again", default, 0.001) for id, default in mine]
    async with store.journal() as journal:
        record = await made(journal)
        inputs = MODEL, record.incarnation
        assert await journal.remember(*inputs, [pending_row("a"), pending_row("b")]) == 2
        await append(journal, record, late_label("a"), late_label("b", 0.0))
        assert await journal.remember(*inputs, again) == 0
        assert await bodies(journal, record, "a", "b") == [None, None]
        assert await journal.awaiting_labels() == []
        # Other rows are stored, and a stored one is replaced as usual.
        for body in (b"row", b"newer"):
            assert await journal.remember(*inputs, [*again, pending_row("c", body)]) == 1
            assert await bodies(journal, record, "a", "b", "c") == [None, None, body]
            assert (await journal.awaiting_labels())[0].rows == 1
        # A sample's id is no label's.
        await append(journal, record, rows(1, id="d"))
        assert await journal.remember(*inputs, [pending_row("d")]) == 1
    # Once the key is forgotten the store no longer knows that the label was learned.
    async with store.journal(Limits(key_ttl_s=0.001)) as journal:
        while await journal.remember(*inputs, again) < 2:
            await asyncio.sleep(0.005)
        assert await bodies(journal, record, "a", "b") == [b"again", b"again"]


async def test_rows_whose_labels_are_known_take_no_room(store):
    row = len(label_key("a")) + 10
    async with store.journal(Limits(max_remembered=1, remembered_bytes=row)) as journal:
        record = await made(journal)
        inputs = MODEL, record.incarnation
        await append(journal, record, late_label("a"))
        assert (
            await journal.remember(
                *inputs, [pending_row("a", b"." * 50), pending_row("b", b"." * 10)]
            )
            == 1
        )
        with pytest.raises(TooManyPendingRows):
            await journal.remember(*inputs, [pending_row("a"), pending_row("c")])
        assert await bodies(journal, record, "a", "b", "c") == [None, b"." * 10, None]


async def test_a_row_that_has_waited_too_long_waits_again_when_it_is_served_again(store):
    async with store.journal(Limits(remember_s=0.2)) as journal:
        record = await made(journal)
        inputs = MODEL, record.incarnation
        await journal.remember(*inputs, [pending_row("a")])
        await expired_at_last(journal, record, 1)
        assert await journal.remember(*inputs, [pending_row("a", b"again", b"1", 1000)]) == 1
        assert await bodies(journal, record, "a") == [b"again"]
        assert (await journal.awaiting_labels())[0].rows == 1


async def test_labels_of_a_request_in_conflict_let_go_of_nothing(journal):
    record = await made(journal)
    await append(journal, record, *request("r", rows(1), payload="one"))
    await journal.remember(MODEL, record.incarnation, [pending_row("a")])
    placement = (
        await append(journal, record, *request("r", late_label("a"), payload="two"))
    ).positions
    assert all(position.conflict for position in placement)
    assert await bodies(journal, record, "a") == [b"row"]
    placement = (await append(journal, record, *request("s", late_label("a")))).positions
    assert not any(position.conflict or position.duplicate for position in placement)
    assert await bodies(journal, record, "a") == [None]


async def test_labels_of_a_whole_request_that_is_refused_let_go_of_nothing(journal):
    record = await made(journal)
    await append(journal, record, rows(1, id="x", payload="one"))
    await journal.remember(MODEL, record.incarnation, [pending_row("a"), pending_row("b")])
    bad = whole(*request("r", late_label("a"), rows(2, id="x", payload="two")))
    placement = (await append(journal, record, *bad, late_label("b"))).positions
    assert [position.refused for position in placement] == [True] * 3 + [False]
    assert await bodies(journal, record, "a", "b") == [b"row", None]
    assert (await append(journal, record, late_label("a"))).seq == 3
    assert await bodies(journal, record, "a") == [None]


async def test_rows_and_bytes_that_wait_are_bounded(store):
    row = len(label_key("a")) + 10
    async with store.journal(Limits(max_remembered=3, remembered_bytes=3 * row)) as journal:
        record = await made(journal)
        keep = lambda *some: journal.remember(MODEL, record.incarnation, some)  # noqa: E731
        await keep(pending_row("a", b"." * 10), pending_row("b", b"." * 10))
        with pytest.raises(TooManyPendingRows, match="2 rows of model 'm.1'"):
            await keep(pending_row("c", b"."), pending_row("d", b"."))
        with pytest.raises(TooManyPendingRows):
            await keep(pending_row("c", b"." * 11))
        assert await bodies(journal, record, "a", "c", "d") == [b"." * 10, None, None]
        await keep(
            pending_row("b", b"." * 10), pending_row("c", b"." * 5), pending_row("c", b"." * 10)
        )
        await append(journal, record, late_label("a"))
        await keep(pending_row("d", b"." * 10))
        with pytest.raises(TooManyPendingRows):
            await keep(pending_row("e", b"."))


async def test_an_expired_row_is_known_as_such_for_as_long_again(store):
    async with store.journal(Limits(remember_s=0.01)) as journal:
        record = await made(journal)
        await journal.remember(MODEL, record.incarnation, [pending_row("a"), pending_row("b")])
        while await bodies(journal, record, "a", "b") != [None, None]:
            await journal.overdue(MODEL, record.incarnation)
            await asyncio.sleep(0.005)
        assert await journal.awaiting_labels() == []
        await journal.remember(MODEL, record.incarnation, [pending_row("a"), pending_row("b")])
        while await bodies(journal, record, "a") != [b""]:
            await asyncio.sleep(0.005)
        assert (await journal.awaiting_labels())[0].is_due
    async with store.journal(Limits(remember_s=3600)) as journal:
        await expired_at_last(journal, record, 2)
        [(got, rows_left)] = [(w.model, w.rows) for w in await journal.awaiting_labels()]
        assert (got, rows_left) == (MODEL, 0)
        assert await bodies(journal, record, "a", "b") == [b"", b""]


async def test_a_default_label_is_due_until_it_is_journalled(store):
    async with store.journal(Limits(remember_s=0.05)) as journal:
        record = await made(journal)
        some = [
            pending_row("later", b"2", b"0", 1000),
            pending_row("soon", b"1", b"1", 0.01),
            pending_row("x", b"3"),
            pending_row("sooner", b"0", b"1"),
        ]
        await journal.remember(MODEL, record.incarnation, some)
        await expired_at_last(journal, record, 1)
        result = (await journal.overdue(MODEL, record.incarnation)).rows
        assert [(row.key, row.body, row.default) for row in result] == [
            (label_key("sooner"), b"0", b"1"),
            (label_key("soon"), b"1", b"1"),
        ]
        assert len((await journal.overdue(MODEL, record.incarnation, 1)).rows) == 1
        await append(journal, record, late_label("soon"), late_label("sooner"))
        assert (await journal.overdue(MODEL, record.incarnation)).rows == []
        [later] = await journal.remembered(MODEL, record.incarnation, [label_key("later")])
        assert later.due_ms - later.time_ms == 1_000_000 and 0 <= later.age_s < 1000


async def test_two_that_append_one_label_journal_it_once(store):
    async with store.journal() as one, store.journal() as other:
        record = await made(one)
        await one.remember(MODEL, record.incarnation, [pending_row("a", default=b"0")])
        said = await asyncio.gather(
            *(append(j, record, late_label("a", y)) for j, y in ((one, 1.0), (other, 0.0)))
        )
        positions = sorted((a.positions[0] for a in said), key=lambda position: position.conflict)
        assert [position.conflict for position in positions] == [False, True]
        assert {position.seq for position in positions} == {1} and (await one.get(MODEL)).seq == 1


async def test_deleted_model_has_no_pending_rows(journal):
    record = await made(journal)
    await journal.remember(MODEL, record.incarnation, [pending_row("a")])
    await journal.delete(MODEL)
    assert await journal.awaiting_labels() == []
    with pytest.raises(ModelChanged):
        await journal.remember(MODEL, record.incarnation, [pending_row("a")])
    again = await made(journal)
    assert await bodies(journal, again, "a") == [None]
    for call in (journal.remembered(MODEL, record.incarnation, [label_key("a")]),
                  journal.overdue(MODEL, record.incarnation)):  # fmt: skip
        with pytest.raises(ModelChanged):
            await call


def test_a_row_waits_for_a_day_unless_it_is_set_otherwise():
    assert DEFAULT_LIMITS.remember_s == 86400
