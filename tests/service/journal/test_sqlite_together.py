"""Appends that share a transaction of SQLite's, and what may become of it."""

import asyncio
import os
import sqlite3
import threading
from typing import Any

import pytest

from dualstream.service.journal.protocol import (
    JournalUnavailable,
    ModelChanged,
    ModelRecord,
    OutcomeUnknown,
    UnknownCopy,
    UnknownModel,
)
from dualstream.service.journal.sqlite import SqliteJournal, connection_thread, snapshots
from tests.service.journal.groups import places, rows
from tests.service.journal.sqlite_support import Connection, at_once, busy, journal, logs_of

__all__ = ["journal"]

pytestmark = pytest.mark.anyio


async def test_what_waits_shares_a_transaction_up_to_a_number_and_a_size(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
):
    logs = await logs_of(journal, 100)
    appended, said = await at_once(journal, logs, rows(1))
    assert [places(one) for one in appended] == [[(1, 1, "new")]] * 100
    assert said.count("COMMIT") == 2  # of 64 and of 36
    large = rows(*range(1000))
    monkeypatch.setattr(connection_thread, "MAX_GROUP_BYTES", 3 * len(large.body))
    _, said = await at_once(journal, logs[:7], large)
    assert said.count("COMMIT") == 3  # of 3, of 3 and of 1
    _, said = await at_once(journal, logs[:2], rows(*range(4000)))
    assert said.count("COMMIT") == 2


async def test_appends_without_keys_share_their_statements_though_some_are_refused(
    journal: SqliteJournal,
):
    logs = await logs_of(journal, 20)
    await journal.delete("m3")
    await journal.replace("m4", logs[4].incarnation, 0, logs[4].record.chain, b"{}", b"{}")
    twice = [*logs, *logs[10:]]
    outcomes, said = await at_once(journal, twice, rows(1), rows(2, 3))
    assert [n for n, one in enumerate(outcomes) if isinstance(one, ModelChanged)] == [3, 4]
    assert sum(["FROM models" in statement for statement in said]) == 1
    assert sum([statement.startswith("UPDATE") for statement in said]) == 18
    for log in {*logs} - {*logs[3:5]}:
        assert await log.tags() == [1, 2, 3] * twice.count(log)
    assert (await journal.get("m4")).seq == 0


async def test_appends_with_and_without_keys_are_in_order_of_arrival(journal: SqliteJournal):
    [log, other] = await logs_of(journal, 2)
    kinds = [{}, {"id": "a"}, {}, {}, {"id": "b"}]
    async with busy(journal):
        appending = [
            asyncio.create_task(one.append(rows(tag, **kind), known_seq=0))  # type: ignore[arg-type]
            for tag, kind in enumerate(kinds)
            for one in (log, other)
        ]
        await asyncio.sleep(0)
    appended = await asyncio.gather(*appending)
    assert await log.tags() == await other.tags() == [0, 1, 2, 3, 4]
    assert [len(one.entries) for one in appended[::2]] == [0, 1, 2, 3, 4]
    chains = [one.chain for one in appended[::2]]
    assert [one.previous for one in appended[2::2]] == chains[:-1]


async def test_one_that_is_refused_late_leaves_nothing_and_the_others_whole(journal: SqliteJournal):
    logs = await logs_of(journal, 4)
    async with busy(journal) as said:
        appending = [
            asyncio.create_task(log.append(rows(1), copy="0" * 64 if log is logs[2] else None))
            for log in logs
        ]
        await asyncio.sleep(0)
    outcomes = await asyncio.gather(*appending, return_exceptions=True)
    assert [isinstance(one, UnknownCopy) for one in outcomes] == [False, False, True, False]
    assert said.count("COMMIT") == 3  # each by itself, after all
    assert [await log.tags() for log in logs] == [[1], [1], [], [1]]
    assert (await journal.get("m2")).seq == 0


async def test_the_thread_is_woken_once_for_what_comes_in_one_turn_of_the_loop(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
):
    logs = await logs_of(journal, 20)
    wakes = journal._writer._wakes
    woken = []

    class Counted:
        get = staticmethod(wakes.get)

        def put(self, item: None) -> None:
            woken.append(item)
            wakes.put(item)

    monkeypatch.setattr(journal._writer, "_wakes", Counted())
    appended = await asyncio.gather(*(log.append(rows(1)) for log in logs))
    assert [places(one) for one in appended] == [[(1, 1, "new")]] * 20
    assert len(woken) == 1


async def test_other_write_is_between_the_appends_before_and_after_it(journal: SqliteJournal):
    logs = await logs_of(journal, 3)
    async with busy(journal) as said:
        before = [asyncio.create_task(log.append(rows(1))) for log in logs]
        await asyncio.sleep(0)
        deleting = asyncio.create_task(journal.delete("m1"))
        await asyncio.sleep(0)
        after = [asyncio.create_task(log.append(rows(2))) for log in logs[::2]]
        await asyncio.sleep(0)
    await asyncio.gather(*before, deleting, *after)
    assert said.count("COMMIT") >= 3
    assert [await log.tags() for log in logs[::2]] == [[1, 2]] * 2


