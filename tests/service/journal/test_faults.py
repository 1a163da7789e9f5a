"""Answers that are lost: what is repeated with the same nonce is not doubled."""

import asyncio
import os
import random

import pytest

from dualstream.service.journal.protocol import (
    Appended,
    CursorMove,
    Journal,
    JournalUnavailable,
    OutcomeUnknown,
    Part,
)
from tests.history import Acknowledged, check_history
from tests.service.journal.faulty import Fault, FaultyJournal
from tests.service.journal.groups import Log, places, rows

pytestmark = pytest.mark.anyio


async def until_known(log: Log, *parts: Part, **options: object) -> Appended:
    """Repeat an append with the same nonce, from the same place, until its outcome is known."""
    nonce, known_seq = os.urandom(16), log.known_seq
    while True:
        try:
            return await log.append(*parts, nonce=nonce, known_seq=known_seq, **options)
        except (OutcomeUnknown, JournalUnavailable):
            pass


@pytest.mark.parametrize("fault", list(Fault))
async def test_an_append_repeated_with_its_nonce_is_journalled_once(journal: Journal, fault: Fault):
    faulty = FaultyJournal(journal, [fault, fault])
    log = await Log.create(faulty)
    appended = await until_known(log, rows(1, 2), cursor=CursorMove("in", None, "1"))
    assert places(appended) == [(1, 2, "new")]
    assert await log.tags() == [1, 2]


async def test_an_append_repeated_with_another_nonce_is_doubled(journal: Journal):
    """Why the nonce is there."""
    log = await Log.create(FaultyJournal(journal, [Fault.UNANSWERED]))
    with pytest.raises(OutcomeUnknown):
        await log.append(rows(1))
    await log.append(rows(1))
    assert await log.tags() == [1, 1]


async def test_nothing_is_lost_or_doubled_under_faults_at_random(journal: Journal):
    chance = random.Random(4)
    faults = (chance.choice(list(Fault)) for _ in range(400))
    faulty = FaultyJournal(journal, faults, delay_s=0.001)
    logs = [await Log.create(faulty) for _ in range(8)]
    answers: list[Acknowledged] = []

    async def appends(log: Log, start: int) -> None:
        for tag in range(start, start + 25):
            appended = await until_known(log, rows(tag), rows(tag + 100_000))
            for position, seen in zip(appended.positions, (tag, tag + 100_000), strict=True):
                answers.append(Acknowledged(seen, position.seq))

    await asyncio.gather(*(appends(log, 1000 * n) for n, log in enumerate(logs)))
    report = await check_history(
        journal, "adult", answers, tags_of=lambda result: result.indices.tolist()
    )
    assert (report.rows, report.acknowledged, report.unacknowledged) == (400, 400, 0)


async def test_what_is_not_append_is_passed_on(journal: Journal):
    faulty = FaultyJournal(journal)
    await faulty.ping()
    assert faulty.durability() == journal.durability()
