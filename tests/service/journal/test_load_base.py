"""What a replica starts from: the model, its newest snapshot, and the entries after it."""

import pytest
import redis

from dualstream.service.journal.protocol import Base, Journal, UnknownModel
from dualstream.service.journal.redis.state_copies import PART_BYTES
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log, rows

pytestmark = pytest.mark.anyio


async def test_base_of_an_unknown_model_is_refused(journal: Journal):
    with pytest.raises(UnknownModel):
        await journal.base("m")


async def test_base_of_a_new_model_has_no_snapshot(journal: Journal):
    log = await Log.create(journal)
    base = await journal.base(log.model)
    assert base == Base(log.record)


async def test_base_has_the_newest_snapshot_and_the_entries_after_it(store: Store):
    async with store.journal() as journal:
        log = await Log.create(journal)
        chains = [(await log.append(rows(1, 2))).chain for _ in range(5)]
        model = (log.model, log.incarnation)
        entries = tuple(await journal.read(*model, 0))
        assert await journal.base(log.model) == Base(await journal.get(log.model), None, entries)
        for at in (1, 3):
            assert await journal.snapshot_put(*model, 2 * at + 2, chains[at], b"state" * at)
        newest = await journal.snapshot_get(*model)
        entries = tuple(await journal.read(*model, 8))
        assert await journal.base(log.model) == Base(await journal.get(log.model), newest, entries)
        # Not more than a read returns.
        assert await journal.snapshot_put(*model, 10, chains[4], b"state")
        for _ in range(3):
            await log.append(rows(3))
        seqs = [entry.seq for entry in (await journal.base(log.model, 1)).entries]
        assert seqs == [11]


async def test_base_of_a_trimmed_log_has_the_entries_that_its_snapshot_needs(journal: Journal):
    log = await Log.create(journal)
    chains = [(await log.append(rows(1))).chain for _ in range(4)]
    model = (log.model, log.incarnation)
    assert await journal.snapshot_put(*model, 3, chains[2], b"state")
    await journal.trim(*model, 3)
    base = await journal.base(log.model)
    assert base.snapshot is not None and base.snapshot.seq == 3
    assert [entry.seq for entry in base.entries] == [4]


async def test_base_of_a_log_trimmed_beyond_its_snapshot_has_no_entries(journal: Journal):
    log = await Log.create(journal)
    chains = [(await log.append(rows(1))).chain for _ in range(4)]
    model = (log.model, log.incarnation)
    assert await journal.snapshot_put(*model, 2, chains[1], b"state")
    await journal.trim(*model, 3)
    base = await journal.base(log.model)
    assert (base.record.seq, base.entries) == (4, ())


async def test_base_on_redis_has_no_entries_after_a_snapshot_of_several_parts(store: Store):
    async with store.journal() as journal:
        log = await Log.create(journal)
        chain = (await log.append(rows(1))).chain
        await log.append(rows(1))
        data = bytes(PART_BYTES + 1)
        assert await journal.snapshot_put(log.model, log.incarnation, 1, chain, data)
        base = await journal.base(log.model)
        assert base.snapshot is not None and base.snapshot.data == data
        assert len(base.entries) == store.url.startswith("sqlite")


async def test_base_on_redis_is_one_command(redis_store: Store):
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        chain = (await log.append(rows(1))).chain
        await log.append(rows(1))
        assert await journal.snapshot_put(log.model, log.incarnation, 1, chain, b"state")
        await journal.base(log.model)  # Redis has the script now
        with redis.Redis.from_url(redis_store.url) as server:
            server.config_resetstat()
            base = await journal.base(log.model)
            assert base.snapshot is not None and len(base.entries) == 1
            assert server.info("commandstats")["cmdstat_evalsha"]["calls"] == 1


async def test_base_on_redis_survives_a_lost_part(redis_store: Store):
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        chain = (await log.append(rows(1))).chain
        assert await journal.snapshot_put(log.model, log.incarnation, 1, chain, b"state")
        with redis.Redis.from_url(redis_store.url) as server:
            (key,) = server.keys("ds:{*}:snap:*")
            server.delete(key)
        base = await journal.base(log.model)
        assert base.snapshot is not None and (base.snapshot.data, base.entries) == (b"", ())
