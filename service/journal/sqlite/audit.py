"""Audit log in SQLite: one table for all models."""

import heapq
from collections import Counter
from collections.abc import Sequence
from sqlite3 import Connection

from dualstream.service.journal.audit import (
    Audited,
    AuditPosition,
    Change,
    decode_change,
    encode_change,
)
from dualstream.service.journal.protocol import Limits
from dualstream.service.journal.sqlite.base import SqlitePart, reads, writes
from dualstream.service.journal.sqlite.log import now_ms

# Maximum number of expired changes deleted with each new one, to bound the cost of a write.
EXPIRED_ROWS = 100

_Row = tuple[int, str, str, int, bytes]
"""time_ms, id, incarnation, seq, change"""


def keep_change(
    db: Connection, model: str, incarnation: str, seq: int, change: Change | None, limits: Limits
) -> None:
    """Store a change, if there is one, within the transaction that makes it."""
    if change is None:
        return
    time_ms = now_ms()
    db.execute(
        "INSERT INTO changes (id, incarnation, seq, time_ms, change) VALUES (?, ?, ?, ?, ?)",
        (model, incarnation, seq, time_ms, encode_change(change)),
    )
    db.execute(
        "DELETE FROM changes WHERE time_ms < ? AND number IN"
        " (SELECT number FROM changes ORDER BY number LIMIT ?)",
        (time_ms - round(1000 * limits.audit_s), EXPIRED_ROWS),
    )


class SqliteAudit(SqlitePart):
    """The audit log."""

    @writes
    def put_changes(self, db: Connection, changes: Sequence[Audited]) -> None:
        # Readers follow the numbers, so the changes after the first new one are renumbered: a
        # reader that has read up to one of them reads it again, and the new ones.
        rows = [
            (one.time_ms, one.model, one.incarnation, one.seq, encode_change(one.change))
            for one in changes
        ]
        new = _unknown(db, rows)
        if not new:
            return
        [first_later] = db.execute(
            "SELECT min(number) FROM changes WHERE time_ms > ?", (min(new)[0],)
        ).fetchone()
        later: list[_Row] = db.execute(
            "SELECT time_ms, id, incarnation, seq, change FROM changes WHERE number >= ?"
            " ORDER BY number",
            (first_later,),
        ).fetchall()
        db.execute("DELETE FROM changes WHERE number >= ?", (first_later,))
        merged: list[_Row] = list(heapq.merge(later, new, key=lambda row: row[0]))
        db.executemany(
            "INSERT INTO changes (time_ms, id, incarnation, seq, change) VALUES (?, ?, ?, ?, ?)",
            merged,
        )

    @reads
    def audit(
        self, db: Connection, model: str | None = None, after: str | None = None, limit: int = 100
    ) -> Sequence[Audited]:
        of_model = "" if model is None else "id = :id AND "
        rows = db.execute(
            "SELECT number, time_ms, id, incarnation, seq, change FROM changes"  # noqa: S608
            f" WHERE {of_model} number > :number ORDER BY number LIMIT :limit",
            {"id": model, "number": AuditPosition.read(after).number, "limit": limit},
        )
        return [
            Audited(
                str(AuditPosition(time_ms, number, id_)),
                time_ms,
                id_,
                incarnation,
                seq,
                decode_change(change),
            )
            for number, time_ms, id_, incarnation, seq, change in rows
        ]


def _unknown(db: Connection, rows: Sequence[_Row]) -> list[_Row]:
    """Changes that the log lacks; of equal ones, those in excess of the stored ones."""
    seen = Counter[_Row]()
    new = []
    for row in rows:
        [count] = db.execute(
            "SELECT count(*) FROM changes WHERE time_ms = ? AND id = ? AND incarnation = ?"
            " AND seq = ? AND change = ?",
            row,
        ).fetchone()
        seen[row] += 1
        if seen[row] > count:
            new.append(row)
    return new
