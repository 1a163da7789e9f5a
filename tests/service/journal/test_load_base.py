"""What a replica starts from: the model, its newest snapshot, and the entries after it."""

import pytest

from dualstream.service.journal.protocol import Base, Journal, UnknownModel
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


async def test_base_has_the_newest_snapshot_and_sqlite_the_entries_after_it(store: Store):
    has_entries = store.url.startswith("sqlite")
    async with store.journal() as journal:
        log = await Log.create(journal)
        chains = [(await log.append(rows(1, 2))).chain for _ in range(5)]
        model = (log.model, log.incarnation)
        entries = tuple(await journal.read(*model, 0)) if has_entries else ()
        assert await journal.base(log.model) == Base(await journal.get(log.model), None, entries)
        for at in (1, 3):
            assert await journal.snapshot_put(*model, 2 * at + 2, chains[at], b"state" * at)
        newest = await journal.snapshot_get(*model)
        entries = tuple(await journal.read(*model, 8)) if has_entries else ()
        assert await journal.base(log.model) == Base(await journal.get(log.model), newest, entries)
        # Not more than a read returns.
        assert await journal.snapshot_put(*model, 10, chains[4], b"state")
        for _ in range(3):
            await log.append(rows(3))
        seqs = [entry.seq for entry in (await journal.base(log.model, 1)).entries]
        assert seqs == ([11] if has_entries else [])


async def test_base_of_a_trimmed_log_has_the_entries_that_its_snapshot_needs(journal: Journal):
    log = await Log.create(journal)
    chains = [(await log.append(rows(1))).chain for _ in range(4)]
    model = (log.model, log.incarnation)
    assert await journal.snapshot_put(*model, 3, chains[2], b"state")
    await journal.trim(*model, 3)
    base = await journal.base(log.model)
    assert base.snapshot is not None and base.snapshot.seq == 3
    assert [entry.seq for entry in base.entries] in ([4], [])


async def test_base_of_a_log_trimmed_beyond_its_snapshot_has_no_entries(journal: Journal):
    log = await Log.create(journal)
    chains = [(await log.append(rows(1))).chain for _ in range(4)]
    model = (log.model, log.incarnation)
    assert await journal.snapshot_put(*model, 2, chains[1], b"state")
    await journal.trim(*model, 3)
    base = await journal.base(log.model)
    assert (base.record.seq, base.entries) == (4, ())