async def test_on_a_full_disk_each_append_is_whole_or_refused_for_itself(journal: SqliteJournal):
    logs = await logs_of(journal, 8)
    [pages] = await journal._writer.run(lambda c: c.execute("PRAGMA page_count").fetchone())
    limit = f"PRAGMA max_page_count = {pages + 60}"
    await journal._writer.run(lambda connection: connection.execute(limit).fetchone())
    outcomes, said = await at_once(journal, logs, rows(*range(40_000)))
    refused = [one for one in outcomes if isinstance(one, JournalUnavailable)]
    assert 0 < len(refused) < 8
    assert all("full" in str(one) for one in refused)
    assert said.count("COMMIT") == 8 - len(refused)  # each by itself, after all
    for log, outcome in zip(logs, outcomes, strict=True):
        assert len(await log.tags()) == (0 if outcome in refused else 40_000)
    appended, _ = await at_once(journal, logs[:1], rows(1))
    assert places(appended[0])[0][2] == "new"


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_commit_of_unknown_outcome_is_so_for_all_and_repeated_once(
    journal: SqliteJournal, is_done: bool
):
    logs = await logs_of(journal, 10)
    nonces = [os.urandom(16) for _ in logs]
    Connection.fails_after = is_done
    outcomes, _ = await at_once(journal, logs, rows(1), nonces=nonces)
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * 10
    assert [await log.tags() for log in logs] == [[1] if is_done else []] * 10
    appended, _ = await at_once(journal, logs, rows(1), nonces=nonces)
    assert [places(one) for one in appended] == [[(1, 1, "new")]] * 10
    assert [await log.tags() for log in logs] == [[1]] * 10


async def test_a_refused_commit_has_done_nothing_of_any(journal: SqliteJournal):
    logs = await logs_of(journal, 10)
    Connection.fails_after, Connection.code = False, sqlite3.SQLITE_FULL
    outcomes, _ = await at_once(journal, logs, rows(1))
    assert [type(outcome) for outcome in outcomes] == [JournalUnavailable] * 10
    assert [await log.tags() for log in logs] == [[]] * 10


async def test_a_cancelled_append_takes_no_other_with_it(journal: SqliteJournal):
    logs = await logs_of(journal, 4)
    async with busy(journal):
        appending = [asyncio.create_task(log.append(rows(1))) for log in logs]
        await asyncio.sleep(0)
        appending[1].cancel()
        await asyncio.sleep(0)
    await asyncio.gather(*appending, return_exceptions=True)
    assert [await log.tags() for log in logs[::2] + logs[3:]] == [[1]] * 3


async def test_what_waits_when_the_journal_closes_is_done(journal: SqliteJournal):
    logs = await logs_of(journal, 4)
    async with busy(journal):
        appending = [asyncio.create_task(log.append(rows(1))) for log in logs]
        await asyncio.sleep(0)
        closing = asyncio.create_task(journal.close())
        await asyncio.sleep(0)
    await asyncio.gather(*appending, closing)
    await journal.open()
    assert [await log.tags() for log in logs] == [[1]] * 4


async def reads(journal: SqliteJournal, *models: str) -> tuple[list, list[str]]:
    """What becomes of loads of these models, all of which wait together; and the statements."""
    said: list[str] = []
    go = threading.Event()

    def wait(connection: sqlite3.Connection) -> None:
        go.wait(10)
        connection.set_trace_callback(said.append)

    waiting = journal._reader.run(wait)
    reading = [asyncio.create_task(journal.base(model)) for model in models]
    await asyncio.sleep(0)
    go.set()
    await waiting
    return await asyncio.gather(*reading, return_exceptions=True), said[:]


@pytest.mark.parametrize(("patience_s", "begun"), [(10, 1), (-1, 4)])
async def test_models_are_loaded_together_unless_it_takes_long(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch, patience_s: int, begun: int
):
    monkeypatch.setattr(connection_thread, "READING_S", patience_s)
    for tag, log in enumerate(await logs_of(journal, 3)):
        await log.append(rows(tag))
    bases, said = await reads(journal, "m0", "m1", "none", "m2")
    assert isinstance(bases.pop(2), UnknownModel)
    assert [result.record.id for result in bases] == ["m0", "m1", "m2"]
    assert [result.entries for result in bases] == [
        tuple(await journal.read(one.record.id, one.record.incarnation, 0)) for one in bases
    ]
    assert said.count("BEGIN") == said.count("ROLLBACK") == begun


async def test_a_read_that_fails_takes_no_other_with_it(
    journal: SqliteJournal, monkeypatch: pytest.MonkeyPatch
):
    await logs_of(journal, 3)

    def planted(model: str, *args: Any) -> ModelRecord:
        if model == "m1":
            raise sqlite3.OperationalError("planted")
        return ModelRecord(model, *args)

    monkeypatch.setattr(snapshots, "ModelRecord", planted)
    first, second, third = (await reads(journal, "m0", "m1", "m2"))[0]
    assert isinstance(second, JournalUnavailable) and "planted" in str(second)
    assert (first.record.id, third.record.id) == ("m0", "m2")


async def test_a_transaction_that_was_left_open_refuses_one_task_only(journal):
    """SQLite refuses BEGIN within a transaction, so the writer rolls that one back."""

    def one(connection: sqlite3.Connection) -> Any:
        return connection.execute("SELECT 1").fetchone()[0]

    await journal._writer.run(lambda connection: connection.execute("BEGIN IMMEDIATE"))
    with pytest.raises(JournalUnavailable, match="within a transaction"):
        await journal._writer.write(one)
    assert await journal._writer.write(one) == 1
