"""Write-ahead log (WAL) of SQLite: syncs and checkpoints outside the writer thread, and checks.

A checkpoint waits for the disk twice. SQLite would run it within the commit that fills the WAL, and
every append would wait for it; a passive checkpoint on another connection lets writers go on. The
WAL is synced often, because a power cut loses what is not synced, and checkpointed rarely, because
a page changed by many appends is then written to the file once.

The WAL restarts at its beginning once a checkpoint has moved all of it. If appends never pause, a
checkpoint in another thread never does. Then the writer runs one between two appends, for the few
pages that were added during the last one.

After a failed sync, or once the file was removed or replaced, nothing is written, so that no answer
promises what the disk does not have.
"""

import asyncio
import logging
import os
import sqlite3
from collections.abc import Awaitable, Callable
from typing import TypeVar

from dualstream.service.concurrency import lower_priority
from dualstream.service.journal.protocol import JournalUnavailable
from dualstream.service.journal.sqlite.connection_thread import ConnectionThread, Task

log = logging.getLogger("dualstream.sqlite")
T = TypeVar("T")

SYNCED_WRITES = 256
SYNCED_BYTES = 16 << 20
"""Appends wait for the disk during a sync: with less, appends of 1 MiB took up to twice as long."""
MOVED_BYTES = 16 << 20
"""Approximate bytes of the WAL between checkpoints."""
WRITE_BYTES = 3 * 4096
"""WAL bytes of a write besides its data: pages of head, entries and their index."""
LONG_PAGES = 12_288
"""Pages of a WAL that the writer checkpoints itself, so that it restarts."""
REPEATED = 2
"""Checkpoints before that; each finds fewer pages, added during the one before."""
# If that fails, too, the commit that takes the WAL beyond this size runs the checkpoint.
MAX_PAGES = 4 * LONG_PAGES
MAX_LOG_BYTES = 2 * LONG_PAGES * 4096
"""Size that the file of the WAL keeps when it restarts."""
_SUFFIXES = "", "-wal", "-shm"
NICENESS = 10
"""A checkpoint takes some milliseconds of a core, for which appends would wait."""


class SyncFailed(JournalUnavailable):
    """The operating system could not write the file or its write-ahead log to the disk."""


class FileChecks:
    """Why a SQLite file may not be written to now, if there is a reason."""

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        self._opened: dict[str, tuple[int, int]] = {}
        self._moved: str | None = None
        self.failed_sync: str | None = None
        """Error of the last sync. After it, the kernel takes unwritten pages for written."""

    def opened(self) -> None:
        """Remember which files are open. Call this once all connections are."""
        for suffix in _SUFFIXES:
            if (identity := _identity(self._path + suffix)) is not None:
                self._opened[self._path + suffix] = identity

    def look(self) -> None:
        """Compare the files at the path with the open ones."""
        for path, identity in self._opened.items():
            if self._moved is None and (current := _identity(path)) != identity:
                how = "removed" if current is None else "replaced by another file"
                self._moved = (
                    f"SQLite: {path} was {how} while the server had it open; what is learned now "
                    "is lost, so the server refuses to learn. Restore the file and restart the "
                    "server"
                )
                log.error("%s", self._moved)

    def sync_failed(self, error: Exception) -> SyncFailed:
        """Note a failed sync or checkpoint."""
        if self.failed_sync is None:
            log.error("SQLite cannot write %s to the disk: %s", self._path, error)
        self.failed_sync = str(error)
        return SyncFailed(self._why_not_synced())

    def checkpointed(self) -> None:
        """All content of the write-ahead log is in the file and on the disk."""
        if self.failed_sync is not None:
            log.warning("SQLite has written %s to the disk again", self._path)
        self.failed_sync = None

    def check(self) -> None:
        """Raise JournalUnavailable if the file may not be written to."""
        if self._moved is not None:
            raise JournalUnavailable(self._moved)
        if self.failed_sync is not None:
            raise SyncFailed(self._why_not_synced())

    def _why_not_synced(self) -> str:
        return (
            f"SQLite cannot write {self._path} to the disk: {self.failed_sync}; nothing is "
            "learned until a checkpoint succeeds; check the disk"
        )


