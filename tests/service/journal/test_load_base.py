"""What a replica begins from: the model, and where a store tells all in one step its newest
snapshot and the entries after it."""

import pytest

from dualstream.service.journal.protocol import Base, Journal, UnknownModel
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log, rows

pytestmark = pytest.mark.anyio


async def test_the_base_of_a_model_that_is_not_there_is_refused(journal: Journal):
    with pytest.raises(UnknownModel):
        await journal.base("m")


async def test_the_base_of_a_new_model_is_the_model(journal: Journal):
    log = await Log.create(journal)
    base = await journal.base(log.model)
    assert (base.record, base.snapshot, base.entries or ()) == (log.record, None, ())


async def test_redis_tells_the_model_alone_and_sqlite_all(store: Store):
    async with store.journal() as journal:
        log = await Log.create(journal)
        await log.append(rows(1))
        base = await journal.base(log.model)
        assert base.record == await journal.get(log.model)
        assert (base.entries is None) == store.url.startswith("redis")


async def test_a_base_is_what_get_snapshot_get_and_read_tell(journal: Journal):
    log = await Log.create(journal)
    chains = [(await log.append(rows(1, 2))).chain for _ in range(5)]
    model = (log.model, log.incarnation)
    base = await journal.base(log.model)
    if base.entries is None:
        return
    assert base == Base(await journal.get(log.model), None, tuple(await journal.read(*model, 0)))
    assert [entry.seq for entry in base.entries] == [2, 4, 6, 8, 10]
    for at in (1, 3):
        assert await journal.snapshot_put(*model, 2 * at + 2, chains[at], b"state" * at)
    base = await journal.base(log.model)
    found = await journal.snapshot_get(*model)
    assert base == Base(await journal.get(log.model), found, tuple(await journal.read(*model, 8)))
    assert [entry.seq for entry in base.entries] == [10]
    # Where there is more than a read brings, it brings as much.
    assert await journal.snapshot_put(*model, 10, chains[4], b"state")
    for _ in range(3):
        await log.append(rows(3))
    entries = (await journal.base(log.model, 1)).entries or ()
    assert [entry.seq for entry in entries] == [11]


async def test_a_base_of_a_trimmed_log_has_the_entries_that_its_snapshot_needs(journal: Journal):
    log = await Log.create(journal)
    chains = [(await log.append(rows(1))).chain for _ in range(4)]
    model = (log.model, log.incarnation)
    assert await journal.snapshot_put(*model, 3, chains[2], b"state")
    await journal.trim(*model, 3)
    base = await journal.base(log.model)
    if base.entries is not None:
        assert base.snapshot is not None
        assert (base.snapshot.seq, [entry.seq for entry in base.entries]) == (3, [4])


async def test_the_base_of_a_log_trimmed_beyond_its_snapshot_tells_no_entries(journal: Journal):
    log = await Log.create(journal)
    chains = [(await log.append(rows(1))).chain for _ in range(4)]
    model = (log.model, log.incarnation)
    assert await journal.snapshot_put(*model, 2, chains[1], b"state")
    await journal.trim(*model, 3)
    base = await journal.base(log.model)
    assert base.record.seq == 4
    assert base.entries is None
