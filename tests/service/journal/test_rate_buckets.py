"""Buckets on every store: what is taken of them in all, and that all stores count alike."""

import asyncio
import random
import sqlite3
from contextlib import closing

import pytest

from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import Journal
from dualstream.service.journal.rate_buckets import Bucket, Lease, take
from dualstream.service.journal.sqlite import rate_buckets as leasing
from tests.service.journal.conftest import Store

pytestmark = pytest.mark.anyio


async def test_every_store_gives_what_the_definition_gives(journal: Journal):
    chance = random.Random(5)
    for name, rate in (("slow", 1), ("odd", 7), ("fast", 100_000_000)):
        bucket: Bucket | None = None
        now_ms, taken = 1_000_000, 0
        for _ in range(40):
            now_ms += chance.choice((-50, 0, 1, 3, 40, 160, 2500, -1000, -2000))
            needed, most = chance.choice((1, 1, 2, rate, 3 * rate)), max(1, rate // 10)
            bucket, lease = take(bucket, rate, needed, most, now_ms)
            assert await journal.lease(name, rate, needed, most, now_ms) == lease
            assert lease.taken == 0 or max(needed, 1) <= lease.taken <= max(needed, most)
            taken += lease.taken
    assert await journal.lease("unknown", 50, 1, 5) == Lease(5, 0)  # by its own clock


async def test_what_many_take_at_once_is_in_there_once(store: Store):
    async with store.journal() as first, store.journal() as second:
        leases = await asyncio.gather(
            *(journal.lease("b", 100, 1, 7, 1000) for journal in (first, second) * 15)
        )
        assert sum(lease.taken for lease in leases) == 100
        assert {lease.wait_ms for lease in leases if not lease.taken} == {10}


async def test_a_clock_that_was_set_back_shuts_nobody_out(journal: Journal):
    tomorrow_ms = 86_400_000
    assert (await journal.lease("b", 10, 10, 10, tomorrow_ms)).taken == 10
    assert await journal.lease("b", 10, 1, 1, tomorrow_ms - 1000) == Lease(0, 100)
    assert await journal.lease("b", 10, 1, 1, 1000) == Lease(1, 0)
    assert await journal.lease("b", 10, 9, 9, 1000) == Lease(9, 0)
    assert await journal.lease("b", 10, 1, 1, 1000) == Lease(0, 100)


async def test_a_bucket_that_is_full_again_need_not_be_known(tmp_path, monkeypatch):
    monkeypatch.setattr(leasing, "LOOKED_AT", 7)
    path, hour_ms = tmp_path / "store.db", 3_600_000

    def known() -> set[str]:
        with closing(sqlite3.connect(path)) as connection:
            result = connection.execute("SELECT name FROM store WHERE name LIKE 'rate:%'")
            return {name.removeprefix("rate:") for (name,) in result}

    journal = await open_journal(f"sqlite:///{path}")
    try:
        await journal.claim_identity("mine")
        for number in range(30):
            await journal.lease(f"b{number:02}", 10, 1, 1, hour_ms)
        await journal.lease("b13", 10, 60_000, 60_000, hour_ms)  # which takes an hour and more
        assert len(known()) == 30
        await journal.lease("b99", 10, 1, 1, hour_ms + 1500)  # too early
        assert len(known()) == 31
        later_ms = hour_ms + hour_ms // 2
        for number in range(5):  # each looks at seven behind it, and at the first seven
            await journal.lease(f"c{number}", 10, 1, 1, later_ms)
        assert known() == {"b13", *(f"c{number}" for number in range(5))}
        # All deleted buckets were full, so none gives more than before; debts remain.
        assert (await journal.lease("b13", 10, 1, 1, later_ms)).taken == 0
        assert await journal.identity() == "mine"
        # A clock that was set back leaves none that is of no use.
        await journal.lease("new", 10, 1, 1, 1000)
        assert await journal.lease("new", 10, 99, 99, 1000) == Lease(99, 0)
        assert "c1" not in known()
    finally:
        await journal.close()
