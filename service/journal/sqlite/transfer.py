"""Reading and staging of whole models in SQLite.

A staged model is a row of the table `models` with an id that no model can have and no list shows.
"""

import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from dualstream.service.journal.audit import Audited
from dualstream.service.journal.chain import next_chain
from dualstream.service.journal.protocol import Conflict, Entry, ModelRecord, PendingRow
from dualstream.service.journal.sqlite import (
    audit,
    models,
    pending_rows,
    state_copies,
)
from dualstream.service.journal.sqlite.heads import find_head
from dualstream.service.journal.sqlite.nonces import RESTORED
from dualstream.service.journal.sqlite.transactions import Task
from dualstream.service.journal.state_copies import CopyUse
from dualstream.service.journal.transfer import (
    KeptKey,
    Position,
    Staged,
    chain_at_start,
    staged_incarnation,
)

KEYS_AT_ONCE = 5000

T = TypeVar("T")


class SqliteTransfer:
    """`TransferJournal` in a SQLite file."""

    async def _write(self, task: Task[T]) -> T:
        raise NotImplementedError

    async def _read(self, task: Task[T]) -> T:
        raise NotImplementedError

    async def _sweep(self) -> None:
        raise NotImplementedError

    async def position(self, model: str) -> Position:
        def task(connection: sqlite3.Connection) -> Position:
            record = models.get(model)(connection)
            head = find_head(connection, model, record.incarnation)
            cursors = connection.execute(
                "SELECT name, value FROM cursors WHERE model = ? ORDER BY name", (head.model,)
            )
            return Position(record, head.trimmed, dict(cursors.fetchall()))

        return await self._read(task)

    async def kept_keys(self, model: str, incarnation: str) -> AsyncIterator[Sequence[KeptKey]]:
        start: int | None = 0
        while start is not None:
            keys, start = await self._read(_some_keys(model, incarnation, start))
            yield keys

    async def kept_rows(self, model: str, incarnation: str) -> Sequence[PendingRow]:
        return await self._read(pending_rows.kept(model, incarnation))

    async def stage(self, record: ModelRecord, trimmed: int, cursors: Mapping[str, str]) -> Staged:
        staged = Staged(models.STAGED + record.id, staged_incarnation())
        await self._write(_stage(staged, record, trimmed, cursors))
        await self._sweep()
        return staged

    async def stage_entries(
        self, staged: Staged, entries: Sequence[Entry], uses: Sequence[CopyUse]
    ) -> None:
        await self._write(_add_entries(staged, entries, uses))

    async def stage_keys(self, staged: Staged, keys: Sequence[KeptKey]) -> None:
        await self._write(_add_keys(staged, keys))

    async def stage_rows(self, staged: Staged, rows: Sequence[PendingRow]) -> None:
        await self._write(pending_rows.put(*staged, rows))

    async def show(self, staged: Staged, record: ModelRecord) -> None:
        await self._write(_show(staged, record))

    async def discard(self, staged: Staged) -> None:
        def task(connection: sqlite3.Connection) -> None:
            found = models.find(connection, staged.name)
            if found is not None and found.incarnation == staged.incarnation:
                models.remove(connection, staged.name)

        await self._write(task)
        await self._sweep()

    async def put_changes(self, changes: Sequence[Audited]) -> None:
        await self._write(audit.put(changes))


def _some_keys(
    model: str, incarnation: str, start: int
) -> Task[tuple[Sequence[KeptKey], int | None]]:
    def task(connection: sqlite3.Connection) -> tuple[list[KeptKey], int | None]:
        head = find_head(connection, model, incarnation)
        rows = connection.execute(
            "SELECT key, seq, count, fingerprint, time_ms, number FROM keys"
            " WHERE model = ? AND number >= ? ORDER BY number LIMIT ?",
            (head.model, start, KEYS_AT_ONCE),
        ).fetchall()
        keys = [KeptKey(*row[:-1]) for row in rows]
        return keys, rows[-1][-1] + 1 if rows else None

    return task


def _stage(
    staged: Staged, record: ModelRecord, trimmed: int, cursors: Mapping[str, str]
) -> Task[None]:
    def task(connection: sqlite3.Connection) -> None:
        found = models.find(connection, record.id)
        if found is not None:
            raise models.conflict(found)
        if models.find(connection, staged.name) is not None:
            models.remove(connection, staged.name)
        begins = msgspec.structs.replace(
            record,
            id=staged.name,
            incarnation=staged.incarnation,
            seq=trimmed,
            chain=chain_at_start(record, trimmed),
        )
        models.insert(connection, begins)
        number = find_head(connection, *staged).model
        connection.execute(
            "UPDATE heads SET trimmed = ?, nonces = ? WHERE model = ?", (trimmed, RESTORED, number)
        )
        connection.executemany(
            "INSERT INTO cursors (model, name, value) VALUES (?, ?, ?)",
            [(number, name, value) for name, value in cursors.items()],
        )

    return task


def _add_entries(staged: Staged, entries: Sequence[Entry], uses: Sequence[CopyUse]) -> Task[None]:
    def task(connection: sqlite3.Connection) -> None:
        head = find_head(connection, *staged)
        seq, chain = head.seq, head.chain
        for entry in entries:
            follows = not chain or next_chain(chain, entry.nonce) == entry.chain
            if entry.first_seq != seq + 1 or not follows:
                raise Conflict(f"the entry at seq {entry.seq} does not follow from seq {seq}")
            seq, chain = entry.seq, entry.chain
        connection.executemany(
            "INSERT INTO entries (first_seq, seq, nonce, chain, time_ms, body, model)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (e.first_seq, e.seq, e.nonce, e.chain, e.time_ms, e.body, head.model)
                for e in entries
            ],
        )
        for use in uses:
            state_copies.use(connection, head.model, use.seq, use.digest)
        connection.execute(
            "UPDATE heads SET seq = ?, chain = ? WHERE model = ?", (seq, chain, head.model)
        )

    return task


def _add_keys(staged: Staged, keys: Sequence[KeptKey]) -> Task[None]:
    def task(connection: sqlite3.Connection) -> None:
        head = find_head(connection, *staged)
        connection.executemany(
            "INSERT INTO keys (model, number, key, seq, count, fingerprint, time_ms)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (head.model, number, k.key, k.seq, k.records, k.fingerprint, k.time_ms)
                for number, k in enumerate(keys, head.next_key)
            ],
        )
        connection.execute(
            "UPDATE heads SET next_key = ? WHERE model = ?",
            (head.next_key + len(keys), head.model),
        )

    return task


def _show(staged: Staged, record: ModelRecord) -> Task[None]:
    def task(connection: sqlite3.Connection) -> None:
        found = models.find(connection, record.id)
        if found is not None:
            raise models.conflict(found)
        head = find_head(connection, *staged)
        if (head.seq, head.chain) != (record.seq, record.chain):
            raise Conflict(f"the staged log of {record.id!r} ends at seq {head.seq}")
        connection.execute(
            "UPDATE models SET id = ?, incarnation = ? WHERE id = ?",
            (record.id, record.incarnation, staged.name),
        )

    return task
