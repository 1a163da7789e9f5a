"""Models as they are, out of the tables and into them.

A staged model has a row among the others, under an id that no model can have and no list shows.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import TypeVar

from service.journal.audit import Audited
from service.journal.chain import next_chain
from service.journal.copies import CopyUse
from service.journal.moving import MOVED, KeptAppend, KeptKey, Staged, chain_at_start
from service.journal.protocol import Conflict, Entry, Limits, ModelRecord, Place, Remembered
from service.journal.sqlite import answers, audit, copies, models, remembering, snapshots
from service.journal.sqlite.answers import Result, pack_result
from service.journal.sqlite.heads import find_head
from service.journal.sqlite.transactions import Task

KEYS_AT_ONCE = 1000
ROWS_AT_ONCE = 200

T = TypeVar("T")


def staged_id(model: str) -> str:
    """The id of a model while it is staged."""
    return models.STAGED + model


class SqliteMoving:
    """`Movable` in a SQLite file."""

    _limits: Limits

    async def _write(self, task: Task[T]) -> T:
        raise NotImplementedError

    async def _read(self, task: Task[T]) -> T:
        raise NotImplementedError

    async def _sweep(self) -> None:
        raise NotImplementedError

    async def identity(self) -> str | None:
        def task(connection: sqlite3.Connection) -> str | None:
            row = connection.execute("SELECT value FROM store WHERE name = 'identity'").fetchone()
            return None if row is None else row[0]

        return await self._read(task)

    async def kept_keys(
        self, model: str, incarnation: str, start: int
    ) -> tuple[Sequence[KeptKey], int | None]:
        def task(connection: sqlite3.Connection) -> tuple[list[KeptKey], int | None]:
            head = find_head(connection, model, incarnation)
            rows = connection.execute(
                "SELECT key, seq, count, fingerprint, time_ms, number FROM keys"
                " WHERE model = ? AND number >= ? ORDER BY number LIMIT ?",
                (head.model, start, KEYS_AT_ONCE),
            ).fetchall()
            keys = [KeptKey(*row[:-1]) for row in rows]
            return keys, rows[-1][-1] + 1 if rows else None

        return await self._read(task)

    async def kept_appends(self, model: str, incarnation: str) -> Sequence[KeptAppend]:
        def task(connection: sqlite3.Connection) -> list[KeptAppend]:
            head = find_head(connection, model, incarnation)
            found = answers.kept(connection, head, incarnation, self._limits)
            return [KeptAppend(nonce, r.before, r.seq, r.previous, r.left) for nonce, r in found]

        return await self._read(task)

    async def cursors(self, model: str, incarnation: str) -> Mapping[str, str]:
        def task(connection: sqlite3.Connection) -> dict[str, str]:
            head = find_head(connection, model, incarnation)
            rows = connection.execute(
                "SELECT name, value FROM cursors WHERE model = ? AND name <> ? ORDER BY name",
                (head.model, MOVED),
            )
            return dict(rows.fetchall())

        return await self._read(task)

    async def kept_rows(
        self, model: str, incarnation: str, start: int
    ) -> tuple[Sequence[Remembered], int | None]:
        rows = await self._read(remembering.kept(model, incarnation, start, ROWS_AT_ONCE))
        return rows, start + len(rows) if rows else None

    async def stage_rows(
        self, staged: str, incarnation: str, rows: Sequence[Remembered], are_first: bool
    ) -> None:
        await self._write(remembering.put(staged, incarnation, rows, are_first))

    async def stage(
        self,
        record: ModelRecord,
        trimmed: int,
        there: Place | None = None,
        is_anew: bool = False,
    ) -> Staged:
        staged = await self._write(_stage(record, trimmed, there, is_anew))
        await self._sweep()
        return staged

    async def stage_entries(
        self, staged: str, incarnation: str, entries: Sequence[Entry], uses: Sequence[CopyUse]
    ) -> None:
        await self._write(_add_entries(staged, incarnation, entries, uses))

    async def stage_keys(
        self, staged: str, incarnation: str, start: int, keys: Sequence[KeptKey]
    ) -> None:
        await self._write(_add_keys(staged, incarnation, start, keys))

    async def stage_rest(
        self,
        staged: str,
        incarnation: str,
        appends: Sequence[KeptAppend],
        cursors: Mapping[str, str],
    ) -> None:
        await self._write(_put_rest(staged, incarnation, appends, cursors))

    async def put_changes(self, changes: Sequence[Audited]) -> None:
        await self._write(audit.put(changes))

    async def unstage(self, record: ModelRecord) -> None:
        await self._write(_unstage(record))


def _stage(record: ModelRecord, trimmed: int, there: Place | None, is_anew: bool) -> Task[Staged]:
    staged = staged_id(record.id)

    def task(connection: sqlite3.Connection) -> Staged:
        found = models.find(connection, record.id)
        if found is not None:
            is_it = found.incarnation == record.incarnation
            if not is_it or Place(found.seq, found.chain) != there:
                raise models.conflict(found)
            if models.find(connection, staged) is not None:
                models.remove(connection, staged)
            connection.execute("UPDATE models SET id = ? WHERE id = ?", (staged, record.id))
        found = models.find(connection, staged)
        if found is not None:
            is_it = found.incarnation == record.incarnation
            head = find_head(connection, staged, found.incarnation)
            if is_it and not is_anew and head.trimmed == trimmed:
                copies.drop_unfinished(connection, head.model)
                snapshots.drop_unfinished(connection, head.model)
                return Staged(staged, found.incarnation, found.seq, found.chain)
            models.remove(connection, staged)
        begins = ModelRecord(
            staged,
            record.incarnation,
            record.spec,
            record.given,
            record.created_ms,
            trimmed,
            chain_at_start(record, trimmed),
        )
        models.insert(connection, begins)
        connection.execute(
            "UPDATE heads SET trimmed = ? WHERE model = (SELECT model FROM models WHERE id = ?)",
            (trimmed, staged),
        )
        return Staged(staged, begins.incarnation, begins.seq, begins.chain)

    return task


def _add_entries(
    staged: str, incarnation: str, entries: Sequence[Entry], uses: Sequence[CopyUse]
) -> Task[None]:
    def task(connection: sqlite3.Connection) -> None:
        head = find_head(connection, staged, incarnation)
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
            copies.use(connection, head.model, use.seq, use.digest)
        connection.execute(
            "UPDATE heads SET seq = ?, chain = ? WHERE model = ?", (seq, chain, head.model)
        )

    return task


def _add_keys(staged: str, incarnation: str, start: int, keys: Sequence[KeptKey]) -> Task[None]:
    def task(connection: sqlite3.Connection) -> None:
        head = find_head(connection, staged, incarnation)
        if start == 0:
            connection.execute("DELETE FROM keys WHERE model = ?", (head.model,))
        elif head.next_key != start:
            raise Conflict(f"there are {head.next_key} keys, not {start}")
        connection.executemany(
            "INSERT OR REPLACE INTO keys (model, number, key, seq, count, fingerprint, time_ms)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (head.model, start + at, k.key, k.seq, k.records, k.fingerprint, k.time_ms)
                for at, k in enumerate(keys)
            ],
        )
        connection.execute(
            "UPDATE heads SET first_key = 0, next_key = ? WHERE model = ?",
            (start + len(keys), head.model),
        )

    return task


def _put_rest(
    staged: str, incarnation: str, appends: Sequence[KeptAppend], cursors: Mapping[str, str]
) -> Task[None]:
    def task(connection: sqlite3.Connection) -> None:
        head = find_head(connection, staged, incarnation)
        connection.execute("DELETE FROM nonces WHERE model = ?", (head.model,))
        connection.executemany(
            "INSERT INTO nonces (model, nonce, number, result) VALUES (?, ?, ?, ?)",
            [
                (head.model, kept.nonce, number, pack_result(_result(kept)))
                for number, kept in enumerate(appends)
            ],
        )
        connection.execute(
            "UPDATE heads SET nonces = ? WHERE model = ?", (len(appends), head.model)
        )
        connection.execute("DELETE FROM cursors WHERE model = ?", (head.model,))
        connection.executemany(
            "INSERT INTO cursors (model, name, value) VALUES (?, ?, ?)",
            [(head.model, name, value) for name, value in cursors.items()],
        )

    return task


def _result(kept: KeptAppend) -> Result:
    is_new = kept.seq > kept.before
    chain = next_chain(kept.previous, kept.nonce) if is_new else kept.previous
    return Result(kept.before, kept.seq, kept.previous, chain, list(kept.left))


def _unstage(record: ModelRecord) -> Task[None]:
    staged = staged_id(record.id)

    def task(connection: sqlite3.Connection) -> None:
        if models.find(connection, record.id) == record:
            return
        head = find_head(connection, staged, record.incarnation)
        if (head.seq, head.chain) != (record.seq, record.chain):
            raise Conflict(f"what is staged of {record.id!r} ends at seq {head.seq}")
        if models.find(connection, record.id) is not None:
            raise Conflict(f"there is another model {record.id!r}")
        connection.execute("UPDATE models SET id = ? WHERE id = ?", (record.id, staged))

    return task
