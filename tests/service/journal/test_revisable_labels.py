"""Revisable labels: their rows stay stored, and a label replaces the one that it names."""

import asyncio
import os

import msgspec
import pytest

from dualstream.service.journal.deduplicate import check_parts
from dualstream.service.journal.protocol import AppendRequest, Journal, Limits, TooManyPendingRows
from tests.service.journal.conftest import Store
from tests.service.journal.groups import (
    Log,
    label_key,
    late_label,
    observed,
    pending_row,
    places as positions,
    request,
    revisable,
    rows,
    whole,
)

pytestmark = pytest.mark.anyio

NEW, SAME, OTHER = "new", "duplicate", "conflict"


async def stored(log: Log, id: str) -> tuple[bytes, bytes, int] | None:
    """Body, label and seq of the row under an id."""
    [row] = await log.journal.remembered(log.model, log.incarnation, [label_key(id)])
    return None if row is None else (row.body, row.label, row.seq)


async def remember(log: Log, *ids: str, body: bytes = b"row", default: bytes = b"") -> int:
    some = [pending_row(id, body, default, 60.0) for id in ids]
    return await log.journal.remember(log.model, log.incarnation, some)


async def number(log: Log) -> int:
    models = await log.journal.awaiting_labels()
    return sum(one.rows for one in models if one.model == log.model)


async def test_a_label_replaces_the_one_that_it_names(journal: Journal):
    log = await Log.create(journal)
    await remember(log, "a", "b", default=b"d")
    assert positions(await log.append(revisable("a", "x"))) == [(1, 1, NEW)]
    assert await stored(log, "a") == (b"row", b"x", 1) and await number(log) == 2
    steps = [
        (revisable("a", "x"), (1, 1, SAME)),
        (revisable("a", "x", "y"), (1, 1, SAME)),
        (revisable("a", "x", "x"), (1, 1, SAME)),
        (revisable("a", "y"), (1, 1, OTHER)),
        (revisable("a", "y", "z", 1), (1, 1, OTHER)),
        (revisable("a", "y", "x", 2), (1, 1, OTHER)),
        (revisable("a", "y", "x"), (1, 1, OTHER)),
        (revisable("a", "y", "x", 1, "e"), (2, 2, NEW)),
        (revisable("a", "y", "x", 1), (2, 2, SAME)),
        (revisable("a", "y", "z", 5), (2, 2, SAME)),
        (revisable("a", "x", "y", 2), (2, 2, OTHER)),
        (revisable("a", "x", "ye", 2), (3, 3, NEW)),
    ]
    for part, want in steps:
        assert positions(await log.append(part)) == [want]
    assert await stored(log, "a") == (b"row", b"x", 3)
    [entry] = await journal.known(log.model, log.incarnation, [label_key("a")])
    assert (entry.seq, entry.records) == (3, 1)
    # A plain label finds the key, and the row stays.
    assert positions(await log.append(late_label("a"))) == [(3, 3, OTHER)]
    assert await stored(log, "a") == (b"row", b"x", 3)
    assert positions(await log.append(late_label("b"))) == [(4, 4, NEW)]
    assert await stored(log, "b") is None and await number(log) == 1


async def test_labels_of_one_append_follow_each_other(journal: Journal):
    log = await Log.create(journal)
    await remember(log, "a", "b")
    first = request(
        "r", revisable("a", "x"), revisable("a", "y", "x", -1), revisable("a", "z", "x", -2)
    )
    appended = await log.append(*first, revisable("a", "w", "y", -1), late_label("b"))
    assert positions(appended) == [
        (1, 0, NEW), (1, 1, NEW), (2, 2, NEW), (2, 2, OTHER), (3, 3, NEW), (4, 4, NEW),
    ]  # fmt: skip
    assert await stored(log, "a") == (b"row", b"w", 3) and await number(log) == 1


async def test_a_label_replaces_none_where_no_row_is_labelled(journal: Journal):
    log = await Log.create(journal)
    assert positions(await log.append(revisable("a", "y", "x"))) == [(1, 0, OTHER)]
    await remember(log, "a")
    assert positions(await log.append(revisable("a", "y", "x"))) == [(1, 0, OTHER)]
    assert await stored(log, "a") == (b"row", b"", 0)
    assert positions(await log.append(late_label("a"))) == [(1, 1, NEW)]
    assert positions(await log.append(revisable("a", "y", "x"))) == [(1, 1, OTHER)]
    assert await stored(log, "a") is None
    # A row that is gone is labelled from the record alone, and is not stored again.
    assert positions(await log.append(revisable("b", "x"))) == [(2, 2, NEW)]
    assert await stored(log, "b") is None and await log.tags() == [0, 0]


async def test_a_labelled_row_is_not_stored_again(store: Store):
    async with store.journal(Limits(key_ttl_s=0.001)) as journal:
        log = await Log.create(journal)
        assert await remember(log, "a") == 1
        await log.append(revisable("a", "x"))
        await asyncio.sleep(0.05)
        assert await journal.known(log.model, log.incarnation, [label_key("a")]) == [None]
        assert await remember(log, "a", "b", body=b"again") == 1
        assert positions(await log.append(observed("a", 7, b"again"))) == [(2, 1, SAME)]
        assert await stored(log, "a") == (b"row", b"x", 1) and await number(log) == 2
        assert positions(await log.append(revisable("a", "x"))) == [(1, 1, SAME)]
        assert positions(await log.append(revisable("a", "y", "x", 1))) == [(2, 2, NEW)]


