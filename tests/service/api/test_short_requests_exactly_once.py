"""Short requests whose store refuses, loses answers or hangs, and whose clients leave."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import redis

from dualstream.service.journal.record import Rows
from dualstream.service.models import model as models
from tests.history import Acknowledged, check_history
from tests.redis_server import redis_or_skip
from tests.service.api.wire import (
    Line,
    Paused,
    Server,
    answered,
    body_of,
    comparable,
    put,
    request,
    run,
    serving,
    wrap,
)
from tests.service.conftest import SPEC
from tests.service.journal.faulty import Fault, FaultyJournal

FAULTS = [*Fault, Fault.REFUSED, Fault.LOST, Fault.UNANSWERED]


@pytest.fixture
def store(tmp_path) -> str:
    return f"sqlite:///{tmp_path / 'a.db'}"


def learn(value: int, model: str = "m") -> bytes:
    """Learn of a row which has this value, and after every 100 without key and id, one of them."""
    id_ = b',"id":"%d"' % value if has_key(value) and value % 2 else b""
    headers = [("idempotency-key", f"{value}")] if has_key(value) and not value % 2 else []
    body = b'{"x":{"1":%d},"y":1%b}' % (value, id_)
    return request("POST", f"/models/{model}/learn", body, headers)


def has_key(value: int) -> bool:
    """Has the row with this value a key or an id?"""
    return value % 200 >= 100


def values_of(rows: Rows) -> list[int]:
    return [int(rows.values[first]) for first in rows.indptr[:-1]]


class Clients:
    """Clients that send values."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._lines: dict[int, Line] = {}
        self._left: set[int] = set()

    def send(self, values: list[int], leaving: list[int]) -> None:
        """Send each value on a connection of its own; some end at once."""
        for value in values:
            one, self._lines[value] = self._server.connect()
            one.data_received(learn(value))
            if value in leaving:
                self._lines[value].close()
                one.connection_lost(None)
        self._left = self._left.difference(values).union(leaving)

    async def repeat(self) -> None:
        """Send all values with keys and ids again. Each is acknowledged."""
        values = [value for value in self._lines if has_key(value)]
        for first in range(0, len(values), 150):
            self.send(values[first : first + 150], [])
            await self.answers()
        answers = await self.answers()
        assert all(answers[value].startswith(b"HTTP/1.1 200") for value in values)

    async def answers(self) -> dict[int, bytes]:
        """The answers to all values, but of clients that have left."""
        lines = self._lines.items()
        return {v: (await answered(line, 1))[0] for v, line in lines if v not in self._left}

    async def check(self) -> Counter[str]:
        """Compare all answers with the journal and the state. Returns their kinds."""
        kinds: Counter[str] = Counter()
        acknowledged, sent = [], dict.fromkeys(self._lines, 1)
        for value, answer in (await self.answers()).items():
            result = body_of(answer)
            if answer.startswith(b"HTTP/1.1 200"):
                acknowledged.append(Acknowledged(value, result["seq"]))
                kinds["learned"] += 1
            elif result["status"] == 503 and result.get("outcome") == "unknown":
                kinds["unknown"] += 1
            else:
                assert result["status"] == 503, result
                kinds["refused"] += 1
                sent[value] = 0
        registry = self._server.app._registry
        while registry.waiting:  # rows of clients that have left
            await asyncio.sleep(0.001)
        model = await registry.get("m")
        await model.refresh()
        samples = model.replica.learner.samples
        report = await check_history(
            registry.journal, "m", acknowledged, tags_of=values_of, sent=sent, samples=samples
        )
        kinds["journalled unknown"] = report.unacknowledged
        return kinds


@pytest.mark.parametrize("timeout_s", [0.0, models.MAX_APPEND_S])
def test_rows_of_failed_groups_are_journalled_once_or_not_at_all(store, timeout_s, monkeypatch):
    """Unknown outcomes reach the clients at once, or the group is appended again."""
    monkeypatch.setattr(models, "MAX_APPEND_S", timeout_s)
    chance = random.Random(5)

    async def main() -> None:
        async with serving(store) as server:
            await server.ask(put("m", SPEC))
            faults = iter(lambda: chance.choice(FAULTS), None)
            wrap(server, lambda journal: FaultyJournal(journal, faults, 0.002))
            clients, value = Clients(server), 0
            for number in range(60):
                if number % 10 == 0:
                    await clients.answers()  # more at once are refused as overload
                values = list(range(value + 1, value + 1 + chance.choice([1, 3, 40])))
                leaving = [one for one in values if chance.random() < 0.2]
                clients.send(values, leaving)
                value = values[-1]
                for _ in range(chance.choice([0, 1, 5, 50])):
                    await asyncio.sleep(0)
            kinds = await clients.check()
            assert kinds["learned"] > 100
            assert timeout_s or (kinds["refused"] and kinds["unknown"])
            del server.app._registry.journal.append  # the store works again
            await clients.repeat()
            assert (await clients.check())["learned"] >= kinds["learned"]

    run(main)


