"""Pending rows (rows that wait for labels) in SQLite."""
# Only this file's own lists of columns are formatted into statements; all values are bound.
# ruff: noqa: S608

import sqlite3
from collections.abc import Callable, Iterable, Sequence

from dualstream.service.journal.protocol import (
    AwaitingLabels,
    Limits,
    NewPendingRow,
    Overdue,
    PendingRow,
    TooManyPendingRows,
)
from dualstream.service.journal.sqlite.heads import find_head
from dualstream.service.journal.sqlite.keys import find_keys
from dualstream.service.journal.sqlite.transactions import Task

EXPIRED_AT_ONCE = 1000

_COLUMNS = "key, body, default_label, time_ms, due_ms"
_SIZE = "length(key) + length(body) + length(default_label)"


def remember(
    model: str,
    incarnation: str,
    rows: Sequence[NewPendingRow],
    limits: Limits,
    now_ms: Callable[[], int],
) -> Task[int]:
    """The task of `Journal.remember`."""

    def task(connection: sqlite3.Connection) -> int:
        head = find_head(connection, model, incarnation)
        number, time_ms = head.model, now_ms()
        latest = {row.key: row for row in rows}
        delete_rows(connection, number, latest)
        before, size = _sums(connection, number)
        for key in find_keys(connection, head, list(latest), limits, time_ms):
            del latest[key]
        connection.executemany(
            f"INSERT INTO remembered (model, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
            [
                (number, row.key, row.body, row.default, time_ms, _due(row, time_ms, limits))
                for row in latest.values()
            ],
        )
        count = before + len(latest)
        size += sum(len(row.key) + len(row.body) + len(row.default) for row in latest.values())
        if count > limits.max_remembered or size > limits.remembered_bytes:
            raise TooManyPendingRows(model, before, limits.max_remembered, limits.remembered_bytes)
        _set_sums(connection, number, count, size)
        return len(latest)

    return task


def remembered(
    model: str, incarnation: str, keys: Sequence[bytes], now_ms: Callable[[], int]
) -> Task[list[PendingRow | None]]:
    """The task of `Journal.remembered`."""

    def task(connection: sqlite3.Connection) -> list[PendingRow | None]:
        number = find_head(connection, model, incarnation).model
        time_ms = now_ms()
        return [_find(connection, number, key, time_ms) for key in keys]

    return task


def awaiting_labels(now_ms: Callable[[], int], after_staged: str) -> Task[list[AwaitingLabels]]:
    """The task of `Journal.awaiting_labels`; ids up to `after_staged` are invisible."""

    def task(connection: sqlite3.Connection) -> list[AwaitingLabels]:
        found = connection.execute(
            "SELECT id, incarnation, rows, EXISTS (SELECT 1 FROM remembered"
            " WHERE remembered.model = models.model AND due_ms <= ?)"
            " FROM remembered_sums JOIN models ON models.model = remembered_sums.model"
            " WHERE id > ? ORDER BY id",
            (now_ms(), after_staged),
        )
        return [AwaitingLabels(id_, made, rows, bool(is_due)) for id_, made, rows, is_due in found]

    return task


def overdue(
    model: str, incarnation: str, limit: int, limits: Limits, now_ms: Callable[[], int]
) -> Task[Overdue]:
    """The task of `Journal.overdue`."""

    def task(connection: sqlite3.Connection) -> Overdue:
        number = find_head(connection, model, incarnation).model
        time_ms = now_ms()
        expired = _expire(connection, number, time_ms, limits)
        rows = connection.execute(
            f"SELECT {_COLUMNS} FROM remembered WHERE model = ? AND due_ms <= ?"
            " AND length(default_label) > 0 ORDER BY due_ms, key LIMIT ?",
            (number, time_ms, limit),
        )
        found = [_made(row, time_ms) for row in rows]
        return Overdue(found, expired)

    return task


def kept(model: str, incarnation: str) -> Task[list[PendingRow]]:
    """The task of `TransferJournal.kept_rows`."""

    def task(connection: sqlite3.Connection) -> list[PendingRow]:
        number = find_head(connection, model, incarnation).model
        rows = connection.execute(
            f"SELECT {_COLUMNS} FROM remembered WHERE model = ? ORDER BY key", (number,)
        )
        return [PendingRow(*row) for row in rows]

    return task