async def test_labelled_rows_count_towards_the_limits_until_they_are_due(store: Store):
    limits = Limits(remember_s=3600.0, max_remembered=2, key_ttl_s=0.001)
    async with store.journal(limits) as journal:
        log = await Log.create(journal)
        await remember(log, "a", "b")
        await log.append(revisable("a", "x"), late_label("b"))
        assert await number(log) == 1
        await remember(log, "c")
        with pytest.raises(TooManyPendingRows):
            await remember(log, "d")
    # A label restarts the wait of its row, here with one that is soon over.
    async with store.journal(msgspec.structs.replace(limits, remember_s=0.01)) as journal:
        log.journal = journal
        await log.append(revisable("a", "y", "x", 1))
        expired = 0
        while await number(log) > 1:
            expired += (await journal.overdue(log.model, log.incarnation)).expired
            await asyncio.sleep(0.01)
        assert expired == 0 and await stored(log, "a") is None
    async with store.journal(limits) as journal:
        log.journal = journal
        assert await remember(log, "a", body=b"new") == 1
        assert await stored(log, "a") == (b"new", b"", 0)
        with pytest.raises(TooManyPendingRows):
            await remember(log, "d")


async def test_bytes_are_those_of_the_rows(store: Store):
    row = len(label_key("a")) + len(b"row")
    async with store.journal(Limits(remembered_bytes=2 * row + 9)) as journal:
        log = await Log.create(journal)
        for _ in range(30):
            await remember(log, "a")
            await log.append(revisable("a", "x"))
            await log.append(revisable("a", "y", "x", 1), revisable("a", "x", "y", -1))
            await journal.forget_labelled(log.model, log.incarnation, label_key("a"))
            assert await stored(log, "a") is None and await number(log) == 0
            with pytest.raises(TooManyPendingRows):
                await remember(log, "b", body=b"." * (2 * row + 9))
            log = await Log.create(journal, f"{log.model}+")
        await remember(log, "a")
        await remember(log, "b")


async def test_only_labelled_rows_are_forgotten(journal: Journal):
    log = await Log.create(journal)
    await remember(log, "a")
    for id in ("a", "b"):
        await journal.forget_labelled(log.model, log.incarnation, label_key(id))
    assert await stored(log, "a") == (b"row", b"", 0)
    await log.append(revisable("a", "x"))
    await journal.forget_labelled(log.model, log.incarnation, label_key("a"))
    assert await stored(log, "a") is None and await journal.awaiting_labels() == []
    assert positions(await log.append(revisable("a", "y", "x"))) == [(1, 1, OTHER)]


async def test_a_row_with_a_default_label_gets_it_no_more(store: Store):
    async with store.journal() as journal:
        log = await Log.create(journal)
        some = [pending_row(id, default=b"d") for id in "ab"]
        await journal.remember(log.model, log.incarnation, some)
        await log.append(revisable("a", "x"))
        due = await journal.overdue(log.model, log.incarnation)
        assert [row.key for row in due.rows] == [label_key("b")] and due.expired == 0
        assert await stored(log, "a") == (b"row", b"x", 1)


async def test_of_two_that_replace_one_label_one_does(store: Store):
    async with store.journal() as one, store.journal() as other:
        log = await Log.create(one)
        await remember(log, "a")
        await log.append(revisable("a", "x"))

        async def append(journal: Journal, label: str):
            parts = [revisable("a", label, "x", 1)]
            nonce = os.urandom(16)
            return await journal.append(AppendRequest(log.model, log.incarnation, nonce, 1, parts))

        answers = await asyncio.gather(append(one, "y"), append(other, "z"))
        assert sorted(positions(answer)[0][2] for answer in answers) == [OTHER, NEW]
        row = await stored(log, "a")
        assert row is not None and row[1] in (b"y", b"z") and row[2] == 2


async def test_a_repeated_append_replaces_once(store: Store):
    async with store.journal() as journal:
        log = await Log.create(journal)
        await remember(log, "a")
        await log.append(revisable("a", "x"))
        nonce = os.urandom(16)
        for _ in range(2):
            appended = await log.append(revisable("a", "y", "x", 1), nonce=nonce)
            assert positions(appended) == [(2, 2, NEW)]
        assert await stored(log, "a") == (b"row", b"y", 2) and await log.last_seq() == 2


def test_an_all_or_nothing_request_has_no_revisable_label():
    for parts in (whole(revisable("a", "x")), whole(rows(1), revisable("a", "x"))):
        with pytest.raises(ValueError, match="revisable"):
            check_parts(bytes(16), parts)


async def test_labelled_rows_are_deleted_in_bounded_steps(store: Store):
    count = 1200
    async with store.journal(Limits(remember_s=0.01)) as journal:
        log = await Log.create(journal)
        for first in range(0, count, 300):
            ids = [f"{number}" for number in range(first, first + 300)]
            some = [pending_row(id, default=b"d", wait_s=1000) for id in ids]
            await journal.remember(log.model, log.incarnation, some)
            await log.append(*[revisable(id, "x") for id in ids])
        await asyncio.sleep(0.05)
        left = [await number(log)]
        while left[-1]:
            await journal.overdue(log.model, log.incarnation)
            left.append(await number(log))
        steps = [before - after for before, after in zip(left, left[1:], strict=False)]
        assert left[0] == count and 0 < min(steps) and max(steps) <= 1100
