"""The log of changes: who changed which model, and how."""

import sqlite3
from collections.abc import Sequence

from service.journal.audit import Audited, Change, Where, decode_change, encode_change
from service.journal.protocol import Limits
from service.journal.sqlite.transactions import Task

# So many of the oldest go with each new one at most: no write pays for all that has expired.
EXPIRED_ROWS = 100


def keep(
    connection: sqlite3.Connection,
    model: str,
    incarnation: str,
    seq: int,
    change: Change | None,
    limits: Limits,
    now_ms: int,
) -> None:
    """Write a change down, if there is one, in the transaction that makes it."""
    if change is None:
        return
    connection.execute(
        "INSERT INTO changes (id, incarnation, seq, time_ms, change) VALUES (?, ?, ?, ?, ?)",
        (model, incarnation, seq, now_ms, encode_change(change)),
    )
    connection.execute(
        "DELETE FROM changes WHERE time_ms < ? AND number IN"
        " (SELECT number FROM changes ORDER BY number LIMIT ?)",
        (now_ms - round(1000 * limits.audit_s), EXPIRED_ROWS),
    )


def put(changes: Sequence[Audited]) -> Task[None]:
    """The task behind `Movable.put_changes`."""

    def task(connection: sqlite3.Connection) -> None:
        for one in changes:
            told = (one.model, one.incarnation, one.seq, one.time_ms, encode_change(one.change))
            connection.execute(
                "INSERT INTO changes (id, incarnation, seq, time_ms, change)"
                " SELECT ?1, ?2, ?3, ?4, ?5 WHERE NOT EXISTS (SELECT 1 FROM changes WHERE id = ?1"
                " AND incarnation = ?2 AND seq = ?3 AND time_ms = ?4 AND change = ?5)",
                told,
            )

    return task


def read(model: str | None, after: str | None, limit: int) -> Task[list[Audited]]:
    """The task behind `Journal.audit`. Raises ValueError."""
    start = Where.read(after).number

    def task(connection: sqlite3.Connection) -> list[Audited]:
        of_model = "" if model is None else "id = :id AND "
        rows = connection.execute(
            "SELECT number, time_ms, id, incarnation, seq, change FROM changes"  # noqa: S608
            f" WHERE {of_model} number > :number ORDER BY number LIMIT :limit",
            {"id": model, "number": start, "limit": limit},
        )
        return [
            Audited(
                str(Where(time_ms, number, id_)),
                time_ms,
                id_,
                incarnation,
                seq,
                decode_change(told),
            )
            for number, time_ms, id_, incarnation, seq, told in rows
        ]

    return task
