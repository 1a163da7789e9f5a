"""What only the SQLite store does."""

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest

from dualstream.service.journal import open_journal
from dualstream.service.journal.protocol import JournalUnavailable, StoreTooNew
from dualstream.service.journal.sqlite import SqliteJournal, trim, wal as checkpoint
from dualstream.service.journal.sqlite.wal import Checkpointer, FileChecks
from tests.service.journal.conftest import Store
from tests.service.journal.groups import Log, rows

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(sqlite_store: Store) -> str:
    return sqlite_store.url.removeprefix("sqlite:///")


def execute(path: str, *statements: str) -> list[tuple]:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return [row for statement in statements for row in connection.execute(statement)]
    finally:
        connection.close()


async def test_the_path_of_a_url_may_be_relative_or_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///here.db", f"sqlite:///{tmp_path}/there.db", "sqlite:///a%20b.db"):
        await (await open_journal(url)).close()
    assert {path.name for path in tmp_path.glob("*.db")} == {"here.db", "there.db", "a b.db"}


@pytest.mark.parametrize("url", ["sqlite://host/file.db", "sqlite:///", "sqlite:file.db", "x://y"])
async def test_a_url_without_a_store_is_refused(url: str):
    with pytest.raises(ValueError, match="sqlite:///file.db"):
        await open_journal(url)


async def test_the_file_is_in_wal_mode_with_the_durability_asked_for(sqlite_store: Store):
    for request, named in ((None, "normal"), ("normal", "normal"), ("full", "full")):
        async with sqlite_store.journal(durability=request) as journal:
            assert journal.durability() == named
            level = await journal._writer.run(  # type: ignore[attr-defined]
                lambda connection: connection.execute("PRAGMA synchronous").fetchone()[0]
            )
            assert level == {"normal": 1, "full": 2}[named]


async def test_another_durability_is_refused():
    with pytest.raises(ValueError, match="normal or full, not everysec"):
        await open_journal("sqlite:///never-made.db", "everysec")


async def test_tables_of_a_newer_version_are_refused(sqlite_store: Store, path: str):
    async with sqlite_store.journal():
        pass
    execute(path, "PRAGMA user_version = 2")
    with pytest.raises(StoreTooNew, match="version 2; this program knows up to 1"):
        await open_journal(sqlite_store.url)


async def test_a_file_that_is_no_database_is_refused(sqlite_store: Store, path: str):
    Path(path).write_bytes(b"not a database" * 100)
    with pytest.raises(JournalUnavailable, match="not a database"):
        await open_journal(sqlite_store.url)


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(JournalUnavailable, match="missing"):
        await open_journal(f"sqlite:///{tmp_path}/missing/journal.db")


async def test_a_store_that_others_keep_locked_is_unavailable_and_nothing_is_done(path: str):
    journal = SqliteJournal(path, busy_timeout_s=0.05)
    await journal.open()
    log = await Log.create(journal)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalUnavailable, match="locked"):
        await log.append(rows(1))
    assert await log.tags() == []
    blocker.execute("ROLLBACK")
    blocker.close()
    await log.append(rows(2))
    assert await log.tags() == [2]
    await journal.close()