class Checkpointer:
    """Syncs or checkpoints the WAL every SYNCED_WRITES writes or SYNCED_BYTES, one at a time.

    in_writer   runs a task on the writing connection, between two of its own
    checks      are informed of failed syncs
    """

    def __init__(
        self,
        path: str,
        connect: Callable[[], sqlite3.Connection],
        in_writer: Callable[[Task[int]], Awaitable[int]],
        checks: FileChecks,
    ) -> None:
        self._log = log_of(path)
        self._checks = checks
        self._in_writer = in_writer
        self._thread = ConnectionThread("journal-checkpointer", connect)
        self._writes = 0
        self._bytes = 0
        self._log_bytes = 0
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._thread.start()
        await self._thread.run(lambda connection: lower_priority(NICENESS))

    async def stop(self) -> None:
        if self._running is not None:
            await asyncio.wait([self._running])
        await self._thread.stop()

    def wrote(self, size: int) -> None:
        """Count one write of about `size` bytes, done or soon to be done."""
        self._writes += 1
        self._bytes += size
        if self._writes < SYNCED_WRITES and self._bytes < SYNCED_BYTES:
            return
        if self._running is None or self._running.done():
            self._log_bytes += self._writes * WRITE_BYTES + self._bytes
            self._writes = self._bytes = 0
            self._running = asyncio.create_task(self._tend())

    async def caught_up(self) -> None:
        """Wait for a running checkpoint, so that callers do not outrun it."""
        if self._running is not None:
            await asyncio.wait([self._running])

    async def empty(self) -> bool:
        """Checkpoint and truncate the WAL; False while others use it.

        Raises JournalUnavailable.
        """
        return await self._reported(self._thread.run(_truncate))

    async def settle(self) -> None:
        """Return once everything committed is on the disk.

        Raises JournalUnavailable.
        """
        if not await self.empty():
            await self._reported(self._thread.run(lambda connection: _sync(self._log)))

    async def recover(self) -> None:
        """After a failed sync, move the whole WAL into the file and sync both.

        A later sync may succeed although the disk lacks pages: the kernel took them for written.
        A checkpoint writes all of them again.

        Raises JournalUnavailable.
        """
        if self._checks.failed_sync is None or not await self.empty():
            return
        await self._reported(self._thread.run(lambda connection: _sync(self._log)))
        self._checks.checkpointed()

    async def _tend(self) -> None:
        try:
            if self._log_bytes < MOVED_BYTES:
                await self._reported(self._thread.run(lambda connection: _sync(self._log)))
            else:
                self._log_bytes = 0
                if await self._reported(self._thread.run(_move)) >= LONG_PAGES:
                    for _ in range(REPEATED):
                        await self._reported(self._thread.run(_move))
                    await self._reported(self._in_writer(_move))
        except JournalUnavailable as error:
            # Nothing is lost: the next run does what this one did not.
            log.warning("SQLite's write-ahead log could not be tended to: %s", error)

    async def _reported(self, task: Awaitable[T]) -> T:
        """Result of a sync or checkpoint. A failure of the disk is noted in the checks.

        Raises JournalUnavailable.
        """
        try:
            return await task
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_IOERR:
                raise self._checks.sync_failed(error) from error
            raise JournalUnavailable(f"SQLite: {error}") from error
        except FileNotFoundError as error:
            raise JournalUnavailable(f"SQLite: {error}") from error
        except OSError as error:
            raise self._checks.sync_failed(error) from error


def _sync(log: str) -> None:
    """fsync the WAL. SQLite's locks are on other files, so closing this one releases none."""
    file = os.open(log, os.O_RDWR)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _move(connection: sqlite3.Connection) -> int:
    """Passive checkpoint; returns the number of pages in the WAL, moved or not."""
    [_, pages, _] = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return int(pages)


def _truncate(connection: sqlite3.Connection) -> bool:
    [is_busy, _, _] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not is_busy


def _identity(path: str) -> tuple[int, int] | None:
    """Device and inode of the file at this path; None without a file."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def log_of(path: str) -> str:
    """Path of the WAL, which is in the folder of the file that symbolic links resolve to."""
    return f"{os.path.realpath(path)}-wal"


def data_version(connection: sqlite3.Connection) -> int:
    """`PRAGMA data_version`: changes when another connection commits."""
    try:
        version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    except sqlite3.Error as error:
        raise JournalUnavailable(f"SQLite: {error}") from error
    return version
