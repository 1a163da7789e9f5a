"""The stores answer alike: the rules of an append are written twice, in Python and in Lua."""

import random
from collections import Counter

import pytest

from dualstream.service.journal.protocol import (
    CursorMove,
    CursorMoved,
    Limits,
    LogPosition,
    NonceForgotten,
    Part,
)
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log, observed, rows, some_group

pytestmark = pytest.mark.anyio


async def ends_of(log: Log) -> list[LogPosition]:
    """The ends of its entries."""
    entries = await log.journal.read(log.model, log.incarnation, 0)
    return [
        LogPosition(0, log.record.chain),
        *(LogPosition(entry.seq, entry.chain) for entry in entries),
    ]


@pytest.mark.parametrize("seed", range(4))
async def test_appends_that_are_repeated_late_have_the_same_answers(
    sqlite_store: Store, redis_store: Store, seed: int
):
    """Of rows without keys: what was left out SQLite remembers longer."""
    chance = random.Random(seed)
    few = Limits(nonces=4)
    async with sqlite_store.journal(few) as one, redis_store.journal(few) as other:
        logs = [await Log.create(one), await Log.create(other)]
        requests: list[tuple[bytes, int, list[Part]]] = []
        got = Counter[str]()
        for _ in range(120):
            is_repeated = bool(requests) and chance.random() < 0.4
            if not is_repeated:
                group = [rows(chance.randrange(1000)) for _ in range(chance.randint(1, 3))]
                requests.append((chance.randbytes(16), len(await ends_of(logs[0])) - 1, group))
            nonce, number, group = chance.choice(requests) if is_repeated else requests[-1]
            answers = []
            for log in logs:
                position = (await ends_of(log))[number]
                if chance.random() < 0.05:
                    position = LogPosition(position.seq, 40 * "0")
                options = {"repeats": position} if is_repeated else {}
                try:
                    appended = await log.append(
                        *group, nonce=nonce, known_seq=position.seq, **options
                    )
                    answers.append((appended.positions, appended.first_seq, appended.seq))
                except NonceForgotten:
                    answers.append("forgotten")
            got["forgotten" if answers[0] == "forgotten" else "got"] += is_repeated
            assert len(set(answers)) == 1 or "forgotten" in answers
        read = [await log.journal.read(log.model, log.incarnation, 0) for log in logs]
        for entries in read:
            nonces = [entry.nonce for entry in entries]
            assert len(nonces) == len(set(nonces)) > 40
        assert got["got"] > 30


@pytest.mark.parametrize("seed", range(6))
async def test_the_same_appends_have_the_same_answers(
    sqlite_store: Store, redis_store: Store, seed: int
):
    chance = random.Random(seed)
    refused, labelled = Counter[bool](), 0
    async with sqlite_store.journal() as one, redis_store.journal() as other:
        logs = [await Log.create(one), await Log.create(other)]
        nonces = [bytes(16)]
        for log in logs:
            waiting_rows = [observed(id, number) for number, id in enumerate("ABC")]
            await log.append(*waiting_rows, nonce=b"\1" * 16)
        for _ in range(60):
            group, known_seq = some_group(chance), chance.randrange(1 + logs[0].known_seq)
            if chance.random() < 0.9:
                nonces.append(chance.randbytes(16))
            nonce = nonces[-1]
            cursor = None
            if chance.random() < 0.2:
                values = [None, "1", "2"]
                cursor = CursorMove("in", chance.choice(values), chance.choice(values))
            answers = []
            for log in logs:
                try:
                    appended = await log.append(
                        *group, nonce=nonce, known_seq=known_seq, cursor=cursor
                    )
                    where = (appended.first_seq, appended.seq, appended.more)
                    seen = [(e.first_seq, e.seq, e.nonce, e.body) for e in appended.entries]
                    answers.append((appended.positions, where, seen))
                except CursorMoved as moved:
                    answers.append(moved.value)
            assert answers[0] == answers[1]
            if isinstance(answers[0], tuple):
                refused.update(position.refused for position in answers[0][0])
            keys = [key for key in {part.key for part in group} if key is not None]
            results = [await log.journal.known(log.model, log.incarnation, keys) for log in logs]
            assert results[0] == results[1]
            waiting = [
                await log.journal.remembered(log.model, log.incarnation, keys) for log in logs
            ]
            stored = [[row and (row.body, row.label, row.seq) for row in rows] for rows in waiting]
            labelled += sum(1 for row in stored[0] if row and row[2])
            assert stored[0] == stored[1]
            sums = [await log.journal.awaiting_labels() for log in logs]
            assert [one.rows for one in sums[0]] == [one.rows for one in sums[1]]
            cursors = [await log.journal.cursors(log.model, log.incarnation, "") for log in logs]
            assert cursors[0] == cursors[1]
        read = [await log.journal.read(log.model, log.incarnation, 0) for log in logs]
        bodies = [[(e.first_seq, e.seq, e.nonce, e.body) for e in entries] for entries in read]
        assert bodies[0] == bodies[1]
        assert len(bodies[0]) > 10
        assert refused[True] and refused[False] > 50 and labelled > 2
