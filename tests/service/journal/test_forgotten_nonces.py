"""An append that is asked for again after more others than a store keeps nonces of."""

import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dualstream.service.journal.protocol import (
    Appended,
    Journal,
    Limits,
    LogPosition,
    NonceForgotten,
    Part,
)
from dualstream.service.journal.sqlite.append import PURGED_EVERY
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log, keyed, rows

pytestmark = pytest.mark.anyio

KEPT = 5


@pytest.fixture
async def journal(store: Store) -> AsyncIterator[Journal]:
    async with store.journal(Limits(nonces=KEPT)) as journal:
        yield journal


class Asked:
    """An append behind a log of some rows, of which the answer is lost; and the log."""

    def __init__(self, log: Log, place: LogPosition) -> None:
        self.log, self.place, self.nonce = log, place, os.urandom(16)

    @classmethod
    async def behind(cls, journal: Journal, *tags: int) -> "Asked":
        log = await Log.create(journal)
        for tag in tags:
            await log.append(rows(tag, id=str(tag)))
        record = await journal.get(log.model)
        return cls(log, LogPosition(record.seq, record.chain))

    async def ask(self, *parts: Part, **options: Any) -> Appended:
        return await self.log.append(*parts, nonce=self.nonce, known_seq=self.place.seq, **options)

    async def again(self, *parts: Part) -> Appended:
        return await self.ask(*parts, repeats=self.place)

    async def others(self, count: int, first: int = 100) -> None:
        """Append this many other groups."""
        for tag in range(first, first + count):
            await self.log.append(rows(tag))


@pytest.mark.parametrize("before", [(), (1,), (1, 2, 3)])
@pytest.mark.parametrize("between", [1, 0])
async def test_it_is_journalled_once_and_answered_as_the_first_time(
    journal: Journal, before: tuple[int, ...], between: int
):
    request = await Asked.behind(journal, *before)
    await request.others(between, 50)  # whom it did not know of
    first = await request.ask(rows(7, 8), rows(9))
    for _ in range(2):
        await request.others(KEPT)
        assert await request.again(rows(7, 8), rows(9)) == first
    tags = await request.log.tags()
    assert tags[: len(before) + between + 3] == [*before, *range(50, 50 + between), 7, 8, 9]
    assert len(tags) == len(before) + between + 3 + 2 * KEPT


async def test_without_the_place_it_would_be_journalled_twice(journal: Journal):
    request = await Asked.behind(journal, 1)
    await request.ask(rows(7))
    await request.others(KEPT)
    await request.ask(rows(7))
    assert (await request.log.tags()).count(7) == 2


async def test_what_was_not_done_is_done_when_it_is_asked_for_again(journal: Journal):
    request = await Asked.behind(journal, 1)
    await request.others(KEPT + 1)
    appended = await request.again(rows(7))
    assert appended.seq == KEPT + 3
    assert await request.again(rows(7)) == appended
    assert (await request.log.tags()).count(7) == 1


async def test_what_is_known_by_its_key_is_answered_as_known(journal: Journal):
    """It has no entry that tells."""
    request = await Asked.behind(journal, 1)
    first = await request.ask(rows(1, id="1"))
    await request.others(KEPT)
    again = await request.again(rows(1, id="1"))
    assert again.positions == first.positions and again.seq is None


@pytest.mark.parametrize("parts", [[rows(7)], [rows(7), keyed("key", 8)]])
async def test_a_log_that_was_trimmed_does_not_tell(journal: Journal, parts: list[Part]):
    request = await Asked.behind(journal, 1)
    first = await request.ask(*parts)
    await request.others(KEPT)
    assert first.seq is not None
    await journal.trim(request.log.model, request.log.incarnation, first.seq + 1)
    with pytest.raises(NonceForgotten, match="outcome .* is unknown"):
        await request.again(*parts)
    assert await request.log.last_seq() == first.seq + KEPT


async def test_a_log_that_has_lost_the_place_does_not_tell(journal: Journal):
    request = await Asked.behind(journal, 1)
    request.place = LogPosition(1, 40 * "0")
    await request.ask(rows(7))
    await request.others(KEPT)
    with pytest.raises(NonceForgotten):
        await request.again(rows(7))
    request.place = LogPosition(99, 40 * "0")
    with pytest.raises(NonceForgotten):
        await request.again(rows(7))


async def test_where_none_was_forgotten_the_place_does_not_matter(journal: Journal):
    """As behind a failover that lost it: what has not come there is appended."""
    request = await Asked.behind(journal, 1)
    request.place = LogPosition(3, 40 * "0")
    await request.others(KEPT - 2)
    assert (await request.again(rows(7))).seq == KEPT


async def test_an_entry_without_some_of_its_parts_does_not_tell_which(journal: Journal):
    request = await Asked.behind(journal, 1)
    await request.ask(rows(7), rows(1, id="1"))
    await request.others(PURGED_EVERY + KEPT)
    with pytest.raises(NonceForgotten):
        await request.again(rows(7), rows(1, id="1"))
    assert (await request.log.tags()).count(7) == 1


async def test_a_long_body_is_found_too(journal: Journal):
    """Redis stores it outside the log."""
    request = await Asked.behind(journal, 1)
    part = rows(*range(40_000))
    assert len(part.body) > 64 * 1024
    first = await request.ask(part)
    await request.others(KEPT)
    assert await request.again(part) == first
    assert len(await request.log.tags()) == 1 + 40_000 + KEPT
