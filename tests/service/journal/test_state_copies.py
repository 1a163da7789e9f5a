"""Full copies of states and the versions that name them, on every store."""

import asyncio
import hashlib
import os
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import redis

from dualstream.service.journal.protocol import (
    Conflict,
    CopyUse,
    Journal,
    Limits,
    MissingPosition,
    ModelChanged,
    StoredCopy,
    TooManyVersions,
    UnknownCopy,
    Version,
)
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log, keyed, rows

pytestmark = pytest.mark.anyio

BIG = bytes(24 << 20)


class Kept(Log):
    """A log whose model has copies."""

    @property
    def where(self) -> tuple[str, str]:
        return self.model, self.incarnation

    async def put(self, data: bytes) -> str:
        return await self.journal.copy_put(*self.where, data)

    async def name(self, name: str, data: bytes, seq: int = 1) -> Version:
        digest = await self.put(data)
        version = Version(name, seq, "c" * 40, digest, len(data), created_ms=1)
        return (await self.journal.version_put(*self.where, version))[0]

    async def has(self, digest: str) -> bool:
        return await self.journal.copy_get(*self.where, digest) is not None


@asynccontextmanager
async def kept(store: Store, **limits: float) -> AsyncIterator[Kept]:
    async with store.journal(Limits(**limits)) as journal:  # type: ignore[arg-type]
        log = await Kept.create(journal)
        assert isinstance(log, Kept)
        yield log


def parts(store: Store) -> int:
    """How many parts of copies the store holds."""
    if store.url.startswith("sqlite"):
        connection = sqlite3.connect(store.url.removeprefix("sqlite:///"))
        try:
            count: int = connection.execute("SELECT count(*) FROM copy_parts").fetchone()[0]
        finally:
            connection.close()
        return count
    with redis.Redis.from_url(store.url) as client:
        return sum(client.hlen(key) for key in client.keys("ds:*:copy:*"))


async def half_written(store: Store, log: Kept, data: bytes) -> None:
    """A writer dies in the midst of a copy."""
    writing = asyncio.create_task(log.put(data))
    while parts(store) < 2:
        await asyncio.sleep(0.001)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing


