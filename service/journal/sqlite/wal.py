"""Write-ahead log (WAL) of SQLite: syncs and checkpoints outside the writer thread.

A checkpoint waits for the disk twice. SQLite would run it within the commit that fills the WAL, and
every append would wait for it; a passive checkpoint on another connection lets writers go on. The
WAL is synced often, because a power cut loses what is not synced, and checkpointed rarely, because
a page changed by many appends is then written to the file once.

The WAL restarts at its beginning once a checkpoint has moved all of it. If appends never pause, a
checkpoint in another thread never does. Then the writer runs one between two appends, for the few
pages that were added during the last one.
"""

import asyncio
import logging
import math
import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar

from dualstream.service.concurrency import lower_priority
from dualstream.service.journal.protocol import Announced, JournalUnavailable
from dualstream.service.journal.sqlite.connection_thread import ConnectionThread, Task
from dualstream.service.journal.sqlite.file_checks import FileChecks

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
NICENESS = 10
"""A checkpoint takes some milliseconds of a core, for which appends would wait."""


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


WATCH_S, REST_S = 0.05, 0.1
"""Polling intervals of the WAL, and the one once it has not changed for RESTING_S."""
RESTING_S = 5.0
SETTLED_S = 0.25
"""Once the WAL is unchanged for this long, everything in it is most likely visible."""
ASKED_S = 0.5
"""Maximum time between two queries of SQLite."""


def log_of(path: str) -> str:
    """Path of the WAL, which is in the folder of the file that symbolic links resolve to."""
    return f"{os.path.realpath(path)}-wal"


class LogWatch:
    """Detects commits by other processes: checks the WAL's mtime before `data_version`."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log_of(path)
        self._clock = clock
        self._seen: tuple[int, int, int] | None = None
        self._changed_at = self._asked_at = -math.inf

    def should_poll(self) -> bool:
        """May other processes have committed since this last returned True?"""
        now = self._clock()
        found = self._look()
        if found is None or found != self._seen:
            self._seen, self._changed_at = found, now
        if now >= self._changed_at + SETTLED_S and now < self._asked_at + ASKED_S:
            return False
        self._asked_at = now
        return True

    async def commits(
        self, data_version: Callable[[], Awaitable[int]]
    ) -> AsyncGenerator[Announced, None]:
        """Yield an announcement without a model at first, and after commits of other processes."""
        seen: int | None = None
        while True:
            if self.should_poll():
                version = await data_version()
                if version != seen:
                    seen = version
                    yield Announced()
            await asyncio.sleep(self.pause_s)

    @property
    def pause_s(self) -> float:
        """Time until the next look."""
        return REST_S if self._clock() >= self._changed_at + RESTING_S else WATCH_S

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._log)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size


def data_version(connection: sqlite3.Connection) -> int:
    """`PRAGMA data_version`: changes when another connection commits."""
    try:
        version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    except sqlite3.Error as error:
        raise JournalUnavailable(f"SQLite: {error}") from error
    return version