def put(model: str, incarnation: str, rows: Sequence[PendingRow]) -> Task[None]:
    """The task of `TransferJournal.stage_rows`."""

    def task(connection: sqlite3.Connection) -> None:
        number = find_head(connection, model, incarnation).model
        connection.executemany(
            f"INSERT INTO remembered (model, {_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
            [(number, r.key, r.body, r.default, r.time_ms, r.due_ms) for r in rows],
        )
        count, size = _sums(connection, number)
        waiting = [row for row in rows if row.body]
        size += sum(len(row.key) + len(row.body) + len(row.default) for row in waiting)
        _set_sums(connection, number, count + len(waiting), size)

    return task


def delete_rows(connection: sqlite3.Connection, model: int, keys: Iterable[bytes]) -> None:
    """Delete the rows under these keys."""
    rows, size, is_any = 0, 0, False
    for key in keys:
        found = connection.execute(
            f"SELECT rowid, length(body) > 0, {_SIZE} FROM remembered WHERE model = ? AND key = ?",
            (model, key),
        ).fetchone()
        if found is not None:
            connection.execute("DELETE FROM remembered WHERE rowid = ?", found[:1])
            is_any = True
            rows, size = rows + found[1], size + found[1] * found[2]
    if is_any:
        before, bytes_before = _sums(connection, model)
        _set_sums(connection, model, before - rows, bytes_before - size)


def _expire(connection: sqlite3.Connection, model: int, time_ms: int, limits: Limits) -> int:
    """Expire rows without a default label: their keys stay for as long again, then are deleted."""
    forgotten = connection.execute(
        "DELETE FROM remembered WHERE rowid IN (SELECT rowid FROM remembered"
        " WHERE model = ? AND due_ms <= ? AND length(body) = 0 LIMIT ?)",
        (model, time_ms, EXPIRED_AT_ONCE),
    ).rowcount
    expired = connection.execute(
        f"SELECT rowid, {_SIZE} FROM remembered WHERE model = ? AND due_ms <= ?"
        " AND length(default_label) = 0 AND length(body) > 0 LIMIT ?",
        (model, time_ms, EXPIRED_AT_ONCE),
    ).fetchall()
    connection.executemany(
        "UPDATE remembered SET body = x'', due_ms = due_ms + ? WHERE rowid = ?",
        [(round(limits.remember_s * 1000), rowid) for rowid, _ in expired],
    )
    if expired or forgotten:
        rows, size = _sums(connection, model)
        gone = sum(size_of for _, size_of in expired)
        _set_sums(connection, model, rows - len(expired), size - gone)
    return len(expired)


def _due(row: NewPendingRow, time_ms: int, limits: Limits) -> int:
    return time_ms + round(1000 * (row.wait_s if row.default else limits.remember_s))


def _find(
    connection: sqlite3.Connection, model: int, key: bytes, time_ms: int
) -> PendingRow | None:
    row = connection.execute(
        f"SELECT {_COLUMNS} FROM remembered WHERE model = ? AND key = ?", (model, key)
    ).fetchone()
    if row is None:
        return None
    found = _made(row, time_ms)
    if found.default or found.due_ms > time_ms or not found.body:
        return found
    return PendingRow(found.key, b"", b"", found.time_ms, found.due_ms, found.age_s)


def _made(row: tuple[bytes, bytes, bytes, int, int], now_ms: int) -> PendingRow:
    return PendingRow(*row, age_s=(now_ms - row[3]) / 1000)


def _sums(connection: sqlite3.Connection, model: int) -> tuple[int, int]:
    """Number and bytes of waiting rows."""
    row = connection.execute(
        "SELECT rows, bytes FROM remembered_sums WHERE model = ?", (model,)
    ).fetchone()
    return (0, 0) if row is None else row


def _set_sums(connection: sqlite3.Connection, model: int, rows: int, size: int) -> None:
    """Set the sums; the model has a row of sums while it has any rows, expired ones included."""
    is_any = (
        rows
        or connection.execute(
            "SELECT 1 FROM remembered WHERE model = ? LIMIT 1", (model,)
        ).fetchone()
    )
    if is_any:
        connection.execute(
            "INSERT OR REPLACE INTO remembered_sums (model, rows, bytes) VALUES (?, ?, ?)",
            (model, rows, size),
        )
    else:
        connection.execute("DELETE FROM remembered_sums WHERE model = ?", (model,))
