"""Pending rows (rows that wait for labels) in SQLite."""
# Only this file's own lists of columns are formatted into statements; all values are bound.
# ruff: noqa: S608

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from enum import IntEnum
from sqlite3 import Connection

from msgspec import structs

from dualstream.service.journal.archive_access import Staged
from dualstream.service.journal.deduplicate import RowLabel
from dualstream.service.journal.protocol import (
    AwaitingLabels,
    Limits,
    NewPendingRow,
    Overdue,
    PendingRow,
    TooManyPendingRows,
)
from dualstream.service.journal.sqlite.base import SqlitePart, reads, writes
from dualstream.service.journal.sqlite.keys import find_keys
from dualstream.service.journal.sqlite.log import Head, find_head
from dualstream.service.journal.sqlite.schema import AFTER_STAGED

EXPIRED_AT_ONCE = 500
"""A commit that expires more rows delays the appends behind it for too long."""
ROWS_AT_ONCE = 500


class State(IntEnum):
    """What becomes of a row when its wait is over."""

    EXPIRES = 0
    GETS_DEFAULT = 1
    EXPIRED = 2
    """It has no body; its key is deleted."""
    LABELLED = 3
    """Its label may be revised until it is deleted."""


_COLUMNS = "key, body, label, time_ms, due_ms, seq"
_SIZE = "length(key) + length(body) + length(label)"
_ALL_DUE = 2**63 - 1
_Row = tuple[bytes, bytes, bytes, int, int, int]


class SqlitePendingRows(SqlitePart):
    """Pending rows."""

    async def remember(self, model: str, incarnation: str, rows: Sequence[NewPendingRow]) -> int:
        count = await self._remember(model, incarnation, rows)
        self._checkpointer.wrote(sum([len(row.body) for row in rows]))
        return count

    @writes
    def _remember(
        self, db: Connection, model: str, incarnation: str, rows: Sequence[NewPendingRow]
    ) -> int:
        limits, time_ms = self._limits, self._clock.now_ms()
        head = find_head(db, model, incarnation)
        latest = {row.key: row for row in rows}
        labelled = delete_rows(db, head.model, latest, time_ms)
        for key in {*labelled, *find_keys(db, head, list(latest), limits, time_ms)}:
            del latest[key]
        store_rows(db, model, head, latest.values(), limits, time_ms)
        return len(latest)

    @reads
    def remembered(
        self, db: Connection, model: str, incarnation: str, keys: Sequence[bytes]
    ) -> list[PendingRow | None]:
        number, time_ms = find_head(db, model, incarnation).model, self._clock.now_ms()
        return [_find(db, number, key, time_ms) for key in keys]

    @reads
    def awaiting_labels(self, db: Connection) -> list[AwaitingLabels]:
        cursor = db.execute(
            "SELECT id, incarnation, rows, EXISTS (SELECT 1 FROM remembered"
            " WHERE remembered.model = models.model AND state IN (0, 1, 2, 3) AND due_ms <= ?)"
            " FROM remembered_sums JOIN models ON models.model = remembered_sums.model"
            " WHERE id > ? ORDER BY id",
            (self._clock.now_ms(), AFTER_STAGED),
        )
        return [AwaitingLabels(id_, made, rows, bool(is_due)) for id_, made, rows, is_due in cursor]

    @writes
    def overdue(self, db: Connection, model: str, incarnation: str, limit: int = 100) -> Overdue:
        number, time_ms = find_head(db, model, incarnation).model, self._clock.now_ms()
        expired = _expire(db, number, time_ms, self._limits)
        rows = db.execute(
            f"SELECT {_COLUMNS} FROM remembered WHERE model = ? AND state = ? AND due_ms <= ?"
            " ORDER BY due_ms, key LIMIT ?",
            (number, State.GETS_DEFAULT, time_ms, limit),
        )
        return Overdue([_made(row, time_ms) for row in rows], expired)

    async def kept_rows(self, model: str, incarnation: str) -> AsyncIterator[Sequence[PendingRow]]:
        after = b""
        while rows := await self._some_rows(model, incarnation, after):
            yield rows
            after = rows[-1].key

    @reads
    def _some_rows(
        self, db: Connection, model: str, incarnation: str, after: bytes
    ) -> Sequence[PendingRow]:
        number = find_head(db, model, incarnation).model
        rows = db.execute(
            f"SELECT {_COLUMNS} FROM remembered WHERE model = ? AND key > ? ORDER BY key LIMIT ?",
            (number, after, ROWS_AT_ONCE),
        )
        return [_moved(_made(row), self._clock.behind_ms()) for row in rows]

    @writes
    def forget_labelled(self, db: Connection, model: str, incarnation: str, key: bytes) -> None:
        number = find_head(db, model, incarnation).model
        if row_label(db, number, key) is not None:
            delete_rows(db, number, [key], _ALL_DUE)

    @writes
    def stage_rows(self, db: Connection, staged: Staged, rows: Sequence[PendingRow]) -> None:
        behind_ms = self._clock.behind_ms()
        _insert(db, find_head(db, *staged).model, [_moved(row, -behind_ms) for row in rows])


