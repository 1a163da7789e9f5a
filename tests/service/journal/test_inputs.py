"""Inputs: an append takes messages out of a stream in the step that journals their rows."""

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from dualstream.service.journal import Limits
from dualstream.service.journal.input_streams import CURSOR, HasInputs, InputMove, Waiting
from dualstream.service.journal.protocol import (
    CursorMoved,
    Journal,
    JournalUnavailable,
    ModelChanged,
)
from tests.service.journal.conftest import Store
from tests.service.journal.groups import SPEC, Log, rows

pytestmark = pytest.mark.anyio

IN, DEAD = "ds:{adult}:in", "ds:{adult}:dead"


@pytest.fixture
async def journal(redis_store: Store) -> AsyncIterator[Journal]:
    async with redis_store.journal(Limits(max_dead=100)) as journal:
        yield journal


@pytest.fixture
def client(redis_store: Store) -> Iterator[Any]:
    with redis.Redis.from_url(redis_store.url) as client:
        yield client


async def waiting(log: Log) -> Waiting:
    assert isinstance(log.journal, HasInputs)
    return await log.journal.waiting(log.model, log.incarnation)


def move(found: Waiting, refused: Sequence[tuple[int, str]] = (), **given: Any) -> InputMove:
    """That takes all of them."""
    ids = tuple(message.id for message in found.messages)
    return InputMove(CURSOR, found.cursor, ids[-1], ids, tuple(refused), reused="reused", **given)


def dead(client: Any) -> list[tuple[bytes, bytes, dict[bytes, bytes]]]:
    """Id, reason and fields of each."""
    found = []
    for _, fields in client.xrange(DEAD):
        found.append((fields.pop(b"dead.id"), fields.pop(b"dead.reason"), fields))
    return found


async def test_messages_are_taken_once_in_their_order(journal: Journal, client: Any):
    log = await Log.create(journal)
    assert isinstance(journal, HasInputs)
    assert await journal.pending() == {} and (await waiting(log)).messages == ()
    ids = [client.xadd(IN, {"n": n}).decode() for n in range(3)]
    found = await waiting(log)
    assert await journal.pending() == {"adult": 3}
    assert [message.id for message in found.messages] == ids and found.cursor is None
    assert [message.fields for message in found.messages] == [
        ((b"n", b"%d" % n),) for n in (0, 1, 2)
    ]
    # Given another worker that read the same ones, and a message that came since
    client.xadd(IN, {"n": 3})
    await log.append(rows(0, 1, 2), cursor=move(found))
    with pytest.raises(CursorMoved):
        await log.append(rows(0, 1, 2), cursor=move(found))
    left = await waiting(log)
    assert (left.cursor, [m.fields[0][1] for m in left.messages]) == (ids[-1], [b"3"])
    await log.append(rows(3), cursor=move(left))
    assert await log.tags() == [0, 1, 2, 3]
    assert client.xlen(IN) == 0 and await journal.pending() == {}


async def test_a_repeated_nonce_takes_and_buries_nothing_again(journal: Journal, client: Any):
    log = await Log.create(journal)
    client.xadd(IN, {"n": 1})
    client.xadd(IN, {"n": 2})
    found, nonce = await waiting(log), os.urandom(16)
    first = await log.append(rows(1), nonce=nonce, cursor=move(found, [(1, "bad")]), known_seq=0)
    client.xadd(IN, {"n": 3})
    again = await log.append(rows(1), nonce=nonce, cursor=move(found, [(1, "bad")]), known_seq=0)
    assert again == first and client.xlen(IN) == 1 and len(dead(client)) == 1


async def test_the_dead_keep_their_fields_and_make_no_entry(journal: Journal, client: Any):
    log = await Log.create(journal)
    many = {f"x.{n}": "1" for n in range(5000)}
    ids = [client.xadd(IN, fields) for fields in ({b"\xff": b"\x00\xfe"}, many, {"gone": 1})]
    found = await waiting(log)
    client.xdel(IN, ids[2])  # a producer's MAXLEN may do so, too
    refused = [(0, "/y: bad"), (1, "too wide"), (2, "gone")]
    appended = await log.append(cursor=move(found, refused))
    assert appended.seq is None and await log.last_seq() == 0
    assert client.xlen(IN) == 0 and (await waiting(log)).cursor == ids[2].decode()
    first, second, third = dead(client)
    assert first == (ids[0], b"/y: bad", {b"\xff": b"\x00\xfe"})
    texts = msgspec.msgpack.decode(second[2][b"dead.fields"])
    assert dict(zip(texts[::2], texts[1::2], strict=True)) == many
    assert third == (ids[2], b"gone", {})


