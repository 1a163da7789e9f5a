"""Appends to several models at the same time: each is all or none for itself."""

import asyncio
import os

import pytest

from dualstream.service.journal.protocol import (
    CursorMove,
    CursorMoved,
    Journal,
    ModelChanged,
    UnknownCopy,
)
from tests.service.journal.groups import Log, places, rows

pytestmark = pytest.mark.anyio


async def logs_of(journal: Journal, count: int) -> list[Log]:
    return [await Log.create(journal, f"m{number}") for number in range(count)]


async def test_concurrent_appends_to_many_models_keep_the_order_of_each(journal: Journal):
    logs = await logs_of(journal, 30)
    appended = await asyncio.gather(
        *(log.append(rows(tag), known_seq=0) for tag in (1, 2, 3) for log in logs)
    )
    for n, log in enumerate(logs):
        assert await log.tags() == [1, 2, 3]
        mine = appended[n::30]
        assert [places(one) for one in mine] == [[(seq, seq, "new")] for seq in (1, 2, 3)]
        # Each gets the entries before its own, also those of the same transaction.
        assert [[entry.seq for entry in one.entries] for one in mine] == [[], [1], [1, 2]]
        assert [one.previous for one in mine[1:]] == [one.chain for one in mine[:-1]]


async def test_a_refused_append_leaves_nothing_and_takes_no_other_with_it(journal: Journal):
    logs = await logs_of(journal, 12)
    gone, moved, uncopied = logs[3:6]
    await journal.delete(gone.model)
    nonces = [os.urandom(16) for _ in logs]
    cursor, copy = CursorMove("in", "elsewhere", "1"), "0" * 64
    options: dict[Log, dict] = {moved: {"cursor": cursor}, uncopied: {"copy": copy}}
    outcomes = await asyncio.gather(
        *(
            log.append(rows(7, id="a"), nonce=nonce, **options.get(log, {}))
            for log, nonce in zip(logs, nonces, strict=True)
        ),
        return_exceptions=True,
    )
    refusals = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert [type(refusal) for refusal in refusals] == [ModelChanged, CursorMoved, UnknownCopy]
    for log in set(logs) - {gone, moved, uncopied}:
        assert await log.tags() == [7]
    for log in (moved, uncopied):
        # Neither entry, head, key, nonce nor cursor was kept.
        assert (await log.tags(), await log.last_seq()) == ([], 0)
        assert await journal.cursor(log.model, log.incarnation, "in") is None
        again = await log.append(rows(8, id="a"), nonce=nonces[logs.index(log)])
        assert places(again) == [(1, 1, "new")]
        assert await log.tags() == [8]


async def test_of_equal_nonces_and_ids_at_once_one_is_journalled(journal: Journal):
    logs, nonce = await logs_of(journal, 4), os.urandom(16)
    await asyncio.gather(*(log.append(rows(1), nonce=nonce) for log in logs for _ in range(3)))
    await asyncio.gather(*(log.append(rows(2, id="a")) for log in logs for _ in range(3)))
    assert [await log.tags() for log in logs] == [[1, 2]] * 4