def has_row(db: Connection, model: int, key: bytes) -> bool:
    """Is a row stored under this key, expired or not?"""
    row = db.execute("SELECT 1 FROM remembered WHERE model = ? AND key = ?", (model, key))
    return row.fetchone() is not None


def row_label(db: Connection, model: int, key: bytes, time_ms: int = -1) -> RowLabel | None:
    """Label of the labelled row under this key, unless it is due."""
    row = db.execute(
        "SELECT label, seq FROM remembered"
        " WHERE model = ? AND key = ? AND state = ? AND due_ms > ?",
        (model, key, State.LABELLED, time_ms),
    ).fetchone()
    return None if row is None else RowLabel(*row)


def relabel_rows(
    db: Connection, model: int, labels: Mapping[bytes, RowLabel], limits: Limits, time_ms: int
) -> None:
    """Keep the rows under these keys as labelled rows with these labels."""
    count, size = _sums(db, model)
    due_ms = time_ms + round(1000 * limits.remember_s)
    for key, (label, seq) in labels.items():
        row = db.execute(
            "SELECT rowid, length(label) FROM remembered"
            " WHERE model = ? AND key = ? AND state != ?",
            (model, key, State.EXPIRED),
        ).fetchone()
        if row is not None:
            db.execute(
                "UPDATE remembered SET label = ?, seq = ?, state = ?, due_ms = ? WHERE rowid = ?",
                (label, seq, State.LABELLED, due_ms, row[0]),
            )
            size += len(label) - row[1]
    _set_sums(db, model, count, size)


def store_rows(
    db: Connection,
    model: str,
    head: Head,
    rows: Iterable[NewPendingRow],
    limits: Limits,
    time_ms: int,
) -> None:
    """Insert rows under new keys. Raises TooManyPendingRows; the rows are inserted then, too."""
    before = _sums(db, head.model)[0]
    stored = [
        PendingRow(row.key, row.body, row.default, time_ms, _due(row, time_ms, limits))
        for row in rows
    ]
    count, size = _insert(db, head.model, stored)
    if count > limits.max_remembered or size > limits.remembered_bytes:
        raise TooManyPendingRows(model, before, limits.max_remembered, limits.remembered_bytes)


def _insert(db: Connection, model: int, rows: Sequence[PendingRow]) -> tuple[int, int]:
    """Insert rows under new keys; return the new number and bytes of waiting rows."""
    db.executemany(
        f"INSERT INTO remembered (model, {_COLUMNS}, state) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (
                model, row.key, row.body, row.label or row.default, row.time_ms, row.due_ms,
                row.seq, _state_of(row),
            )
            for row in rows
        ],
    )  # fmt: skip
    count, size = _sums(db, model)
    waiting = [row for row in rows if row.body]
    count += len(waiting)
    size += sum(len(row.key) + len(row.body) + len(row.label or row.default) for row in waiting)
    _set_sums(db, model, count, size)
    return count, size


def delete_rows(db: Connection, model: int, keys: Iterable[bytes], time_ms: int) -> list[bytes]:
    """Delete the rows under these keys. Labelled rows that are not due stay: return their keys."""
    rows, size, is_any, labelled = 0, 0, False, list[bytes]()
    for key in keys:
        row = db.execute(
            f"SELECT state, due_ms, rowid, length(body) > 0, {_SIZE} FROM remembered"
            " WHERE model = ? AND key = ?",
            (model, key),
        ).fetchone()
        if row is None:
            continue
        state, due_ms, rowid, has_body, size_of = row
        if state == State.LABELLED and due_ms > time_ms:
            labelled.append(key)
            continue
        db.execute("DELETE FROM remembered WHERE rowid = ?", (rowid,))
        is_any = True
        rows, size = rows + has_body, size + has_body * size_of
    if is_any:
        before, bytes_before = _sums(db, model)
        _set_sums(db, model, before - rows, bytes_before - size)
    return labelled