async def test_an_id_used_for_another_sample_is_dead_and_a_repeated_one_is_not(
    journal: Journal, client: Any
):
    log = await Log.create(journal)
    await log.append(rows(1, id="a", payload="one"), rows(2, id="b", payload="one"))
    for name in ("plain", "a", "b", "c"):
        client.xadd(IN, {"name": name})
    parts = [rows(3), rows(1, id="a", payload="one"), rows(9, id="b", payload="other")]
    parts.append(rows(4, id="c"))
    found = await waiting(log)
    await log.append(*parts, cursor=move(found, parts=((1, 1), (2, 2), (3, 3))))
    assert await log.tags() == [1, 2, 3, 4]
    assert dead(client) == [(found.messages[2].id.encode(), b"reused", {b"name": b"b"})]


async def test_about_the_last_dead_are_kept(journal: Journal, client: Any):
    log = await Log.create(journal)
    for n in range(500):
        client.xadd(IN, {"n": n})
    found = await waiting(log)
    await log.append(cursor=move(found, [(n, "bad") for n in range(500)]))
    assert 100 <= client.xlen(DEAD) <= 200
    assert dead(client)[-1][2] == {b"n": b"499"}


@pytest.mark.parametrize("name", [IN, DEAD])
async def test_another_kind_of_value_stops_that_model_alone(
    name: str, journal: Journal, client: Any
):
    log, other = await Log.create(journal), await Log.create(journal, "other")
    assert isinstance(journal, HasInputs)
    client.xadd(IN, {"n": 1})
    client.xadd("ds:{other}:in", {"n": 1})
    found = await waiting(log)
    client.delete(name)
    client.lpush(name, "1")
    with pytest.raises(JournalUnavailable, match="is not a stream"):
        await log.append(rows(1), cursor=move(found))
    assert (
        await log.last_seq() == 0 and await journal.cursor(log.model, log.incarnation, "in") is None
    )
    if name == IN:
        with pytest.raises(JournalUnavailable, match="is not a stream"):
            await waiting(log)
    assert set(await journal.pending()) == {"adult", "other"}
    await other.append(rows(1), cursor=move(await waiting(other)))
    await log.append(rows(5))
    assert await log.tags() == [5]


async def test_an_input_goes_with_its_model_and_waits_for_the_next_spec(
    journal: Journal, client: Any
):
    client.xadd(IN, {"n": 1})  # before there is a model
    log = await Log.create(journal)
    found = await waiting(log)
    await log.append(rows(1), cursor=move(found))
    client.xadd(IN, {"n": 2})
    client.xadd(DEAD, {"n": 0})
    record = await journal.get("adult")
    await journal.replace("adult", record.incarnation, record.seq, record.chain, SPEC, SPEC)
    with pytest.raises(ModelChanged):
        await waiting(log)
    anew = Log(journal, await journal.get("adult"))
    kept = await waiting(anew)
    assert kept.cursor is None and [m.fields for m in kept.messages] == [((b"n", b"2"),)]
    await journal.delete("adult")
    assert client.keys("ds:{adult}:*") == []


async def test_what_is_read_at_once_is_bounded(journal: Journal, client: Any):
    log = await Log.create(journal)
    for _ in range(5):
        client.xadd(IN, {"text": "1" * 400_000})
    for _ in range(1200):
        client.xadd(IN, {"n": 1})
    counts = []
    while (found := await waiting(log)).messages:
        counts.append(len(found.messages))
        await log.append(cursor=move(found))
    assert counts[:2] == [2, 2] and max(counts) == 1000 and sum(counts) == 1205


async def test_sqlite_has_no_inputs(tmp_path: Path):
    async with Store(f"sqlite:///{tmp_path / 'journal.db'}").journal() as journal:
        log = await Log.create(journal)
        assert not isinstance(journal, HasInputs)
        with pytest.raises(ValueError, match="no inputs"):
            await log.append(cursor=InputMove(CURSOR, None, "1-0", ("1-0",)))