@pytest.mark.parametrize("size", [0, 1, 1 << 20, (2 << 20) + 7])
async def test_a_copy_comes_back_under_the_digest_of_its_bytes(store: Store, size: int):
    data = os.urandom(size)
    async with kept(store) as log:
        digest = hashlib.sha256(data).hexdigest()
        assert not await log.has(digest)
        assert await log.put(data) == digest
        assert await log.put(data) == digest
        assert await log.journal.copy_get(*log.where, digest) == data
        assert await log.journal.copies(*log.where) == [StoredCopy(digest, size)]
        assert parts(store) == -(-size // (1 << 20))


async def test_partial_copy_is_invisible_and_the_next_writer_resumes_it(store: Store):
    async with kept(store) as log:
        await half_written(store, log, BIG)
        digest = hashlib.sha256(BIG).hexdigest()
        assert not await log.has(digest)
        assert await log.journal.copies(*log.where) == []
        partial = StoredCopy(digest, len(BIG))
        assert await log.journal.copies(*log.where, with_partial=True) == [partial]
        with pytest.raises(UnknownCopy):
            await log.journal.version_put(*log.where, Version("v", 1, "c", digest, len(BIG), 1))
        assert await asyncio.gather(log.put(BIG), log.put(BIG)) == [digest, digest]
        assert await log.journal.copy_get(*log.where, digest) == BIG


async def test_a_version_names_a_copy(store: Store):
    async with kept(store) as log:
        digest = await log.put(b"state")
        version = Version("first", 0, log.record.chain, digest, 5, note="two words,\na line")
        made, is_new = await log.journal.version_put(*log.where, version)
        assert is_new and made.created_ms > 1_500_000_000_000
        assert msgspec.structs.replace(made, created_ms=0) == version
        assert await log.journal.version_put(*log.where, version) == (made, False)
        assert await log.journal.version_get(*log.where, "first") == made
        assert await log.journal.version_get(*log.where, "second") is None
        with pytest.raises(Conflict):
            await log.name("first", b"another")
        # One that is brought from elsewhere keeps its time.
        old = msgspec.structs.replace(version, name="old", seq=3, chain="c" * 40, created_ms=12)
        assert await log.journal.version_put(*log.where, old) == (old, True)
        assert await log.journal.versions(*log.where) == [made, old]


async def test_a_version_of_a_copy_that_is_not_there_is_refused(store: Store):
    async with kept(store) as log:
        with pytest.raises(UnknownCopy):
            await log.journal.version_put(*log.where, Version("v", 1, "c", "0" * 64, 5, 1))
        assert await log.journal.versions(*log.where) == []


@pytest.mark.parametrize("taken", ["at the head", "before it", "after it", "elsewhere"])
async def test_a_version_is_taken_only_where_the_log_leads_on_from_it(store: Store, taken: str):
    async with kept(store) as log:
        first, second = [await log.append(rows(1)) for _ in range(2)]
        digest = await log.put(b"state")
        seq, chain = {
            "at the head": (2, second.chain),
            "before it": (1, first.chain),
            "after it": (3, second.chain),
            "elsewhere": (1, second.chain),
        }[taken]
        version = Version("v", seq, chain, digest, 5)
        if taken in ("after it", "elsewhere"):
            with pytest.raises(MissingPosition):
                await log.journal.version_put(*log.where, version)
            return
        assert (await log.journal.version_put(*log.where, version))[1]
        await log.journal.trim(*log.where, 2)
        late = msgspec.structs.replace(version, name="late")
        if taken == "before it":
            with pytest.raises(MissingPosition):
                await log.journal.version_put(*log.where, late)
        else:
            assert (await log.journal.version_put(*log.where, late))[1]


async def test_there_are_only_so_many_versions(store: Store):
    async with kept(store, max_versions=2) as log:
        await log.name("a", b"1")
        await log.name("b", b"2")
        with pytest.raises(TooManyVersions):
            await log.name("c", b"3")
        await log.name("a", b"1")
        await log.journal.version_delete(*log.where, "b")
        await log.name("c", b"3")


async def test_many_versions_and_uses_are_listed(store: Store):
    """More than a Lua stack holds."""
    async with kept(store, max_versions=10_000) as log:
        appended = await log.append(rows(1))
        digest = await log.put(b"state")
        for number in range(4100):
            version = Version(f"v{number}", 1, appended.chain, digest, 5, created_ms=1)
            await log.journal.version_put(*log.where, version)
        result = await log.journal.versions(*log.where)
        assert {version.name for version in result} == {f"v{number}" for number in range(4100)}


async def test_many_uses_are_listed(redis_store: Store):
    async with kept(redis_store) as log:
        await log.append(rows(1))
        with redis.Redis.from_url(redis_store.url) as client:
            members = {f"{seq} {'a' * 64}": seq for seq in range(9000)}
            client.zadd(f"ds:{{{log.model}}}:uses", members)
        assert len(await log.journal.copy_uses(*log.where)) == 9000


async def test_copy_is_deleted_with_its_last_name(store: Store):
    async with kept(store) as log:
        digest = (await log.name("a", b"state")).digest
        await log.name("b", b"state")
        assert await log.journal.version_delete(*log.where, "a")
        assert await log.has(digest)
        with pytest.raises(Conflict):
            await log.journal.copy_delete(*log.where, digest)
        assert await log.journal.version_delete(*log.where, "b")
        assert not await log.journal.version_delete(*log.where, "b")
        assert not await log.has(digest)
        assert parts(store) == 0


async def test_a_kept_record_keeps_the_copy_that_it_names(store: Store):
    async with kept(store) as log:
        digest = (await log.name("a", b"state")).digest
        await log.append(rows(1))
        await log.append(rows(2, 3), copy=digest)
        await log.append(rows(4))
        assert await log.journal.copy_uses(*log.where) == [CopyUse(3, digest)]
        await log.journal.version_delete(*log.where, "a")
        with pytest.raises(Conflict):
            await log.journal.copy_delete(*log.where, digest)
        await log.journal.trim(*log.where, 2)
        assert await log.has(digest)
        await log.journal.trim(*log.where, 3)
        assert not await log.has(digest)
        assert await log.journal.copy_uses(*log.where) == []
        assert parts(store) == 0


async def test_a_version_keeps_a_copy_beyond_the_records_that_name_it(store: Store):
    async with kept(store) as log:
        digest = (await log.name("a", b"state")).digest
        await log.append(rows(1), copy=digest)
        await log.journal.trim(*log.where, 1)
        assert await log.has(digest)
        await log.journal.version_delete(*log.where, "a")
        assert not await log.has(digest)


async def test_an_entry_that_names_a_missing_copy_is_refused_whole(store: Store):
    async with kept(store) as log:
        with pytest.raises(UnknownCopy):
            await log.append(keyed("k", 1), nonce=bytes(16), copy="0" * 64)
        assert await log.last_seq() == 0
        # Neither nonce nor key are kept of it.
        appended = await log.append(keyed("k", 1), nonce=bytes(16))
        assert (appended.seq, appended.positions[0].duplicate) == (1, False)


async def test_a_repeated_append_names_its_copy_once(store: Store):
    async with kept(store) as log:
        digest = await log.put(b"state")
        for _ in range(2):
            await log.append(keyed("k", 1), nonce=bytes(16), copy=digest)
        # What is left out as a duplicate names nothing, whether the copy is there or not.
        again = await log.append(keyed("k", 1), copy="0" * 64)
        assert again.positions[0].duplicate
        assert await log.journal.copy_uses(*log.where) == [CopyUse(1, digest)]


async def test_old_unnamed_copy_is_deleted_when_the_log_is_trimmed(store: Store):
    async with kept(store) as log:
        await half_written(store, log, BIG)
        whole = await log.put(b"state")
        await log.journal.trim(*log.where, 0)
        assert await log.has(whole) and parts(store) > 2
    async with kept(store, unnamed_copy_s=0) as log:
        named = (await log.name("a", b"named")).digest
        await asyncio.sleep(0.002)
        await log.journal.trim(*log.where, 0)
        assert await log.journal.copies(*log.where) == [StoredCopy(named, 5)]
        assert parts(store) == 1


async def test_copy_collected_during_its_write_is_written_again(store: Store):
    async with kept(store) as log:
        digest = hashlib.sha256(BIG).hexdigest()
        writing = asyncio.create_task(log.put(BIG))
        while parts(store) < 2:
            await asyncio.sleep(0.001)
        await log.journal.copy_delete(*log.where, digest)
        assert await writing == digest
        assert await log.journal.copy_get(*log.where, digest) == BIG


async def test_copies_and_versions_go_with_their_model(store: Store):
    async with kept(store) as log:
        digest = (await log.name("a", bytes(3 << 20))).digest
        await log.append(rows(1), copy=digest)
        await half_written(store, log, BIG)
        await log.journal.delete(log.model)
        assert parts(store) == 0
        again = await Kept.create(log.journal)
        assert await again.journal.versions(again.model, again.incarnation) == []
        assert await again.journal.copies(again.model, again.incarnation) == []
        assert await again.journal.copy_uses(again.model, again.incarnation) == []
        if not store.url.startswith("sqlite"):
            with redis.Redis.from_url(store.url) as client:
                assert {key.split(b":")[-1] for key in client.keys("ds:{*")} == {b"spec", b"head"}


async def test_every_call_checks_the_incarnation(journal: Journal):
    log = await Log.create(journal)
    where = (log.model, "another")
    version = Version("v", 1, "c" * 40, "0" * 64, 5)
    for call in (
        journal.copy_put(*where, b"state"),
        journal.copy_get(*where, "0" * 64),
        journal.copies(*where),
        journal.copy_uses(*where),
        journal.copy_delete(*where, "0" * 64),
        journal.version_put(*where, version),
        journal.versions(*where),
        journal.version_get(*where, "v"),
        journal.version_delete(*where, "v"),
        journal.snapshots(*where),
        journal.snapshots_drop(*where, 1),
    ):
        with pytest.raises(ModelChanged):
            await call


async def test_appends_go_on_while_a_copy_is_written(store: Store):
    async with kept(store) as log:
        writing = asyncio.create_task(log.put(BIG))
        appends = 0
        while not writing.done():
            await log.append(rows(1))
            appends += 1
        await writing
        assert appends >= 10