def _expire(db: Connection, model: int, time_ms: int, limits: Limits) -> int:
    """Expire rows without a default label: their keys stay for as long again, then are deleted.

    Delete labelled rows.
    """
    forgotten = db.execute(
        "DELETE FROM remembered WHERE rowid IN (SELECT rowid FROM remembered"
        " WHERE model = ? AND state = ? AND due_ms <= ? LIMIT ?)",
        (model, State.EXPIRED, time_ms, EXPIRED_AT_ONCE),
    ).rowcount
    labelled = db.execute(
        f"SELECT rowid, {_SIZE} FROM remembered"
        " WHERE model = ? AND state = ? AND due_ms <= ? LIMIT ?",
        (model, State.LABELLED, time_ms, EXPIRED_AT_ONCE),
    ).fetchall()
    db.executemany("DELETE FROM remembered WHERE rowid = ?", [row[:1] for row in labelled])
    expired = db.execute(
        f"SELECT rowid, {_SIZE} FROM remembered"
        " WHERE model = ? AND state = ? AND due_ms <= ? LIMIT ?",
        (model, State.EXPIRES, time_ms, EXPIRED_AT_ONCE),
    ).fetchall()
    db.executemany(
        "UPDATE remembered SET body = x'', due_ms = due_ms + ?, state = ? WHERE rowid = ?",
        [(round(limits.remember_s * 1000), State.EXPIRED, rowid) for rowid, _ in expired],
    )
    if expired or labelled or forgotten:
        rows, size = _sums(db, model)
        gone = [size_of for _, size_of in (*expired, *labelled)]
        _set_sums(db, model, rows - len(gone), size - sum(gone))
    return len(expired)


def _state_of(row: PendingRow) -> State:
    if row.seq:
        return State.LABELLED
    if not row.body:
        return State.EXPIRED
    return State.GETS_DEFAULT if row.default else State.EXPIRES


def _due(row: NewPendingRow, time_ms: int, limits: Limits) -> int:
    return time_ms + round(1000 * (row.wait_s if row.default else limits.remember_s))


def _find(db: Connection, model: int, key: bytes, time_ms: int) -> PendingRow | None:
    row = db.execute(
        f"SELECT {_COLUMNS} FROM remembered WHERE model = ? AND key = ?", (model, key)
    ).fetchone()
    if row is None:
        return None
    stored = _made(row, time_ms)
    if stored.default or stored.due_ms > time_ms or not stored.body:
        return stored
    if stored.seq:
        return None
    return PendingRow(stored.key, b"", b"", stored.time_ms, stored.due_ms, stored.age_s)


def _made(row: _Row, now_ms: int | None = None) -> PendingRow:
    key, body, label, time_ms, due_ms, seq = row
    default, label = (b"", label) if seq else (label, b"")
    age_s = 0.0 if now_ms is None else (now_ms - time_ms) / 1000
    return PendingRow(key, body, default, time_ms, due_ms, age_s, label, seq)


def _moved(row: PendingRow, by_ms: int) -> PendingRow:
    return structs.replace(row, time_ms=row.time_ms + by_ms, due_ms=row.due_ms + by_ms)


def _sums(db: Connection, model: int) -> tuple[int, int]:
    """Number and bytes of waiting rows."""
    row = db.execute("SELECT rows, bytes FROM remembered_sums WHERE model = ?", (model,)).fetchone()
    return (0, 0) if row is None else row


def _set_sums(db: Connection, model: int, rows: int, size: int) -> None:
    """Set the sums; the model has a row of sums while it has any rows, expired ones included."""
    is_any = (
        rows or db.execute("SELECT 1 FROM remembered WHERE model = ? LIMIT 1", (model,)).fetchone()
    )
    if is_any:
        db.execute(
            "INSERT OR REPLACE INTO remembered_sums (model, rows, bytes) VALUES (?, ?, ?)",
            (model, rows, size),
        )
    else:
        db.execute("DELETE FROM remembered_sums WHERE model = ?", (model,))
