"""Moves what the write-ahead log holds into the database file, beside the writer.

A checkpoint waits for the disk twice. SQLite would make it within the commit that fills the log,
and every append would wait behind that one; a passive checkpoint on another connection lets
writers go on. The log starts over at its beginning once a checkpoint finds it all moved.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress

from service.journal.protocol import JournalUnavailable
from service.journal.sqlite.worker import Worker

EVERY_WRITES = 256
EVERY_BYTES = 16 << 20
"""Appends wait for the disk while it syncs: for less, those of a MiB took up to twice as long."""
# Should the log never be found all moved, the commit that takes it beyond this moves the rest.
MOST_PAGES = 16_384


class Checkpointer:
    """Makes a checkpoint after so many writes or bytes, one at a time."""

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._worker = Worker("journal-checkpointer", connect)
        self._writes = 0
        self._bytes = 0
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._worker.start()

    async def stop(self) -> None:
        if self._running is not None:
            await asyncio.wait([self._running])
        await self._worker.stop()

    def wrote(self, size: int) -> None:
        """Take note of one committed write of about `size` bytes."""
        self._writes += 1
        self._bytes += size
        if self._writes < EVERY_WRITES and self._bytes < EVERY_BYTES:
            return
        if self._running is None or self._running.done():
            self._writes = self._bytes = 0
            self._running = asyncio.create_task(self._checkpoint())

    async def empty(self) -> bool:
        """Move all of the log into the file and cut it to nothing; False while others use it.

        Raises JournalUnavailable.
        """
        return await self._worker.run(_truncate)

    async def _checkpoint(self) -> None:
        # Not to be reported: nothing is lost, and the next one moves what this one did not.
        with suppress(JournalUnavailable, sqlite3.Error):
            await self._worker.run(_passive)


def _passive(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _truncate(connection: sqlite3.Connection) -> bool:
    try:
        [is_busy, _, _] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        raise JournalUnavailable(f"SQLite: {error}") from error
    return not is_busy
