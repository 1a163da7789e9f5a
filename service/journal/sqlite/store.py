"""SQLite store of the journal: a writer thread, a reader thread and a checkpointer."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import TypeVar

from dualstream.service.journal.chain import new_incarnation
from dualstream.service.journal.input_streams import InputMove
from dualstream.service.journal.protocol import (
    DEFAULT_LIMITS,
    ENTRY_BYTES,
    Announced,
    Appended,
    AppendRequest,
    Audited,
    AwaitingLabels,
    Base,
    Change,
    CopyUse,
    Entry,
    Head,
    Known,
    Lease,
    Limits,
    ModelRecord,
    NewPendingRow,
    Overdue,
    PendingRow,
    Place,
    Revision,
    Snapshot,
    StoredCopy,
    Version,
)
from dualstream.service.journal.sqlite import (
    append,
    audit,
    keys as stored_keys,
    load_base as base,
    log,
    models,
    pending_rows,
    rate_buckets,
    snapshots,
    state_copies,
    trim,
    usage,
)
from dualstream.service.journal.sqlite.heads import KnownHeads, find_head
from dualstream.service.journal.sqlite.models import find_heads
from dualstream.service.journal.sqlite.schema import connect
from dualstream.service.journal.sqlite.transactions import Task, in_read, in_write
from dualstream.service.journal.sqlite.transfer import SqliteTransfer
from dualstream.service.journal.sqlite.trim import Deleted
from dualstream.service.journal.sqlite.wal import Checkpointer, LogWatch, data_version
from dualstream.service.journal.sqlite.writer_thread import ConnectionThread
from dualstream.service.journal.usage import Usage

T = TypeVar("T")


class SqliteJournal(SqliteTransfer):
    """`Journal` in a SQLite file in WAL mode; several processes of one host may share it.

    durability      `normal`: synced at checkpoints, a power cut may lose the last appends;
                    `full`: synced at each append
    busy_timeout_s  how long a write waits for other processes before JournalUnavailable
    """

    def __init__(
        self,
        path: str,
        durability: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
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

    def _make_threads(self) -> None:
        self._heads = KnownHeads()
        self._writer = ConnectionThread("journal-writer", self._connect, self._path)
        self._reader = ConnectionThread("journal-reader", self._connect, self._path)
        self._checkpointer = Checkpointer(self._path, self._connect, self._writer.run)

    async def open(self) -> None:
        await self.close()  # reopening starts new threads
        self._make_threads()
        self._openings += 1
        try:
            await self._writer.start()
            await self._reader.start()
            await self._checkpointer.start()
            await self._sweep()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        await self._writer.stop()
        await self._reader.stop()
        await self._checkpointer.stop()

    async def ping(self) -> None:
        await self._read(lambda connection: connection.execute("SELECT 1 FROM store").fetchone())
        await self._write(lambda connection: None)  # takes and releases the write lock

    def durability(self) -> str:
        return self._durability

    def log_name(self, model: str) -> str:
        return f"{self._path}, table entries"

    def spec_name(self, model: str) -> str:
        return f"{self._path}, table models"

    async def claim_identity(self, mine: str) -> str:
        def task(connection: sqlite3.Connection) -> str:
            connection.execute(
                "INSERT OR IGNORE INTO store (name, value) VALUES ('identity', ?)", (mine,)
            )
            return _identity(connection) or mine

        return await self._write(task)

    async def identity(self) -> str | None:
        return await self._read(_identity)

    async def adopt_identity(self, mine: str) -> None:
        await self._write(
            lambda connection: connection.execute(
                "INSERT OR REPLACE INTO store (name, value) VALUES ('identity', ?)", (mine,)
            )
        )

    async def create(
        self, model: str, spec: bytes, given: bytes, change: Change | None = None
    ) -> tuple[ModelRecord, bool]:
        made = _new_record(model, spec, given)
        return await self._write(models.create(made, change, self._limits))

    async def get(self, model: str) -> ModelRecord:
        return await self._read(models.get(model))

    async def base(self, model: str, limit_bytes: int = ENTRY_BYTES) -> Base:
        return await self._reader.read(base.read(model, limit_bytes, self._path))

    async def heads(self, models: Sequence[str]) -> list[Head | None]:
        return await self._read(find_heads(models))

    async def revision(self) -> Revision:
        # On the reading connection, which notices the writer's commits, too.
        return self._openings, await self._reader.run(data_version)

    async def announcements(self) -> AsyncGenerator[Announced, None]:
        # On the writing connection, so only commits of other processes count: checking every model
        # after this process's own appends would take a tenth of its time. If an append has read
        # `data_version` since the last look at the log file, its value is used.
        seen: int | None = None
        watch, found = LogWatch(self._path), self._heads.found
        while True:
            if watch.should_poll():
                if self._heads.found != found:
                    found, version = self._heads.found, self._heads.version
                else:
                    version = await self._writer.run(data_version)
                if version != seen:
                    seen = version
                    yield Announced()
            await asyncio.sleep(watch.pause_s)

    async def count(self) -> int:
        return await self._read(models.count)

    async def replace(
        self,
        model: str,
        incarnation: str,
        seq: int,
        chain: str,
        spec: bytes,
        given: bytes,
        change: Change | None = None,
    ) -> ModelRecord:
        made = _new_record(model, spec, given)
        stood = (incarnation, seq, chain)
        replaced = await self._write(models.replace(*stood, made, change, self._limits))
        await self._sweep()
        return replaced

    async def delete(
        self,
        model: str,
        incarnation: str | None = None,
        change: Change | None = None,
        at: Place | None = None,
    ) -> None:
        task = models.delete(model, incarnation, change, at, self._limits, _now_ms())
        await self._write(task)
        await self._sweep()

    def append(self, request: AppendRequest) -> "asyncio.Future[Appended]":
        if isinstance(request.cursor, InputMove):
            raise ValueError("SQLite has no inputs; use Redis")
        task = append.append(request, self._limits, _now_ms, self._heads)
        parts = request.parts
        size = len(parts[0].body) if len(parts) == 1 else sum([len(part.body) for part in parts])
        appended = self._writer.write(task, size)
        self._checkpointer.wrote(size)
        return appended

    async def known(
        self, model: str, incarnation: str, keys: Sequence[bytes]
    ) -> list[Known | None]:
        return await self._read(stored_keys.known(model, incarnation, keys, self._limits, _now_ms))

    async def read(
        self, model: str, incarnation: str, after: int, limit_bytes: int = ENTRY_BYTES
    ) -> list[Entry]:
        return await self._read(log.read(model, incarnation, after, limit_bytes))

    async def trim(
        self, model: str, incarnation: str, through: int, behind: int | None = None
    ) -> None:
        await self._delete_in_steps(
            trim.trim_step(model, incarnation, through, behind, self._limits)
        )
        await self._write(state_copies.collect(model, incarnation, self._limits, _now_ms()))

    async def snapshot_put(
        self,
        model: str,
        incarnation: str,
        seq: int,
        chain: str,
        data: bytes,
        replaces: bool = False,
    ) -> bool:
        begin = snapshots.begin(model, incarnation, seq, chain, replaces)
        snapshot = await self._write(begin)
        if snapshot is None:
            return False
        for part, at in enumerate(range(0, len(data), snapshots.PART_BYTES)):
            piece = data[at : at + snapshots.PART_BYTES]
            if not await self._write(snapshots.put_part(snapshot, part, piece)):
                return False
            self._checkpointer.wrote(len(piece))
        return await self._write(snapshots.complete(model, incarnation, snapshot))

    async def snapshot_get(self, model: str, incarnation: str, n: int = 0) -> Snapshot | None:
        return await self._read(snapshots.get(model, incarnation, n, self._path))

    async def snapshots(self, model: str, incarnation: str) -> Sequence[Place]:
        return await self._read(snapshots.places(model, incarnation))

    async def snapshots_drop(self, model: str, incarnation: str, before: int) -> None:
        await self._write(snapshots.drop(model, incarnation, before))

    async def usage(self, model: str, incarnation: str) -> Usage:
        return await self._read(usage.usage(model, incarnation))

    async def copy_put(self, model: str, incarnation: str, data: bytes) -> str:
        digest = await asyncio.to_thread(state_copies.digest_of, data)
        while True:
            begin = state_copies.begin(model, incarnation, digest, len(data), _now_ms())
            copy, is_complete = await self._write(begin)
            if is_complete or await self._put_copy(model, incarnation, copy, data):
                return digest

    async def _put_copy(self, model: str, incarnation: str, copy: int, data: bytes) -> bool:
        """Write a copy; False if it was collected during the writing."""
        parts = range(0, len(data), state_copies.PART_BYTES)
        for part, at in enumerate(parts):
            piece = data[at : at + state_copies.PART_BYTES]
            if not await self._write(state_copies.put_part(copy, part, piece, _now_ms())):
                return False
            self._checkpointer.wrote(len(piece))
        return await self._write(state_copies.complete(model, incarnation, copy, len(parts)))

    async def copy_get(self, model: str, incarnation: str, digest: str) -> bytes | None:
        return await self._read(state_copies.get(model, incarnation, digest))

    async def copies(
        self, model: str, incarnation: str, with_partial: bool = False
    ) -> Sequence[StoredCopy]:
        return await self._read(state_copies.stored(model, incarnation, with_partial))

    async def copy_uses(self, model: str, incarnation: str) -> Sequence[CopyUse]:
        return await self._read(state_copies.uses(model, incarnation))

    async def copy_delete(self, model: str, incarnation: str, digest: str) -> None:
        await self._write(state_copies.delete(model, incarnation, digest))

    async def version_put(
        self, model: str, incarnation: str, version: Version, change: Change | None = None
    ) -> tuple[Version, bool]:
        task = state_copies.name(model, incarnation, version, change, self._limits, _now_ms())
        return await self._write(task)

    async def versions(self, model: str, incarnation: str) -> Sequence[Version]:
        return await self._read(state_copies.versions(model, incarnation))

    async def version_get(self, model: str, incarnation: str, name: str) -> Version | None:
        return await self._read(state_copies.find(model, incarnation, name))

    async def version_delete(
        self, model: str, incarnation: str, name: str, change: Change | None = None
    ) -> bool:
        task = state_copies.unname(model, incarnation, name, change, self._limits, _now_ms())
        return await self._write(task)

    async def audit(
        self, model: str | None = None, after: str | None = None, limit: int = 100
    ) -> Sequence[Audited]:
        return await self._read(audit.read(model, after, limit))

    async def remember(self, model: str, incarnation: str, rows: Sequence[NewPendingRow]) -> int:
        task = pending_rows.remember(model, incarnation, rows, self._limits, _now_ms)
        count = await self._write(task)
        self._checkpointer.wrote(sum([len(row.body) for row in rows]))
        return count

    async def remembered(
        self, model: str, incarnation: str, keys: Sequence[bytes]
    ) -> list[PendingRow | None]:
        return await self._read(pending_rows.remembered(model, incarnation, keys, _now_ms))

    async def awaiting_labels(self) -> list[AwaitingLabels]:
        return await self._read(pending_rows.awaiting_labels(_now_ms, models.AFTER_STAGED))

    async def overdue(self, model: str, incarnation: str, limit: int = 100) -> Overdue:
        task = pending_rows.overdue(model, incarnation, limit, self._limits, _now_ms)
        return await self._write(task)

    async def lease(
        self, bucket: str, rate: int, needed: int, most: int, at_ms: int | None = None
    ) -> Lease:
        # In one transaction with the appends that wait for the writer.
        now_ms = _now_ms() if at_ms is None else at_ms
        return await self._writer.write(rate_buckets.lease(bucket, rate, needed, most, now_ms), 100)

    async def scrub(self, model: str, incarnation: str) -> bool:
        # Deleted rows were overwritten (secure_delete); the write-ahead log may still have them.
        await self._read(lambda connection: find_head(connection, model, incarnation))
        return await self._checkpointer.empty()

    async def settle(self) -> None:
        await self._checkpointer.settle()

    async def cursor(self, model: str, incarnation: str, name: str) -> str | None:
        def task(connection: sqlite3.Connection) -> str | None:
            head = find_head(connection, model, incarnation)
            return append.find_cursor(connection, head.model, name)

        return await self._read(task)

    async def _sweep(self) -> None:
        await self._delete_in_steps(models.sweep_step)

    async def _delete_in_steps(self, step: Task[Deleted]) -> None:
        """Run steps until nothing is left to do; other writes come between them."""
        more = True
        while more:
            more, size = await self._write(step)
            if size:
                self._checkpointer.wrote(size)
                await self._checkpointer.caught_up()

    async def _write(self, task: Task[T]) -> T:
        return await self._writer.run(in_write(task, self._path))

    async def _read(self, task: Task[T]) -> T:
        return await self._reader.run(in_read(task, self._path))

    # Last, because it shadows the type `list` in what follows.
    async def list(self, after: str = "", limit: int = 100) -> list[ModelRecord]:
        return await self._read(models.list_models(after, limit))


def _identity(connection: sqlite3.Connection) -> str | None:
    """The numeric identity in force."""
    found = connection.execute("SELECT value FROM store WHERE name = 'identity'").fetchone()
    return None if found is None else found[0]


def _new_record(model: str, spec: bytes, given: bytes) -> ModelRecord:
    return models.new_model(model, new_incarnation(spec), spec, given, _now_ms())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
