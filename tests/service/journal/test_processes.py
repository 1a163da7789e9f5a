"""Several processes on one store, and processes that are killed."""

import asyncio
import os
import random
from collections.abc import Sequence

import pytest

from dualstream.service.journal.protocol import Journal
from tests.history import Acknowledged, check_history
from tests.redis_server import redis_or_skip
from tests.service.journal.appender import APART, Appender
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log
from tests.service.journal.support import check_audit

pytestmark = pytest.mark.anyio

ROUNDS = int(os.environ.get("DUALSTREAM_CHAOS_ROUNDS", "3"))


def start(
    store: Store, first: int, count: int, size: int, models: Sequence[str] = ("adult",)
) -> Appender:
    return Appender(store.url, models, first, count, size)


def answers(output: bytes) -> list[Acknowledged]:
    """What the process said; a line that the kill cut off was not said."""
    lines = output.decode().split("\n")[:-1]
    return [Acknowledged(*(int(word) for word in line.split())) for line in lines]


async def checked(journal: Journal, said: list[Acknowledged], sent: range) -> int:
    report = await check_history(
        journal,
        "adult",
        said,
        tags_of=lambda result: result.indices.tolist(),
        sent=dict.fromkeys(sent, 1),
    )
    await check_audit(journal, "adult")
    return report.rows


async def test_appenders_in_several_processes_lose_and_double_nothing(store: Store):
    async with store.journal() as journal:
        await Log.create(journal)
        processes = [start(store, 1000 * number, 60, 5) for number in range(4)]
        outputs = await asyncio.gather(*(process.rest() for process in processes))
        assert [process.exitcode for process in processes] == [0] * 4
        said = [answer for output in outputs for answer in answers(output)]
        assert len(said) == 1200
        assert await checked(journal, said, range(4000)) == 1200


async def test_of_processes_that_append_the_same_ids_each_is_journalled_once(store: Store):
    async with store.journal() as journal:
        await Log.create(journal)
        processes = [start(store, 0, 60, 5) for _ in range(3)]
        outputs = await asyncio.gather(*(process.rest() for process in processes))
        said = [answer for output in outputs for answer in answers(output)]
        assert len(said) == 900
        assert await checked(journal, said, range(300)) == 300


async def test_what_a_killed_appender_was_acknowledged_is_journalled_once(store: Store):
    chance = random.Random(11)
    said: list[Acknowledged] = []
    first = 0
    async with store.journal() as journal:
        await Log.create(journal)
        for _ in range(ROUNDS):
            process = start(store, first, 100_000, 3)
            output = await process.line()
            await asyncio.sleep(chance.uniform(0, 0.05))
            process.kill()
            output += await process.rest()
            said += answers(output)
            rows = await checked(journal, said, range(first + 300_000))
            assert rows >= len(set(said))
            # The next process begins with ids that may or may not have been journalled.
            first = said[-1].tag + 1
            first -= first % 3
        sent = range(first + 30)
        process = start(store, first, 10, 3)
        said += answers(await process.rest())
        assert await checked(journal, said, sent) == first + 30


async def test_appends_that_shared_a_transaction_when_killed_are_whole(sqlite_store: Store):
    models = [f"m{number}" for number in range(16)]
    store = sqlite_store
    async with store.journal() as journal:
        for model in models:
            await Log.create(journal, model)
        process = start(store, 0, 100_000, 3, models)
        output = await process.line()
        await asyncio.sleep(0.1)
        process.kill()
        output += await process.rest()
        said = answers(output)
        for n, model in enumerate(models):
            mine = [answer for answer in said if answer.tag // APART == n]
            report = await check_history(
                journal, model, mine, tags_of=lambda result: result.indices.tolist()
            )
            assert report.rows % 3 == 0  # whole appends
            await check_audit(journal, model)
            log = Log(journal, await journal.get(model))
            assert await log.tags() == list(range(n * APART, n * APART + report.rows))


async def test_what_was_acknowledged_outlives_a_killed_redis():
    chance = random.Random(12)
    with redis_or_skip(appendfsync="always") as server:
        store = Store(server.url)
        async with store.journal() as journal:
            await Log.create(journal)
            process = start(store, 0, 400 * ROUNDS, 3)
            output = await process.line()
            for _ in range(ROUNDS):
                await asyncio.sleep(chance.uniform(0, 0.1))
                server.kill()
                server.start()
                output += await process.line()
            output += await process.rest()
            said = answers(output)
            assert await checked(journal, said, range(1200 * ROUNDS)) == 1200 * ROUNDS
