"""A SQLite file that was removed or replaced, or that the disk does not take, is not written to."""

import errno
import logging
import os
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dualstream.service.journal.protocol import Journal, JournalUnavailable, UnknownModel
from dualstream.service.journal.sqlite import wal
from dualstream.service.journal.sqlite.store import SqliteJournal
from tests.service.journal.conftest import Store
from tests.service.journal.groups import CLIENT_SPEC, SPEC, Log, rows

pytestmark = pytest.mark.anyio

File = Path
Harm = Callable[[File], object]


def remove(file: File) -> None:
    file.unlink()


def rename(file: File) -> None:
    file.rename(file.with_suffix(".old"))


def replace_by_a_copy(file: File) -> None:
    copy = file.with_suffix(".copy")
    shutil.copy(file, copy)
    copy.rename(file)


def replace_by_a_new_store(file: File) -> None:
    file.unlink()
    sqlite3.connect(file).execute("CREATE TABLE t (x)").connection.close()


def remove_log(file: File) -> None:
    Path(f"{file}-wal").unlink()


def remove_index(file: File) -> None:
    Path(f"{file}-shm").unlink()


def remove_folder(file: File) -> None:
    shutil.rmtree(file.parent)


WRITES: list[Callable[[Journal, Log], Awaitable[object]]] = [
    lambda journal, log: log.append(rows(2)),
    lambda journal, log: log.append(rows(3, id="a")),
    lambda journal, log: journal.create("other", SPEC, CLIENT_SPEC),
    lambda journal, log: journal.snapshot_put(log.model, log.incarnation, 1, "c", b"data"),
    lambda journal, log: journal.delete(log.model),
    lambda journal, log: journal.ping(),
]


async def refuses_to_write(journal: Journal, log: Log, why: str) -> None:
    for write in WRITES:
        with pytest.raises(JournalUnavailable, match=why):
            await write(journal, log)


@pytest.mark.parametrize(
    "harm",
    [
        remove,
        rename,
        replace_by_a_copy,
        replace_by_a_new_store,
        remove_log,
        remove_index,
        remove_folder,
    ],
)
@pytest.mark.parametrize("is_link", [False, True])
async def test_a_moved_file_is_not_written_to_until_a_restart(
    tmp_path: Path, harm: Harm, is_link: bool
) -> None:
    file = tmp_path / "folder" / "store.db"
    file.parent.mkdir()
    url = f"sqlite:///{file}"
    if is_link:
        (tmp_path / "link.db").symlink_to(file)
        url = f"sqlite:///{tmp_path / 'link.db'}"
    async with Store(url).journal() as journal:
        log = await Log.create(journal)
        await log.append(rows(1))
        await journal.ping()
        harm(file)
        with pytest.raises(JournalUnavailable, match="restart"):
            await journal.ping()
        await refuses_to_write(journal, log, "removed|replaced")
        assert await journal.read(log.model, log.incarnation, 0)  # it still predicts
        if harm is remove:
            await journal.open()
            await journal.ping()
            with pytest.raises(UnknownModel):
                await journal.get(log.model)


async def test_a_file_in_use_is_not_taken_for_another(sqlite_store: Store) -> None:
    """Checkpoints, rewrites and other processes keep the files."""
    async with sqlite_store.journal() as journal, sqlite_store.journal() as other:
        log = await Log.create(journal)
        for number in range(5):
            await log.append(rows(number))
            await journal.settle()
            await other.scrub(log.model, log.incarnation)
            await journal.ping(writes=True)
            await other.ping(writes=True)
        await other.close()
        await journal.ping()


class FailingDisk:
    """fsync of the write-ahead log and checkpoints fail while `is_failing`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_failing = True
        self.moved = 0
        fsync, move, truncate = os.fsync, wal._move, wal._truncate
        monkeypatch.setattr(os, "fsync", lambda file: self._fail() or fsync(file))
        monkeypatch.setattr(wal, "_move", lambda db: self._fail_sqlite() or move(db))
        monkeypatch.setattr(wal, "_truncate", lambda db: self._fail_sqlite() or truncate(db))

    def _fail(self) -> None:
        if self.is_failing:
            raise OSError(errno.EIO, "planted")

    def _fail_sqlite(self) -> None:
        if self.is_failing:
            error = sqlite3.OperationalError("planted disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error


async def write_until_tended(journal: SqliteJournal, log: Log) -> None:
    """Append until the checkpointer has run."""
    while journal._checkpointer._running is None:
        await log.append(rows(1))
    await journal._checkpointer.caught_up()


@pytest.mark.parametrize("synced_bytes", [1, 1 << 30])
async def test_a_failed_sync_is_reported_until_a_checkpoint_succeeds(
    sqlite_store: Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    synced_bytes: int,
) -> None:
    """Both for a sync and for a checkpoint."""
    monkeypatch.setattr(wal, "SYNCED_WRITES", 4)
    monkeypatch.setattr(wal, "MOVED_BYTES", synced_bytes)
    async with sqlite_store.journal() as journal:
        assert isinstance(journal, SqliteJournal)
        log = await Log.create(journal)
        disk = FailingDisk(monkeypatch)
        with caplog.at_level(logging.WARNING):
            await write_until_tended(journal, log)
        assert "cannot write" in caplog.text and "planted" in caplog.text
        for _ in range(3):
            await refuses_to_write(journal, log, "planted.*check the disk")
        assert caplog.text.count("cannot write") == 2  # the error, and the task that it ended
        disk.is_failing = False
        written = log_size(sqlite_store)
        assert written > 0
        await journal.ping()
        assert log_size(sqlite_store) == 0  # all of it is in the file
        assert (await log.append(rows(1))).seq is not None
        assert len(await journal.read(log.model, log.incarnation, 0)) > 4


async def test_a_sync_that_succeeds_after_a_failed_one_is_not_trusted(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports the lost pages once. Only a checkpoint writes them again."""
    monkeypatch.setattr(wal, "SYNCED_WRITES", 4)
    async with sqlite_store.journal() as journal:
        assert isinstance(journal, SqliteJournal)
        log = await Log.create(journal)
        disk = FailingDisk(monkeypatch)
        await write_until_tended(journal, log)
        disk.is_failing = False
        reader = sqlite3.connect(sqlite_store.url.removeprefix("sqlite:///"), isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entries").fetchone()
        monkeypatch.setattr(journal._checkpointer, "empty", _busy)
        await refuses_to_write(journal, log, "planted")
        reader.close()
        monkeypatch.undo()
        await journal.ping()
        await log.append(rows(1))


async def _busy() -> bool:
    return False


def log_size(store: Store) -> int:
    """Size of the write-ahead log."""
    return os.path.getsize(store.url.removeprefix("sqlite:///") + "-wal")
