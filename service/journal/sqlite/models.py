"""Create, find, replace and delete models; the numeric identity of the store."""

from collections.abc import Sequence
from sqlite3 import Connection

from dualstream.service.journal.chain import first_chain, new_incarnation
from dualstream.service.journal.protocol import (
    Change,
    Conflict,
    Head,
    LogPosition,
    ModelChanged,
    ModelRecord,
    UnknownModel,
)
from dualstream.service.journal.sqlite.audit import keep_change
from dualstream.service.journal.sqlite.base import reads, writes
from dualstream.service.journal.sqlite.log import find_heads, now_ms
from dualstream.service.journal.sqlite.schema import AFTER_STAGED
from dualstream.service.journal.sqlite.trim import SqliteTrim

_MODEL = """
SELECT id, incarnation, spec, given, created_ms, seq, chain
FROM models JOIN heads ON heads.model = models.model
"""


class SqliteModels(SqliteTrim):
    """Models, and the numeric identity."""

    @writes
    def claim_identity(self, db: Connection, mine: str) -> str:
        db.execute("INSERT OR IGNORE INTO store (name, value) VALUES ('identity', ?)", (mine,))
        return _identity(db) or mine

    @reads
    def identity(self, db: Connection) -> str | None:
        return _identity(db)

    @writes
    def adopt_identity(self, db: Connection, mine: str) -> None:
        db.execute("INSERT OR REPLACE INTO store (name, value) VALUES ('identity', ?)", (mine,))

    @writes
    def create(
        self, db: Connection, model: str, spec: bytes, given: bytes, change: Change | None = None
    ) -> tuple[ModelRecord, bool]:
        existing = find_model(db, model)
        if existing is not None:
            return existing, False
        return self._insert_new(db, model, spec, given, change), True

    def _insert_new(
        self, db: Connection, model: str, spec: bytes, given: bytes, change: Change | None
    ) -> ModelRecord:
        made = new_incarnation(spec)
        record = ModelRecord(model, made, spec, given, now_ms(), 0, first_chain(made))
        insert_model(db, record)
        keep_change(db, model, made, 0, change, self._limits)
        return record

    @reads
    def get(self, db: Connection, model: str) -> ModelRecord:
        return get_model(db, model)

    @reads
    def heads(self, db: Connection, models: Sequence[str]) -> list[Head | None]:
        stored = find_heads(db, models)
        heads = {id_: Head(made, head.seq, head.chain) for id_, (made, head) in stored.items()}
        return [heads.get(model) for model in models]

    @reads
    def count(self, db: Connection) -> int:
        number: int = db.execute(
            "SELECT count(*) FROM models WHERE id > ?", (AFTER_STAGED,)
        ).fetchone()[0]
        return number

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
        replaced = await self._replace(model, (incarnation, seq, chain), spec, given, change)
        await self._sweep()
        return replaced

    @writes
    def _replace(
        self,
        db: Connection,
        model: str,
        at: tuple[str, int, str],
        spec: bytes,
        given: bytes,
        change: Change | None,
    ) -> ModelRecord:
        existing = get_model(db, model)
        if (existing.incarnation, existing.seq, existing.chain) != at:
            raise conflict(existing)
        remove_model(db, model)
        return self._insert_new(db, model, spec, given, change)

    async def delete(
        self,
        model: str,
        incarnation: str | None = None,
        change: Change | None = None,
        at: LogPosition | None = None,
    ) -> None:
        await self._delete(model, incarnation, change, at)
        await self._sweep()

    @writes
    def _delete(
        self,
        db: Connection,
        model: str,
        incarnation: str | None,
        change: Change | None,
        at: LogPosition | None,
    ) -> None:
        existing = get_model(db, model)
        if incarnation not in (None, existing.incarnation):
            raise ModelChanged(model)
        if at not in (None, LogPosition(existing.seq, existing.chain)):
            raise conflict(existing)
        remove_model(db, model)
        position = (existing.incarnation, existing.seq)
        keep_change(db, model, *position, change, self._limits)

    # Last, because it shadows the type `list` in what follows.
    @reads
    def list(self, db: Connection, after: str = "", limit: int = 100) -> list[ModelRecord]:
        rows = db.execute(
            _MODEL + "WHERE id > ? ORDER BY id LIMIT ?", (max(after, AFTER_STAGED), limit)
        ).fetchall()
        return [ModelRecord(*row) for row in rows]


def find_model(db: Connection, model: str) -> ModelRecord | None:
    row = db.execute(_MODEL + "WHERE id = ?", (model,)).fetchone()
    return None if row is None else ModelRecord(*row)


def get_model(db: Connection, model: str) -> ModelRecord:
    record = find_model(db, model)
    if record is None:
        raise UnknownModel(model)
    return record


def insert_model(db: Connection, record: ModelRecord) -> None:
    number = db.execute(
        "INSERT INTO models (id, incarnation, created_ms, spec, given) VALUES (?, ?, ?, ?, ?)",
        (record.id, record.incarnation, record.created_ms, record.spec, record.given),
    ).lastrowid
    db.execute(
        "INSERT INTO heads (model, seq, chain) VALUES (?, ?, ?)", (number, record.seq, record.chain)
    )


def remove_model(db: Connection, model: str) -> None:
    [number] = db.execute("SELECT model FROM models WHERE id = ?", (model,)).fetchone()
    db.execute("DELETE FROM models WHERE model = ?", (number,))
    db.execute("DELETE FROM heads WHERE model = ?", (number,))
    db.execute("INSERT INTO garbage (model) VALUES (?)", (number,))


def conflict(existing: ModelRecord) -> Conflict:
    """The error for a model that is not at the expected position."""
    return Conflict(f"model {existing.id!r} is at seq {existing.seq} {existing.chain[:8]}")


def _identity(db: Connection) -> str | None:
    row = db.execute("SELECT value FROM store WHERE name = 'identity'").fetchone()
    return None if row is None else row[0]
