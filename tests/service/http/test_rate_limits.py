"""Rate limits of keys: over several workers of one store, by a clock that a test moves."""

import asyncio
import random
from typing import Any

import pytest

from dualstream.service.http.api_keys import ANY, BadKeys, Key, new_key, parse_keys
from dualstream.service.http.rate_limits import BLOCKS_PER_S, RateLimits, TokenStore
from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import Journal, JournalUnavailable
from dualstream.service.journal.rate_buckets import Lease
from dualstream.service.journal.redis.store import RedisJournal
from dualstream.wire.problem_json import Problem
from tests.service.conftest import SPEC, assert_problem

pytestmark = pytest.mark.anyio
RATE = 50
WORKERS = 4


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    monkeypatch.setattr("dualstream.service.http.rate_limits.LEASE_TIMEOUT_S", 60.0)


class Clocked:
    """A store whose clock is the test's; may be away, or not answer."""

    def __init__(self, journal: Journal) -> None:
        self.journal, self.now, self.asked = journal, 1000.0, 0
        self.fault: Exception | None = None

    def clock(self) -> float:
        return self.now

    async def lease(self, bucket: str, rate: int, needed: int, most: int, _: Any = None) -> Lease:
        self.asked += 1
        if self.fault is not None:
            raise self.fault
        lease = await self.journal.lease(bucket, rate, needed, most, round(1000 * self.now))
        if isinstance(self.journal, RedisJournal):  # Redis' own clock deletes a bucket once full
            await self.journal._others.call("PERSIST", f"ds:rate:{bucket}")
        return lease


def a_key(**rates: int | None) -> Key:
    return new_key("k", "learn", **rates)[1]


async def is_let_in(rates: RateLimits, key: Key, rows: int) -> bool:
    limited = rates.of(key)
    assert limited is not None
    try:
        await limited.admit_rows(rows)
    except Problem as refusal:
        assert (refusal.status, refusal.slug) == (429, "rate-exceeded")
        assert refusal.retry_after_s is not None and refusal.retry_after_s >= 1
        return False
    return True


async def test_workers_together_let_in_the_rate_and_no_more_than_is_said(store):
    chance = random.Random(3)
    key, block = a_key(rows=RATE), RATE // BLOCKS_PER_S
    journal = await open_journal(store)
    clocked = Clocked(journal)
    workers = [RateLimits(TokenStore(clocked, clocked.clock), None, None) for _ in range(WORKERS)]
    admit: list[tuple[float, int]] = []
    for step in range(300):  # 15 s, of which five are quiet; far more is asked for than may come
        clocked.now += 0.05
        if 120 <= step < 220:
            continue
        for worker in chance.sample(workers, WORKERS):
            for _ in range(8):
                rows = chance.choice((1, 1, 1, 2, 20))
                if await is_let_in(worker, key, rows):
                    admit.append((clocked.now, rows))
    await journal.close()
    times = sorted({at for at, _ in admit})
    over = 0
    for number, begin in enumerate(times):
        for end in times[number:]:
            sent = sum(rows for at, rows in admit if begin <= at <= end)
            over = max(over, sent - round(RATE * (end - begin + 1)))
    assert over <= WORKERS * block + 19
    # Nobody is refused what there is: all but what blocks may hold was let in.
    assert sum(rows for _, rows in admit) >= RATE * (15 - 4) - WORKERS * block - 20
    # Leases are few: a block lasts, and one that finds nothing is not repeated at once.
    assert clocked.asked <= 15 * WORKERS * (BLOCKS_PER_S + 1) + len(admit)


async def test_without_the_store_each_worker_keeps_the_rate_and_comes_back(tmp_path):
    journal = await open_journal(f"sqlite:///{tmp_path / 'r.db'}")
    clocked = Clocked(journal)
    rates, key = RateLimits(TokenStore(clocked, clocked.clock), None, None), a_key(rows=RATE)
    clocked.fault = JournalUnavailable("planted")
    admit = [await is_let_in(rates, key, 1) for _ in range(2 * RATE)]
    assert sum(admit) == RATE and clocked.asked == 1
    clocked.fault = None
    clocked.now += 1.1
    assert await is_let_in(rates, key, 1) and clocked.asked == 2
    await journal.close()


