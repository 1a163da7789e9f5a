"""Create, find, replace and delete models."""

import sqlite3
from collections.abc import Sequence

from dualstream.service.journal.chain import first_chain
from dualstream.service.journal.protocol import (
    Change,
    Conflict,
    Head,
    Limits,
    ModelChanged,
    ModelRecord,
    Place,
    UnknownModel,
)
from dualstream.service.journal.sqlite import audit
from dualstream.service.journal.sqlite.snapshots import PART_BYTES
from dualstream.service.journal.sqlite.transactions import Task
from dualstream.service.journal.sqlite.trim import Deleted, delete_through, oldest

SWEEP_ROWS, SWEEP_PARTS = 1000, 4
MAX_SEQ = 2**63 - 1
LOOKED_UP_HEADS = 500
STAGED = "\1"
"""Prefix of the ids of staged models; no other id begins with it."""
AFTER_STAGED = "\2"

_MODEL = """
SELECT id, incarnation, spec, given, created_ms, seq, chain
FROM models JOIN heads ON heads.model = models.model
"""


def find(connection: sqlite3.Connection, model: str) -> ModelRecord | None:
    row = connection.execute(_MODEL + "WHERE id = ?", (model,)).fetchone()
    return None if row is None else ModelRecord(*row)


def create(
    record: ModelRecord, change: Change | None, limits: Limits
) -> Task[tuple[ModelRecord, bool]]:
    """The task of `Journal.create`."""

    def task(connection: sqlite3.Connection) -> tuple[ModelRecord, bool]:
        existing = find(connection, record.id)
        if existing is not None:
            return existing, False
        insert(connection, record)
        audit.keep(connection, record.id, record.incarnation, 0, change, limits, record.created_ms)
        return record, True

    return task


def new_model(model: str, incarnation: str, spec: bytes, given: bytes, now_ms: int) -> ModelRecord:
    """Record of a model without entries."""
    return ModelRecord(model, incarnation, spec, given, now_ms, 0, first_chain(incarnation))


def insert(connection: sqlite3.Connection, record: ModelRecord) -> None:
    number = connection.execute(
        "INSERT INTO models (id, incarnation, created_ms, spec, given) VALUES (?, ?, ?, ?, ?)",
        (record.id, record.incarnation, record.created_ms, record.spec, record.given),
    ).lastrowid
    connection.execute(
        "INSERT INTO heads (model, seq, chain) VALUES (?, ?, ?)", (number, record.seq, record.chain)
    )


def get(model: str) -> Task[ModelRecord]:
    """The task of `Journal.get`."""

    def task(connection: sqlite3.Connection) -> ModelRecord:
        found = find(connection, model)
        if found is None:
            raise UnknownModel(model)
        return found

    return task


def list_models(after: str, limit: int) -> Task[list[ModelRecord]]:
    """The task of `Journal.list`."""

    def task(connection: sqlite3.Connection) -> list[ModelRecord]:
        rows = connection.execute(
            _MODEL + "WHERE id > ? ORDER BY id LIMIT ?", (max(after, AFTER_STAGED), limit)
        ).fetchall()
        return [ModelRecord(*row) for row in rows]

    return task


def find_heads(models: Sequence[str]) -> Task[list[Head | None]]:
    """The task of `Journal.heads`."""

    def task(connection: sqlite3.Connection) -> list[Head | None]:
        found: dict[str, Head] = {}
        for at in range(0, len(models), LOOKED_UP_HEADS):
            batch = models[at : at + LOOKED_UP_HEADS]
            marks = ", ".join("?" * len(batch))
            # One row: for every row, the thread would have to reacquire the GIL.
            [joined] = connection.execute(
                "SELECT group_concat("  # noqa: S608 - only question marks are inserted
                "    hex(id) || ' ' || incarnation || ' ' || seq || ' ' || chain, ' ')"
                " FROM models JOIN heads ON heads.model = models.model"
                f" WHERE id IN ({marks})",
                batch,
            ).fetchone()
            words = iter((joined or "").split())
            for id_, incarnation, seq, chain in zip(words, words, words, words, strict=True):
                found[bytes.fromhex(id_).decode()] = Head(incarnation, int(seq), chain)
        return [found.get(model) for model in models]

    return task


