"""Long bodies in Redis, stored in keys of their own."""

import os
from collections.abc import Iterator
from itertools import count

import pytest
import redis

from dualstream.service.journal.protocol import JournalUnavailable, ModelChanged, Part
from dualstream.service.journal.record import CorruptRecord, KeyKind, encode_rows, make_key
from dualstream.service.journal.redis import store as redis_journal
from tests.redis_server import cut_stream
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log, fingerprint, keyed, places, rows

pytestmark = pytest.mark.anyio
_row = count()


@pytest.fixture
def client(redis_store: Store) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_store.url) as client:
        yield client


def long_part(key: str | None = None) -> Part:
    """Two rows that take more than a body in the log may, no two parts alike."""
    n = redis_journal._LONG // 8
    values = [next(_row) + 0.1] * (2 * n)
    stored = None if key is None else make_key(KeyKind.REQUEST, key)
    mark = None if key is None else fingerprint("")
    body = encode_rows(
        [0, n, 2 * n], [*range(n)] * 2, values, [1.0, -1.0], key=stored, fingerprint=mark
    )
    return Part(body, 2, stored, mark)


def bodies(client: redis.Redis) -> list[bytes]:
    return sorted(client.scan_iter(match="*:body:*"))


async def read(log: Log, after: int = 0, **options: int) -> list[tuple[int, bytes]]:
    entries = await log.journal.read(log.model, log.incarnation, after, **options)
    return [(entry.seq, entry.body) for entry in entries]


async def test_long_and_short_bodies_are_read_in_their_order(
    redis_store: Store, client: redis.Redis
):
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        parts = [rows(1), long_part(), rows(2), long_part(), long_part()]
        ends = [(await log.append(part)).seq for part in parts]
        stood = [(end, part.body) for end, part in zip(ends, parts, strict=True)]
        assert await read(log, limit_bytes=1 << 30) == stood
        assert await read(log, limit_bytes=1) == stood[:1]
        assert await read(log, after=1, limit_bytes=200_000) == stood[1:3]
        assert len(bodies(client)) == 3
        assert all(client.ttl(key) == -1 for key in bodies(client))
        usage = await journal.usage(log.model, log.incarnation)
        assert usage.log_bytes > sum(len(part.body) for part in parts)


async def test_another_worker_is_shown_long_bodies_by_its_append(redis_store: Store):
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        part = long_part()
        await log.append(part)
        appended = await log.append(rows(1), known_seq=0)
        assert [entry.body for entry in appended.entries] == [part.body]


async def test_repeated_long_body_is_stored_once(redis_store: Store, client: redis.Redis):
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        part, nonce = long_part(), os.urandom(16)
        first = await log.append(part, nonce=nonce, known_seq=0)
        assert places(await log.append(part, nonce=nonce, known_seq=0)) == places(first)
        assert await read(log) == [(2, part.body)]
        assert [client.ttl(key) for key in bodies(client)] == [-1]


async def test_of_a_part_that_is_left_out_no_body_stays(redis_store: Store, client: redis.Redis):
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        part = long_part("first")
        await log.append(part)
        assert places(await log.append(part)) == [(1, 2, "duplicate")]
        assert len(bodies(client)) == 1
        assert await read(log) == [(2, part.body)]


async def test_of_several_parts_with_keys_one_may_be_left_out(
    redis_store: Store, client: redis.Redis
):
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        await log.append(keyed("first", 1))
        part = long_part("second")
        await log.append(keyed("first", 1), part)
        assert await read(log, after=1) == [(3, part.body)]
        assert not bodies(client)


async def test_trim_removes_the_bodies_of_trimmed_entries(redis_store: Store, client: redis.Redis):
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        parts = [long_part() for _ in range(4)]
        for part in parts:
            await log.append(part)
        before = bodies(client)
        await journal.trim(log.model, log.incarnation, 5)
        assert await read(log, after=4, limit_bytes=1 << 30) == [
            (6, parts[2].body),
            (8, parts[3].body),
        ]
        assert len(bodies(client)) == 2 < len(before)
        assert int(client.hget("ds:{adult}:head", "bodies_bytes") or 0) == 2 * len(parts[0].body)


async def test_deleting_and_replacing_a_model_removes_bodies(
    redis_store: Store, client: redis.Redis
):
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        await log.append(long_part())
        record = await journal.get(log.model)
        await journal.replace(log.model, record.incarnation, record.seq, record.chain, b"{}", b"{}")
        assert not bodies(client)
        again = Log(journal, await journal.get(log.model))
        await again.append(long_part())
        await journal.delete(log.model)
        assert not list(client.scan_iter(match="ds:{adult}:*"))


async def test_a_body_sent_to_a_model_that_is_gone_expires(redis_store: Store, client: redis.Redis):
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        await journal.delete(log.model)
        with pytest.raises(ModelChanged):
            await log.append(long_part())
        assert all(client.pttl(key) > 0 for key in bodies(client))


async def test_a_body_that_is_gone_before_it_is_journalled_is_refused(
    redis_store: Store, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        with monkeypatch.context() as patched:
            patched.setattr(
                "dualstream.service.journal.redis.keys_and_values.Keys.body",
                lambda keys, nonce: b"else",
            )
            with pytest.raises(JournalUnavailable):
                await log.append(long_part())
        assert await log.last_seq() == 0
        part = long_part()
        await log.append(part)
        assert await read(log) == [(2, part.body)]


async def test_a_missing_body_is_damage(redis_store: Store, client: redis.Redis):
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        await log.append(rows(1))
        await log.append(long_part())
        await log.append(rows(2))
        client.delete(*bodies(client))
        with pytest.raises(CorruptRecord, match="after seq 1 is truncated"):
            await read(log)


@pytest.mark.parametrize(
    ("size", "seq", "got"),
    [
        (79, 2, "the entry after seq 1 is truncated"),
        (-1, 2, "the entry after seq 1 is truncated"),
        (None, 3, "the entry at seq 3 does not end there"),
        (0, 2, "the entry at seq 2 does not end there"),
    ],
)
async def test_an_entry_that_is_not_what_the_log_says_is_damage(
    redis_store: Store, client: redis.Redis, size: int | None, seq: int, got: str
):
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        await log.append(rows(1))
        await log.append(rows(2))
        entry = client.xrange("ds:{adult}:log")[1][1][b"e"]
        cut_stream(client, "ds:{adult}:log", 1)
        client.xadd("ds:{adult}:log", {"e": entry[:size]}, id=f"{seq}-0")
        client.hset("ds:{adult}:head", "seq", seq)
        with pytest.raises(CorruptRecord, match=got):
            await read(log)


async def test_long_bodies_inside_the_log_are_read(
    redis_store: Store, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    async with redis_store.journal() as journal:
        log = await Log.create(journal)
        parts = [long_part(), long_part()]
        with monkeypatch.context() as patched:
            patched.setattr(redis_journal, "_LONG", 1 << 30)
            await log.append(parts[0])
        await log.append(parts[1])
        assert await read(log, limit_bytes=1 << 30) == [(2, parts[0].body), (4, parts[1].body)]
        assert len(bodies(client)) == 1
