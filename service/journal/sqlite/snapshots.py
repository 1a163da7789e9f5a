"""Snapshots in SQLite, written in parts, each in its own transaction.

A snapshot's row is incomplete until its last part is written. Completing a snapshot deletes all
others of the same or an older seq, but one: those of dead writers and of slow ones, which find
their row gone and stop, and those of entries that the log has lost.
"""

import sqlite3
from collections.abc import Sequence

from dualstream.service.journal.protocol import Conflict, NotHeld, Place, Snapshot
from dualstream.service.journal.sqlite.heads import Head, find_head
from dualstream.service.journal.sqlite.log import leads_on_from
from dualstream.service.journal.sqlite.transactions import Task

PART_BYTES = 1 << 20
KEPT = 2


def begin(model: str, incarnation: str, seq: int, chain: str, replaces: bool) -> Task[int | None]:
    """Insert the row and return its number; None if there is one of this seq or a newer one.

    With `replaces`, one of the same seq does not count.
    """

    def task(connection: sqlite3.Connection) -> int | None:
        head = find_head(connection, model, incarnation)
        if not leads_on_from(connection, head, Place(seq, chain)):
            raise NotHeld(model, seq, chain)
        existing = usable(connection, head)
        if existing and existing[0][1] >= seq + replaces:
            return None
        return connection.execute(
            "INSERT INTO snapshots (model, seq, chain) VALUES (?, ?, ?)", (head.model, seq, chain)
        ).lastrowid

    return task


def is_any(connection: sqlite3.Connection, model: int) -> bool:
    """Does the model have a complete snapshot, usable or not?"""
    found = connection.execute(
        "SELECT 1 FROM snapshots WHERE model = ? AND is_complete LIMIT 1", (model,)
    )
    return found.fetchone() is not None


def usable(connection: sqlite3.Connection, head: Head) -> list[tuple[int, int]]:
    """Complete snapshots from which the log continues, as (number, seq), newest first.

    Of several with one seq, the last one begun.
    """
    found: dict[int, int] = {}
    for snapshot, seq, chain in connection.execute(
        "SELECT snapshot, seq, chain FROM snapshots WHERE model = ? AND is_complete"
        " ORDER BY seq DESC, snapshot DESC",
        (head.model,),
    ):
        if seq not in found and leads_on_from(connection, head, Place(seq, chain)):
            found[seq] = snapshot
    return [(snapshot, seq) for seq, snapshot in found.items()]


def put_part(snapshot: int, part: int, piece: bytes) -> Task[bool]:
    """Write one part; False if the snapshot's row is gone."""

    def task(connection: sqlite3.Connection) -> bool:
        if not _is_there(connection, snapshot):
            return False
        connection.execute(
            "INSERT INTO snapshot_parts (snapshot, part, bytes) VALUES (?, ?, ?)",
            (snapshot, part, piece),
        )
        return True

    return task


def _is_there(connection: sqlite3.Connection, snapshot: int) -> bool:
    row = connection.execute("SELECT 1 FROM snapshots WHERE snapshot = ?", (snapshot,)).fetchone()
    return row is not None


def complete(model: str, incarnation: str, snapshot: int) -> Task[bool]:
    """Make the snapshot visible and delete those that it replaces; False if its row is gone."""

    def task(connection: sqlite3.Connection) -> bool:
        head = find_head(connection, model, incarnation)
        if not _is_there(connection, snapshot):
            return False
        connection.execute("UPDATE snapshots SET is_complete = 1 WHERE snapshot = ?", (snapshot,))
        kept = usable(connection, head)[:KEPT]
        if kept:
            _remove_others(connection, head.model, kept)
        return True

    return task


def _remove_others(
    connection: sqlite3.Connection, model: int, kept: Sequence[tuple[int, int]]
) -> None:
    """Delete all snapshots but the kept ones and incomplete ones of a later seq."""
    numbers = {snapshot for snapshot, _ in kept}
    for snapshot, seq, is_complete in connection.execute(
        "SELECT snapshot, seq, is_complete FROM snapshots WHERE model = ?", (model,)
    ).fetchall():
        if snapshot not in numbers and (is_complete or seq <= kept[0][1]):
            _remove(connection, snapshot)


def _remove(connection: sqlite3.Connection, snapshot: int) -> None:
    connection.execute("DELETE FROM snapshot_parts WHERE snapshot = ?", (snapshot,))
    connection.execute("DELETE FROM snapshots WHERE snapshot = ?", (snapshot,))


def drop(model: str, incarnation: str, before: int) -> Task[None]:
    """The task of `Journal.snapshots_drop`."""

    def task(connection: sqlite3.Connection) -> None:
        head = find_head(connection, model, incarnation)
        if not any(seq >= before for _, seq in usable(connection, head)):
            raise Conflict(f"the log of {model!r} contains no snapshot from seq {before} on")
        older = (head.model, before)
        connection.execute(
            "DELETE FROM snapshot_parts WHERE snapshot IN"
            " (SELECT snapshot FROM snapshots WHERE model = ? AND seq < ?)",
            older,
        )
        connection.execute("DELETE FROM snapshots WHERE model = ? AND seq < ?", older)

    return task


def places(model: str, incarnation: str) -> Task[list[Place]]:
    """The task of `Journal.snapshots`."""

    def task(connection: sqlite3.Connection) -> list[Place]:
        head = find_head(connection, model, incarnation)
        rows = connection.execute(
            "SELECT seq, chain FROM snapshots WHERE model = ? AND is_complete ORDER BY seq DESC",
            (head.model,),
        )
        return [Place(*row) for row in rows]

    return task


def get(model: str, incarnation: str, n: int, path: str) -> Task[Snapshot | None]:
    """The task of `Journal.snapshot_get`."""

    def task(connection: sqlite3.Connection) -> Snapshot | None:
        head = find_head(connection, model, incarnation)
        return find(connection, head.model, n, path)

    return task


def find(connection: sqlite3.Connection, model: int, n: int, path: str) -> Snapshot | None:
    """The complete snapshot with `n` newer ones."""
    row = connection.execute(
        "SELECT snapshot, seq, chain FROM snapshots WHERE model = ? AND is_complete"
        " ORDER BY seq DESC LIMIT 1 OFFSET ?",
        (model, n),
    ).fetchone()
    if row is None:
        return None
    pieces = connection.execute(
        "SELECT bytes FROM snapshot_parts WHERE snapshot = ? ORDER BY part", (row[0],)
    )
    where = f"row {row[0]} of snapshots in {path}"
    return Snapshot(row[1], row[2], b"".join([piece for (piece,) in pieces]), where)