@pytest.mark.parametrize("first", [1, 101])
def test_a_model_whose_append_hangs_delays_no_other(store, first):
    async def main() -> None:
        async with serving(store) as server:
            await server.ask(put("m", SPEC), put("n", SPEC))
            paused = wrap(server, Paused)
            clients = Clients(server)
            clients.send([first, first + 1], [])
            await paused.waits.wait()
            clients.send([first + 2, first + 3], [])
            others = [await server.ask(*[learn(1, "n")] * 3) for _ in range(10)]
            seqs = [body_of(answer)["seq"] for answers in others for answer in answers]
            assert sorted(seqs) == list(range(1, 31))
            row = request("GET", "/models/m/predict?x=1:1")
            assert [body_of(answer)["seq"] for answer in await server.ask(row, row)] == [0, 0]
            assert not paused.released.is_set() and len(server.app._registry.waiting) == 4
            paused.released.set()
            assert await clients.check() == {"learned": 4, "journalled unknown": 0}

    run(main)


@pytest.mark.parametrize("first", [1, 101])
def test_groups_that_wait_for_a_hanging_append_end_after_the_timeout(store, first):
    async def main() -> None:
        async with serving(store, request_timeout_s=0.8) as server:
            await server.ask(put("m", SPEC))
            paused = wrap(server, Paused)
            clients = Clients(server)
            values = list(range(first, first + 8))
            clients.send(values[:3], values[2:3])
            await paused.waits.wait()
            clients.send(values[3:6], values[5:6])
            answers = await clients.answers()
            assert [body_of(answer)["outcome"] for answer in answers.values()] == ["unknown"] * 4
            server.app._registry.waiting.timeout_s = 60.0
            paused.released.set()
            clients.send(values[6:], [])
            kinds = await clients.check()
            assert (kinds["learned"], kinds["unknown"]) == (2, 4)

    run(main)


async def fill_sqlite(server: Server) -> Callable[[], Awaitable[Any]]:
    """Leave room for a few pages. Returns what makes room."""

    async def limit(pages: int) -> int:
        execute = f"PRAGMA max_page_count = {pages}"
        journal = server.app._registry.journal
        return (await journal._writer.run(lambda db: db.execute(execute).fetchone()))[0]

    await limit(await limit(1) + 4)  # the limit is never below the present number
    return partial(limit, 1 << 30)


async def fill_redis(server: Server) -> Callable[[], Awaitable[Any]]:
    """Leave no room. Returns what makes room."""

    async def limit(size: int) -> None:
        with redis.Redis.from_url(server.app._registry.settings.store) as store:
            store.config_set("maxmemory", size)

    await limit(1)
    return partial(limit, 0)


async def refused_by_asgi(server: Server) -> bytes:
    """The ordinary answer of a full store."""
    learn_by_asgi = request("POST", "/models/n/learn", b'{"x":{"1":1},"y":1}', [("x-unusual", "1")])
    while True:
        [answer] = await server.ask(learn_by_asgi)
        if not answer.startswith(b"HTTP/1.1 200"):
            return answer


async def check_full_store(url: str, fill: Callable[[Server], Awaitable[Any]]) -> None:
    """Each row gets the ordinary refusal, and is learned once when there is room again."""
    async with serving(url) as server:
        await server.ask(put("m", SPEC), put("n", SPEC))
        clients = Clients(server)
        clients.send([1, 2, 101, 102], [])
        await clients.answers()
        make_room = await fill(server)
        for first in range(201, 1201, 50):
            clients.send(list(range(first, first + 50)), [])
            await clients.answers()
        ordinary = comparable(await refused_by_asgi(server)).replace(b"/n/", b"/m/")
        clients.send(list(range(1201, 1401)), [])
        answers = (await clients.answers()).values()
        assert ordinary in {comparable(answer) for answer in answers}
        refused = await clients.check()
        assert refused["refused"] > 400 and not refused["unknown"], refused
        await make_room()
        await clients.repeat()
        clients.send(list(range(1401, 1501)), [])
        assert (await clients.check())["learned"] >= refused["learned"] + 100


def test_a_full_sqlite_store_refuses_rows_until_there_is_room(store):
    run(lambda: check_full_store(store, fill_sqlite))


def test_a_full_redis_refuses_rows_until_there_is_room():
    with redis_or_skip() as store:
        run(lambda: check_full_store(store.url, fill_redis))