def count(connection: sqlite3.Connection) -> int:
    number: int = connection.execute(
        "SELECT count(*) FROM models WHERE id > ?", (AFTER_STAGED,)
    ).fetchone()[0]
    return number


def replace(
    incarnation: str,
    seq: int,
    chain: str,
    record: ModelRecord,
    change: Change | None,
    limits: Limits,
) -> Task[ModelRecord]:
    """The task of `Journal.replace`."""

    def task(connection: sqlite3.Connection) -> ModelRecord:
        existing = get(record.id)(connection)
        if (existing.incarnation, existing.seq, existing.chain) != (incarnation, seq, chain):
            raise conflict(existing)
        remove(connection, record.id)
        insert(connection, record)
        audit.keep(connection, record.id, record.incarnation, 0, change, limits, record.created_ms)
        return record

    return task


def delete(
    model: str,
    incarnation: str | None,
    change: Change | None,
    at: Place | None,
    limits: Limits,
    now_ms: int,
) -> Task[None]:
    """First step of `Journal.delete`: make the model invisible."""

    def task(connection: sqlite3.Connection) -> None:
        existing = get(model)(connection)
        if incarnation not in (None, existing.incarnation):
            raise ModelChanged(model)
        if at not in (None, Place(existing.seq, existing.chain)):
            raise conflict(existing)
        remove(connection, model)
        position = (existing.incarnation, existing.seq)
        audit.keep(connection, model, *position, change, limits, now_ms)

    return task


def conflict(existing: ModelRecord) -> Conflict:
    """The error for a model that is not at the expected position."""
    return Conflict(f"model {existing.id!r} is at seq {existing.seq} {existing.chain[:8]}")


def remove(connection: sqlite3.Connection, model: str) -> None:
    [number] = connection.execute("SELECT model FROM models WHERE id = ?", (model,)).fetchone()
    connection.execute("DELETE FROM models WHERE model = ?", (number,))
    connection.execute("DELETE FROM heads WHERE model = ?", (number,))
    connection.execute("INSERT INTO garbage (model) VALUES (?)", (number,))


def sweep_step(connection: sqlite3.Connection) -> Deleted:
    """Delete a bounded part of the rows of deleted models."""
    row = connection.execute("SELECT model FROM garbage LIMIT 1").fetchone()
    if row is None:
        return Deleted(False, 0)
    last, deleted = oldest(connection, row[0], MAX_SEQ)
    if last is not None:
        delete_through(connection, row[0], last)
        return Deleted(True, deleted.size)
    given = {"model": row[0], "rows": SWEEP_ROWS, "parts": SWEEP_PARTS}
    for statement in _SWEEP:
        if connection.execute(statement, given).rowcount:
            return Deleted(True, SWEEP_PARTS * PART_BYTES if ":parts" in statement else 0)
    connection.execute("DELETE FROM garbage WHERE model = ?", row)
    return Deleted(True, 0)


_SWEEP = (
    "DELETE FROM keys WHERE model = :model AND number <"
    " (SELECT min(number) + :rows FROM keys WHERE model = :model)",
    "DELETE FROM nonces WHERE model = :model",
    "DELETE FROM cursors WHERE model = :model",
    "DELETE FROM snapshot_parts WHERE rowid IN (SELECT snapshot_parts.rowid FROM snapshot_parts"
    " JOIN snapshots USING (snapshot) WHERE model = :model LIMIT :parts)",
    "DELETE FROM snapshots WHERE model = :model",
    "DELETE FROM copy_parts WHERE rowid IN (SELECT copy_parts.rowid FROM copy_parts"
    " JOIN copies USING (copy) WHERE model = :model LIMIT :parts)",
    "DELETE FROM copies WHERE model = :model",
    "DELETE FROM copy_uses WHERE model = :model",
    "DELETE FROM versions WHERE model = :model",
    "DELETE FROM remembered WHERE rowid IN"
    " (SELECT rowid FROM remembered WHERE model = :model LIMIT :rows)",
    "DELETE FROM remembered_sums WHERE model = :model",
)
