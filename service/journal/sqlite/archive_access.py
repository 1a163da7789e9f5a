"""Reading and staging of whole models in SQLite.

A staged model is a row of the table `models` with an id that no model can have and no list shows.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from sqlite3 import Connection

import msgspec

from dualstream.service.journal.archive_access import (
    KeptKey,
    Position,
    Staged,
    chain_at_start,
    staged_incarnation,
)
from dualstream.service.journal.chain import next_chain
from dualstream.service.journal.protocol import Conflict, Entry, ModelRecord
from dualstream.service.journal.sqlite import models
from dualstream.service.journal.sqlite.append import RESTORED
from dualstream.service.journal.sqlite.base import reads, writes
from dualstream.service.journal.sqlite.log import find_head
from dualstream.service.journal.sqlite.schema import STAGED
from dualstream.service.journal.sqlite.state_copies import use_copy
from dualstream.service.journal.state_copies import CopyUse

KEYS_AT_ONCE = 5000


class SqliteArchiveAccess(models.SqliteModels):
    """Reading and staging of whole models."""

    @reads
    def position(self, db: Connection, model: str) -> Position:
        record = models.get_model(db, model)
        head = find_head(db, model, record.incarnation)
        cursors = db.execute(
            "SELECT name, value FROM cursors WHERE model = ? ORDER BY name", (head.model,)
        )
        return Position(record, head.trimmed, dict(cursors.fetchall()))

    async def kept_keys(self, model: str, incarnation: str) -> AsyncIterator[Sequence[KeptKey]]:
        start: int | None = 0
        while start is not None:
            keys, start = await self._some_keys(model, incarnation, start)
            yield keys

    @reads
    def _some_keys(
        self, db: Connection, model: str, incarnation: str, start: int
    ) -> tuple[Sequence[KeptKey], int | None]:
        head = find_head(db, model, incarnation)
        rows = db.execute(
            "SELECT key, seq, count, fingerprint, time_ms + ?, number FROM keys"
            " WHERE model = ? AND number >= ? ORDER BY number LIMIT ?",
            (self._clock.behind_ms(), head.model, start, KEYS_AT_ONCE),
        ).fetchall()
        keys = [KeptKey(*row[:-1]) for row in rows]
        return keys, rows[-1][-1] + 1 if rows else None

    async def stage(self, record: ModelRecord, trimmed: int, cursors: Mapping[str, str]) -> Staged:
        staged = Staged(STAGED + record.id, staged_incarnation())
        await self._stage(staged, record, trimmed, cursors)
        await self._sweep()
        return staged

    @writes
    def _stage(
        self,
        db: Connection,
        staged: Staged,
        record: ModelRecord,
        trimmed: int,
        cursors: Mapping[str, str],
    ) -> None:
        existing = models.find_model(db, record.id)
        if existing is not None:
            raise models.conflict(existing)
        if models.find_model(db, staged.name) is not None:
            models.remove_model(db, staged.name)
        begins = msgspec.structs.replace(
            record,
            id=staged.name,
            incarnation=staged.incarnation,
            seq=trimmed,
            chain=chain_at_start(record, trimmed),
        )
        models.insert_model(db, begins)
        number = find_head(db, *staged).model
        db.execute(
            "UPDATE heads SET trimmed = ?, nonces = ? WHERE model = ?", (trimmed, RESTORED, number)
        )
        db.executemany(
            "INSERT INTO cursors (model, name, value) VALUES (?, ?, ?)",
            [(number, name, value) for name, value in cursors.items()],
        )

    @writes
    def stage_entries(
        self, db: Connection, staged: Staged, entries: Sequence[Entry], uses: Sequence[CopyUse]
    ) -> None:
        head = find_head(db, *staged)
        seq, chain = head.seq, head.chain
        for entry in entries:
            follows = not chain or next_chain(chain, entry.nonce) == entry.chain
            if entry.first_seq != seq + 1 or not follows:
                raise Conflict(f"the entry at seq {entry.seq} does not follow from seq {seq}")
            seq, chain = entry.seq, entry.chain
        db.executemany(
            "INSERT INTO entries (first_seq, seq, nonce, chain, time_ms, body, model)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(*msgspec.structs.astuple(entry), head.model) for entry in entries],
        )
        for use in uses:
            use_copy(db, head.model, use.seq, use.digest)
        db.execute("UPDATE heads SET seq = ?, chain = ? WHERE model = ?", (seq, chain, head.model))

    @writes
    def stage_keys(self, db: Connection, staged: Staged, keys: Sequence[KeptKey]) -> None:
        head, behind_ms = find_head(db, *staged), self._clock.behind_ms()
        db.executemany(
            "INSERT INTO keys (model, number, key, seq, count, fingerprint, time_ms)"
            " VALUES (?, ?, ?, ?, ?, ?, ? - ?)",
            [
                (head.model, number, *msgspec.structs.astuple(key), behind_ms)
                for number, key in enumerate(keys, head.next_key)
            ],
        )
        db.execute(
            "UPDATE heads SET next_key = ? WHERE model = ?", (head.next_key + len(keys), head.model)
        )

    @writes
    def show(self, db: Connection, staged: Staged, record: ModelRecord) -> None:
        existing = models.find_model(db, record.id)
        if existing is not None:
            raise models.conflict(existing)
        head = find_head(db, *staged)
        if (head.seq, head.chain) != (record.seq, record.chain):
            raise Conflict(f"the staged log of {record.id!r} ends at seq {head.seq}")
        db.execute(
            "UPDATE models SET id = ?, incarnation = ? WHERE id = ?",
            (record.id, record.incarnation, staged.name),
        )

    async def discard(self, staged: Staged) -> None:
        await self._discard(staged)
        await self._sweep()

    @writes
    def _discard(self, db: Connection, staged: Staged) -> None:
        existing = models.find_model(db, staged.name)
        if existing is not None and existing.incarnation == staged.incarnation:
            models.remove_model(db, staged.name)

    async def settle(self) -> None:
        await self._checkpointer.settle()
