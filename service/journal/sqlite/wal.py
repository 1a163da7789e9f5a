"""Syncs the write-ahead log, and moves what it holds into the database file, beside the writer.

A checkpoint waits for the disk twice. SQLite would make it within the commit that fills the log,
and every append would wait behind that one; a passive checkpoint on another connection lets
writers go on. So the log is synced often, as a power cut takes what came since, and moved seldom:
a page that many appends write is then moved once.

The log starts over at its beginning once a checkpoint finds it all moved. Where appends never
cease one beside them never does; then the writer makes one between two of them, of the little that
came while the one beside it moved the rest.
"""

import asyncio
import math
import os
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from dualstream.service.concurrency import lower_priority
from dualstream.service.journal.protocol import JournalUnavailable
from dualstream.service.journal.sqlite.transactions import Task
from dualstream.service.journal.sqlite.writer_thread import ConnectionThread

SYNCED_WRITES = 256
SYNCED_BYTES = 16 << 20
"""Appends wait for the disk while it syncs: for less, those of a MiB took up to twice as long."""
MOVED_BYTES = 16 << 20
"""Of the log, about."""
WRITE_BYTES = 3 * 4096
"""What a write takes of the log beside its bytes: pages of head, entries and their index."""
LONG_PAGES = 12_288
"""Of a log that the writer lets start over."""
REPEATED = 2
"""Checkpoints before that, each of which finds less that came during the one before."""
# Should that come to nothing, too, the commit that takes the log beyond this moves the rest.
MAX_PAGES = 4 * LONG_PAGES
NICENESS = 10
"""Moving pages takes some milliseconds of a core, which appends would wait for."""


class Checkpointer:
    """Syncs the log, or makes a checkpoint, after so many writes or bytes, one at a time.

    in_writer   does a task with the connection that writes, between two of its own
    """

    def __init__(
        self,
        path: str,
        connect: Callable[[], sqlite3.Connection],
        in_writer: Callable[[Task[int]], Awaitable[int]],
    ) -> None:
        self._log = log_of(path)
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
        """Take note of one write of about `size` bytes, which is done or soon will be."""
        self._writes += 1
        self._bytes += size
        if self._writes < SYNCED_WRITES and self._bytes < SYNCED_BYTES:
            return
        if self._running is None or self._running.done():
            self._log_bytes += self._writes * WRITE_BYTES + self._bytes
            self._writes = self._bytes = 0
            self._running = asyncio.create_task(self._tend())

    async def caught_up(self) -> None:
        """Wait while it runs, for who would write faster than the log can be moved."""
        if self._running is not None:
            await asyncio.wait([self._running])

    async def empty(self) -> bool:
        """Move all of the log into the file and cut it to nothing; False while others use it.

        Raises JournalUnavailable.
        """
        return await self._thread.run(_truncate)

    async def settle(self) -> None:
        """Return once all that was committed is on the disk.

        Raises JournalUnavailable.
        """
        if not await self.empty():
            await self._thread.run(lambda connection: _sync(self._log))

    async def _tend(self) -> None:
        # Not to be reported: nothing is lost, and the next one does what this one did not.
        with suppress(JournalUnavailable, sqlite3.Error, OSError):
            if self._log_bytes < MOVED_BYTES:
                await self._thread.run(lambda connection: _sync(self._log))
            else:
                self._log_bytes = 0
                if await self._thread.run(_move) >= LONG_PAGES:
                    for _ in range(REPEATED):
                        await self._thread.run(_move)
                    await self._in_writer(_move)


def _sync(log: str) -> None:
    """SQLite's locks are on other files: to close this one lets go of none."""
    file = os.open(log, os.O_RDWR)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _move(connection: sqlite3.Connection) -> int:
    """Move what no reader needs in the log; how many pages the log has, moved or not."""
    [_, pages, _] = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return int(pages)


def _truncate(connection: sqlite3.Connection) -> bool:
    try:
        [is_busy, _, _] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        raise JournalUnavailable(f"SQLite: {error}") from error
    return not is_busy


WATCH_S, REST_S = 0.05, 0.1
"""How often the log is looked at, and once it has not changed for RESTING_S."""
RESTING_S = 5.0
SETTLED_S = 0.25
"""Once the log has stayed as it is for so long, all that is in it counts, most likely."""
ASKED_S = 0.5
"""SQLite is asked so often at least."""


def log_of(path: str) -> str:
    """The path of the write-ahead log: SQLite has it beside the file that links lead to."""
    return f"{os.path.realpath(path)}-wal"


class LogWatch:
    """The write-ahead log of the file at `path`."""

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log_of(path)
        self._clock = clock
        self._seen: tuple[int, int, int] | None = None
        self._changed_at = self._asked_at = -math.inf

    def should_poll(self) -> bool:
        """Whether others may have committed something since this was so last."""
        now = self._clock()
        found = self._look()
        if found is None or found != self._seen:
            self._seen, self._changed_at = found, now
        if now >= self._changed_at + SETTLED_S and now < self._asked_at + ASKED_S:
            return False
        self._asked_at = now
        return True

    @property
    def pause_s(self) -> float:
        """Until the next look."""
        return REST_S if self._clock() >= self._changed_at + RESTING_S else WATCH_S

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = os.stat(self._log)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size


def data_version(connection: sqlite3.Connection) -> int:
    """A number that is another one once another connection has committed something."""
    try:
        version: int = connection.execute("PRAGMA data_version").fetchone()[0]
    except sqlite3.Error as error:
        raise JournalUnavailable(f"SQLite: {error}") from error
    return version