async def test_an_append_waits_for_another_process(path: str):
    journal = SqliteJournal(path)
    await journal.open()
    log = await Log.create(journal)
    blocker = sqlite3.connect(path, isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    appending = asyncio.create_task(log.append(rows(1)))
    await asyncio.sleep(0.1)
    assert not appending.done()
    blocker.execute("ROLLBACK")
    blocker.close()
    await appending
    await journal.close()


async def test_a_checkpoint_under_way_ends_before_the_journal_closes(path, monkeypatch, caplog):
    monkeypatch.setattr(checkpoint, "MOVED_BYTES", 0)
    monkeypatch.setattr(checkpoint, "LONG_PAGES", 0)
    journal = SqliteJournal(path)
    await journal.open()
    await (await Log.create(journal)).append(rows(1))
    journal._checkpointer.wrote(checkpoint.SYNCED_BYTES)
    await journal.close()
    assert "write-ahead log" not in caplog.text


async def test_a_full_disk_is_unavailable_and_nothing_is_done(path: str):
    journal = SqliteJournal(path)
    await journal.open()
    log = await Log.create(journal)
    pages = execute(path, "PRAGMA page_count")[0][0]
    await journal._writer.run(
        lambda connection: connection.execute(f"PRAGMA max_page_count = {pages + 2}").fetchone()
    )
    with pytest.raises(JournalUnavailable, match="full"):
        await log.append(rows(*range(100_000)))
    await log.append(rows(1))
    assert await log.tags() == [1]
    await journal.close()


async def test_a_cancelled_append_does_not_stop_the_next_one(path: str):
    journal = SqliteJournal(path)
    await journal.open()
    log = await Log.create(journal)
    appending = asyncio.create_task(log.append(rows(1)))
    await asyncio.sleep(0)
    appending.cancel()
    await log.append(rows(2))
    assert (await log.tags())[-1] == 2
    await journal.close()


async def test_rows_of_a_deleted_model_that_were_left_go_at_the_next_start(
    sqlite_store: Store, path: str, monkeypatch: pytest.MonkeyPatch
):
    async def died(self: SqliteJournal) -> None:
        pass

    async with sqlite_store.journal() as journal:
        log = await Log.create(journal)
        for tag in range(20):
            await log.append(*(rows(tag, id=f"{tag} {number}") for number in range(100)))
        await log.append(rows(1, id="1 1"))
        appended = await log.append(rows(1))
        where = (log.model, log.incarnation, appended.seq or 0, appended.chain)
        await journal.snapshot_put(*where, bytes(20 << 20))
        monkeypatch.setattr(SqliteJournal, "_sweep", died)
        await journal.delete(log.model)
        monkeypatch.undo()
    tables = ("entries", "keys", "nonces", "snapshots", "snapshot_parts", "garbage")
    counts = [f"SELECT count(*) FROM {table}" for table in tables]
    assert all(count for (count,) in execute(path, *counts))
    async with sqlite_store.journal():
        assert [count for (count,) in execute(path, *counts)] == [0] * len(tables)


@pytest.mark.parametrize("how", ["trim", "delete"])
async def test_long_entries_go_a_few_at_a_time(
    sqlite_store: Store, path: str, monkeypatch: pytest.MonkeyPatch, how: str
):
    """Others write between, and no more is deleted before the log is moved on."""
    short, long = rows(*range(100)), rows(*range(1000))
    done: list[int | str] = []

    async def caught_up(self: Checkpointer) -> None:
        done.append("moved")

    async with sqlite_store.journal() as journal:
        log = await Log.create(journal)
        for part in (short, short, short, long, short):
            appended = await log.append(part)
        monkeypatch.setattr(trim, "STEP_BYTES", 2 * len(short.body))
        monkeypatch.setattr(Checkpointer, "wrote", lambda self, size: done.append(size))
        monkeypatch.setattr(Checkpointer, "caught_up", caught_up)
        if how == "trim":
            await journal.trim(log.model, log.incarnation, appended.seq or 0)
        else:
            await journal.delete(log.model)
        one = len(short.body)
        assert done[::2] == [2 * one, one, len(long.body), one]
        assert done[1::2] == ["moved"] * 4
    assert execute(path, "SELECT count(*) FROM entries") == [(0,)]


async def test_what_is_written_moves_into_the_database_beside_the_appends(
    sqlite_store: Store, path: str
):
    wide = rows(*range(4000))
    async with sqlite_store.journal() as journal:
        log = await Log.create(journal)
        for _ in range(500):
            await log.append(wide)
        written = 500 * len(wide.body)
        # A slow disk is behind, but catches up while appends go on.
        deadline = asyncio.get_running_loop().time() + 30
        while Path(path).stat().st_size <= written / 2:
            assert asyncio.get_running_loop().time() < deadline
            await log.append(wide)


async def test_calls_after_closing_are_refused(sqlite_store: Store):
    async with sqlite_store.journal() as journal:
        pass
    with pytest.raises(JournalUnavailable, match="closed"):
        await asyncio.wait_for(journal.ping(), 5)


async def test_the_log_is_synced_often_and_moved_seldom(
    sqlite_store: Store, path: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checkpoint, "SYNCED_WRITES", 4)
    monkeypatch.setattr(checkpoint, "MOVED_BYTES", 12 * checkpoint.WRITE_BYTES)
    done: list[str] = []
    sync, move = checkpoint._sync, checkpoint._move
    monkeypatch.setattr(checkpoint, "_sync", lambda log: done.append("synced") or sync(log))
    monkeypatch.setattr(checkpoint, "_move", lambda by: done.append("moved") or move(by))
    async with sqlite_store.journal() as journal:
        assert isinstance(journal, SqliteJournal)
        log = await Log.create(journal)
        for number in range(24):
            await log.append(rows(number))
            if journal._checkpointer._running is not None:
                await journal._checkpointer._running
    assert done == ["synced", "synced", "moved"] * 2


async def test_log_of_a_linked_file_is_synced(
    sqlite_store: Store, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(os.fstat(file).st_ino))
    (tmp_path / "link.db").symlink_to(path)
    async with Store(f"sqlite:///{tmp_path / 'link.db'}").journal() as journal:
        assert isinstance(journal, SqliteJournal)
        await Log.create(journal)
        monkeypatch.setattr(journal._checkpointer, "empty", _busy)
        await journal.settle()
        assert synced == [os.stat(f"{path}-wal").st_ino]


async def _busy() -> bool:
    return False


async def test_the_log_starts_over_though_writes_never_cease(
    sqlite_store: Store, path: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checkpoint, "SYNCED_WRITES", 40)
    monkeypatch.setattr(checkpoint, "MOVED_BYTES", 0)
    monkeypatch.setattr(checkpoint, "LONG_PAGES", 1)
    write = "INSERT OR REPLACE INTO store (name, value) VALUES ('n', 'x')"
    async with sqlite_store.journal() as journal:
        assert isinstance(journal, SqliteJournal)
        writer, reader = journal._connect(), journal._connect()

        async def in_writer(task):
            reader.execute("ROLLBACK")
            return task(writer)

        checkpointer = Checkpointer(path, journal._connect, in_writer, FileChecks(path))
        await checkpointer.start()
        for number in range(checkpoint.SYNCED_WRITES):
            if number == 20:  # what comes now is not moved while this one may read the file
                reader.execute("BEGIN")
                reader.execute("SELECT * FROM store").fetchall()
            writer.execute(write)
            checkpointer.wrote(1)
        assert checkpointer._running is not None
        await checkpointer._running
        writer.execute(write)
        assert checkpoint._move(writer) < 10  # pages of the log
        await checkpointer.stop()
        writer.close()
        reader.close()