async def test_a_store_that_hangs_holds_nobody_up(monkeypatch):
    monkeypatch.setattr("dualstream.service.http.rate_limits.LEASE_TIMEOUT_S", 0.01)

    class Hanging:
        async def lease(self, *args: Any) -> Lease:
            return await asyncio.Event().wait()  # type: ignore[return-value]

    rates = RateLimits(TokenStore(Hanging()), RATE, None)  # type: ignore[arg-type]
    limited = rates.of(a_key())
    assert limited is not None
    assert await asyncio.gather(*(limited.admit() for _ in range(10))) == [None] * 10


def test_lines_say_rates_and_settings_those_of_the_others():
    _, key = new_key("a", "learn", ("x-*",), 20, 5000)
    _, plain = new_key("b", "learn")
    text = f"{key.line()};{plain.line()} rows=any;{new_key('c', 'admin')[1].line()}"
    [first, second, third] = parse_keys(text, "here")
    assert key.line().endswith(" learn x-* requests=20 rows=5000") and first == key
    assert (second.requests, second.rows, third.rows) == (None, ANY, None)
    for wrong in ("rows=0", "rows=-1", "rows=1e3", "lines=5", "rows=00", "rows=1 x-*"):
        with pytest.raises(BadKeys):
            parse_keys(f"{plain.line()} {wrong}", "here")
    store = TokenStore(None)  # type: ignore[arg-type]
    assert RateLimits(store, None, None).of(plain) is None
    defaults = RateLimits(store, None, 7)
    assert defaults.of(third) is defaults.of(third) is not None


async def test_a_body_that_is_learned_as_it_arrives_is_slowed(store, monkeypatch):
    journal = await open_journal(store)
    clocked = Clocked(journal)

    async def sleep(seconds: float) -> None:
        clocked.now += seconds

    monkeypatch.setattr(asyncio, "sleep", sleep)
    limited = RateLimits(TokenStore(clocked, clocked.clock), None, 2 * RATE).of(a_key(rows=RATE))
    assert limited is not None
    began = clocked.now
    for _ in range(10):
        await limited.wait_for_rows(500)
    await journal.close()
    # The last chunk is let in once all before it are paid for, less the second that was saved up.
    assert (9 * 500 - RATE) / RATE <= clocked.now - began <= 9 * 500 / RATE


def test_over_http_more_is_refused_and_nothing_is_done(serve):
    line = {"owner": new_key("owner", "admin"), "rows": new_key("few", "learn", rows=10)}
    line["requests"] = new_key("seldom", "predict", requests=1)
    client = serve(keys=";".join(key.line() for _, key in line.values()))

    def by(name: str) -> dict[str, str]:
        return {"authorization": f"Bearer {line[name][0]}"}

    assert client.put("/models/m", json=SPEC, headers=by("owner")).status_code == 201
    many = {"x": [[1, 0, 0, 0, 0]] * 3000, "y": [1] * 3000}
    learn = "/models/m/learn"
    assert client.post(learn, json=many, headers=by("rows")).json()["learned"] == 3000
    # They are owed: for five minutes there is none, however slow this machine is.
    one = {"x": [1, 0, 0, 0, 0], "y": 1}
    refused = client.post(learn, json=one, headers=by("rows") | {"idempotency-key": "k"})
    assert_problem(refused, 429, "rate-exceeded")
    assert 1 <= int(refused.headers["retry-after"]) <= 300
    row = {"x": [1, 0, 0, 0, 0]}
    scored = client.post("/models/m/predict", json=row, headers=by("rows"))
    assert_problem(scored, 429, "rate-exceeded")
    queried = client.get("/predict?model=m&x=1:1", headers=by("rows"))
    assert_problem(queried, 429, "rate-exceeded")
    assert client.get("/models/m", headers=by("rows")).json()["samples"] == 3000
    assert client.post(learn, json=one, headers=by("owner")).status_code == 200
    first, *later = (client.get("/models", headers=by("requests")) for _ in range(20))
    assert first.status_code == 200 and 429 in {answer.status_code for answer in later}
    assert client.get("/livez", headers=by("requests")).status_code == 200
    got = client.get("/metrics", headers=by("owner")).text
    assert 'dualstream_rate_exceeded_total{unit="rows"} 3.0' in got
