"""SQLite store of the journal: a writer thread, a reader thread and a checkpointer."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from functools import partial
from sqlite3 import Connection

from dualstream.service.journal import protocol
from dualstream.service.journal.sqlite.append import SqliteAppends
from dualstream.service.journal.sqlite.archive_access import SqliteArchiveAccess
from dualstream.service.journal.sqlite.audit import SqliteAudit
from dualstream.service.journal.sqlite.base import reads, writes
from dualstream.service.journal.sqlite.connection_thread import ConnectionThread
from dualstream.service.journal.sqlite.log import HeadCache, find_entries, find_head
from dualstream.service.journal.sqlite.pending_rows import SqlitePendingRows
from dualstream.service.journal.sqlite.rate_buckets import SqliteRateBuckets
from dualstream.service.journal.sqlite.schema import connect
from dualstream.service.journal.sqlite.snapshots import SqliteSnapshots
from dualstream.service.journal.sqlite.steady_clock import SteadyClock
from dualstream.service.journal.sqlite.wal import Checkpointer, FileChecks, data_version

WATCH_S = 0.05
"""Interval at which commits of other processes are looked for."""


class SqliteJournal(
    SqliteAppends,
    SqliteSnapshots,
    SqlitePendingRows,
    SqliteAudit,
    SqliteRateBuckets,
    SqliteArchiveAccess,
):
    """`Journal` in a SQLite file in WAL mode; several processes of one host may share it.

    durability      `normal`: synced at checkpoints, a power cut may lose the last appends;
                    `full`: synced at each append
    busy_timeout_s  how long a write waits for other processes before JournalUnavailable
    """

    def __init__(
        self,
        path: str,
        durability: str | None = None,
        limits: protocol.Limits = protocol.DEFAULT_LIMITS,
        busy_timeout_s: float = 5.0,
    ) -> None:
        self._durability = durability or "normal"
        if self._durability not in ("normal", "full"):
            raise ValueError(f"SQLite's durability is normal or full, not {durability}")
        self._path = path
        self._limits = limits
        self._openings = 0
        self._connect = partial(connect, path, self._durability.upper(), busy_timeout_s)
        self._make_threads()

    @reads
    def _read_clock(self, db: Connection) -> bool:
        return self._clock.start(db)

    @writes
    def _write_clock(self, db: Connection) -> None:
        if not self._clock.start(db):
            self._clock.write(db)

    def _make_threads(self) -> None:
        self._clock = SteadyClock()
        self._heads = HeadCache()
        self._writer = ConnectionThread(
            "journal-writer", self._connect, self._path, self._heads.forget
        )
        self._reader = ConnectionThread("journal-reader", self._connect, self._path)
        self._checks = FileChecks(self._path)
        self._checkpointer = Checkpointer(self._path, self._connect, self._writer.run, self._checks)

    async def open(self) -> None:
        await self.close()  # reopening starts new threads
        self._make_threads()
        self._openings += 1
        try:
            await self._writer.start()
            await self._reader.start()
            await self._checkpointer.start()
            self._checks.opened()
            if not await self._read_clock():
                with suppress(
                    protocol.JournalUnavailable
                ):  # a full disk: the process can still predict
                    await self._write_clock()
            await self._sweep()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._checkpointer.caught_up()  # its last step runs on the writing connection
        await self._writer.stop()
        await self._reader.stop()
        await self._checkpointer.stop()

    async def ping(self, writes: bool = False) -> None:
        self._checks.look()
        await self._checkpointer.recover()
        await self._read_any_row()
        await self._take_write_lock(writes)

    @reads
    def _read_any_row(self, db: Connection) -> None:
        db.execute("SELECT 1 FROM store").fetchone()

    @writes
    def _take_write_lock(self, db: Connection, writes: bool) -> None:
        """Take and release the write lock. With `writes`, change a row, which needs disk space."""
        if writes:
            self._clock.write(db)

    def durability(self) -> str:
        return self._durability

    def log_name(self, model: str) -> str:
        return f"{self._path}, table entries"

    def spec_name(self, model: str) -> str:
        return f"{self._path}, table models"

    async def revision(self) -> protocol.Revision:
        # On the reading connection, which notices the writer's commits, too.
        return self._openings, await self._reader.run(data_version)

    async def announcements(self) -> AsyncGenerator[protocol.Announced, None]:
        seen: int | None = None
        while True:
            version = await self._heads.data_version(self._writer)
            if version != seen:
                seen = version
                yield protocol.Announced()
            await asyncio.sleep(WATCH_S)

    @reads
    def read(
        self,
        db: Connection,
        model: str,
        incarnation: str,
        after: int,
        limit_bytes: int = protocol.ENTRY_BYTES,
    ) -> Sequence[protocol.Entry]:
        head = find_head(db, model, incarnation)
        if after < head.trimmed:
            raise protocol.Trimmed(head.trimmed + 1)
        return find_entries(db, head.model, after, head.seq, limit_bytes)
