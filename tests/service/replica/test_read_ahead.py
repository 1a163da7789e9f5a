"""A replica asks for the next entries before it looks at those that it has."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import pytest
import redis.asyncio

from dualstream.service.features import ALL
from dualstream.service.journal import open_journal
from dualstream.service.journal.page import Page
from dualstream.service.journal.protocol import (
    AppendRequest,
    Entry,
    Journal,
    JournalUnavailable,
    Part,
    Trimmed,
)
from dualstream.service.journal.record import CorruptRecord, encode_rows
from dualstream.service.journal.redis import scripts, store as redis_store
from dualstream.service.replica.fork_detection import Forked
from dualstream.service.replica.replica import Replica
from dualstream.service.replica.spec import canonical
from dualstream.solvers import resolve_spec

SPEC = {"algorithm": "dual_ascent", "loss": "hinge", "features": {"kind": "indexed", "dim": 123}}
Read = Callable[..., Awaitable[Sequence[Entry]]]
Scenario = Callable[[Journal, Replica], Awaitable[None]]


@pytest.fixture(autouse=True)
def an_entry_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualstream.service.replica.replica.READ_BYTES", 1)


@asynccontextmanager
async def three_entries(url: str) -> AsyncIterator[tuple[Journal, Replica]]:
    """A journal with three entries of a row each, and a replica that has read nothing."""
    journal = await open_journal(url)
    try:
        spec = canonical(resolve_spec(SPEC))
        record, _ = await journal.create("m", spec, spec)
        part = Part(encode_rows([0, 1], [3], [1.0], [1.0]), 1)
        for number in range(3):
            nonce = number.to_bytes(16, "big")
            await journal.append(AppendRequest("m", record.incarnation, nonce, 10**9, [part]))
        yield journal, Replica(record, ALL)
    finally:
        await journal.close()


def run(url: str, scenario: Scenario) -> None:
    async def all_of_it() -> None:
        async with three_entries(url) as (journal, replica):
            await scenario(journal, replica)

    asyncio.run(all_of_it())


def reading(monkeypatch: pytest.MonkeyPatch, journal: Journal, read: Any) -> None:
    """Have `read(after, true)` stand for the journal's reads."""
    true: Read = journal.read

    async def read_so(model: str, incarnation: str, after: int, limit_bytes: int) -> Any:
        return await read(after, lambda: true(model, incarnation, after, limit_bytes))

    monkeypatch.setattr(journal, "read", read_so)


def test_the_next_entries_are_asked_for_before_these_are_applied(store, monkeypatch):
    requests: list[tuple[int, int]] = []

    async def scenario(journal: Journal, replica: Replica) -> None:
        async def read(after: int, true: Read) -> Any:
            requests.append((after, replica.seq))
            return await true()

        reading(monkeypatch, journal, read)
        await replica.catch_up(journal)

    run(store, scenario)
    assert requests == [(0, 0), (1, 0), (2, 1), (3, 2)]


def test_redis_is_asked_for_the_next_entries_before_it_is_known_what_these_are(
    redis_server, monkeypatch
):
    done: list[str] = []
    send, parse = redis.asyncio.Connection.send_packed_command, redis_store._entries

    async def sent(connection: Any, command: list[bytes], check_health: bool = True) -> None:
        if scripts.READ.packed_digest[0] in command:
            done.append("asked")
        await send(connection, command, check_health)

    def parsed(joined: bytes) -> list[Entry]:
        entries = parse(joined)
        # In a thread, which must not be quicker than the event loop that sends the request.
        deadline = time.monotonic() + 60
        while done.count("asked") <= entries[-1].seq and time.monotonic() < deadline:
            time.sleep(0.001)
        done.append(f"parsed {entries[-1].seq}")
        return entries

    async def scenario(journal: Journal, replica: Replica) -> None:
        await journal.read("m", replica.incarnation, 0, 1)  # now the server knows the script
        monkeypatch.setattr(redis.asyncio.Connection, "send_packed_command", sent)
        monkeypatch.setattr(redis_store, "_entries", parsed)
        await replica.catch_up(journal)
        assert replica.seq == 3

    with redis.Redis.from_url(redis_server.url) as client:
        client.flushall()
    run(redis_server.url, scenario)
    assert done == ["asked", "asked", "parsed 1", "asked", "parsed 2", "asked", "parsed 3"]


async def _forked(true: Read) -> list[Entry]:
    [entry] = await true()
    return [msgspec.structs.replace(entry, chain="0" * 40)]


async def _damaged(true: Read) -> Page:
    def parse() -> list[Entry]:
        raise CorruptRecord("planted")

    return Page((await true())[-1].seq, 100, parse)


@pytest.mark.parametrize(("first", "error"), [(_forked, Forked), (_damaged, CorruptRecord)])
def test_what_is_wrong_with_these_is_shown_alone(store, monkeypatch, caplog, first, error):
    gc.collect()  # what earlier tests have left may be logged
    caplog.clear()

    async def scenario(journal: Journal, replica: Replica) -> None:
        async def read(after: int, true: Read) -> Any:
            if after:
                raise JournalUnavailable("planted")
            return await first(true)

        reading(monkeypatch, journal, read)
        with pytest.raises(error):
            await replica.catch_up(journal)
        assert replica.seq == 0
        await asyncio.sleep(0)

    run(store, scenario)
    gc.collect()
    assert "exception" not in caplog.text


@pytest.mark.parametrize("error", [JournalUnavailable("planted"), Trimmed(3)])
def test_entries_are_applied_though_the_next_ones_cannot_be_read(store, monkeypatch, error):
    async def scenario(journal: Journal, replica: Replica) -> None:
        async def read(after: int, true: Read) -> Any:
            if after == 2:
                raise error
            return await true()

        with monkeypatch.context() as failing:
            reading(failing, journal, read)
            with pytest.raises(type(error)):
                await replica.catch_up(journal)
        assert replica.seq == 2
        await replica.catch_up(journal)
        assert replica.seq == 3

    run(store, scenario)


def test_read_ahead_finishes_after_its_request_is_cancelled(store, monkeypatch):
    ended: list[int] = []

    async def scenario(journal: Journal, replica: Replica) -> None:
        requested, may_go_on = asyncio.Event(), asyncio.Event()

        async def read(after: int, true: Read) -> Any:
            result = await true()
            if after:
                requested.set()
                await may_go_on.wait()
                ended.append(after)
            return result

        async def apply(*_: Any) -> None:
            await asyncio.Event().wait()

        reading(monkeypatch, journal, read)
        monkeypatch.setattr(replica, "apply", apply)
        caught_up = asyncio.create_task(replica.catch_up(journal))
        await requested.wait()
        caught_up.cancel()
        with suppress(asyncio.CancelledError):
            await caught_up
        may_go_on.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    run(store, scenario)
    assert ended == [1]
