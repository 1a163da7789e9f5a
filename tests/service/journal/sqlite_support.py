"""A SQLite journal whose commits fail, and appends that wait together."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from dualstream.service.journal.sqlite import SqliteJournal, schema
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log


class Connection(sqlite3.Connection):
    """One whose next COMMIT fails, done or not."""

    fails_after: bool | None = None
    """Whether it is done before; None: it does not fail."""
    code = sqlite3.SQLITE_IOERR_FSYNC

    def execute(self, statement, *args):  # type: ignore[no-untyped-def]
        if statement != "COMMIT" or Connection.fails_after is None:
            return super().execute(statement, *args)
        if Connection.fails_after:
            super().execute(statement)
        Connection.fails_after = None
        error = sqlite3.OperationalError("planted")
        error.sqlite_errorcode = Connection.code
        raise error


@pytest.fixture
async def journal(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SqliteJournal]:
    connect = sqlite3.connect
    monkeypatch.setattr(
        schema.sqlite3,
        "connect",
        lambda *args, **named: connect(*args, factory=Connection, **named),
    )
    monkeypatch.setattr(Connection, "fails_after", None)
    monkeypatch.setattr(Connection, "code", sqlite3.SQLITE_IOERR_FSYNC)
    journal = SqliteJournal(sqlite_store.url.removeprefix("sqlite:///"))
    await journal.open()
    yield journal
    await journal.close()


@asynccontextmanager
async def busy(journal: SqliteJournal) -> AsyncIterator[list[str]]:
    """While entered the writer is held up; the statements that it does afterwards."""
    said: list[str] = []
    go = threading.Event()

    def wait(connection: sqlite3.Connection) -> None:
        go.wait(10)
        connection.set_trace_callback(said.append)

    waiting = journal._writer.run(wait)
    await asyncio.sleep(0)
    yield said
    go.set()
    await waiting


async def at_once(journal: SqliteJournal, logs: list[Log], *parts, nonces=()) -> tuple[list, list]:  # type: ignore[no-untyped-def]
    """What becomes of an append to each log, all of which wait together; and the statements."""
    async with busy(journal) as said:
        appending = [
            asyncio.create_task(log.append(*parts, nonce=nonces[n] if nonces else None))
            for n, log in enumerate(logs)
        ]
        await asyncio.sleep(0)
    return await asyncio.gather(*appending, return_exceptions=True), said


async def logs_of(journal: SqliteJournal, count: int) -> list[Log]:
    return [await Log.create(journal, f"m{number}") for number in range(count)]
