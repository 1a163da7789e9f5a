"""Letting go of a log's oldest entries."""

import sqlite3

from service.journal.sqlite.heads import Head, find_head
from service.journal.sqlite.snapshots import held_ones
from service.journal.sqlite.transactions import Task

TRIM_ENTRIES = 1000


def trim_step(model: str, incarnation: str, through: int, behind: int | None) -> Task[bool]:
    """One bounded step of `Journal.trim`; True when there is more to do."""

    def task(connection: sqlite3.Connection) -> bool:
        head = find_head(connection, model, incarnation)
        last_seq = _limited(connection, head, through, behind)
        seqs = connection.execute(
            "SELECT seq FROM entries WHERE model = ? AND seq <= ? ORDER BY seq LIMIT ?",
            (head.model, last_seq, TRIM_ENTRIES),
        ).fetchall()
        if not seqs:
            return False
        last = seqs[-1][0]
        connection.execute("DELETE FROM entries WHERE model = ? AND seq <= ?", (head.model, last))
        connection.execute("UPDATE heads SET trimmed = ? WHERE model = ?", (last, head.model))
        return len(seqs) == TRIM_ENTRIES

    return task


def _limited(connection: sqlite3.Connection, head: Head, through: int, behind: int | None) -> int:
    """`through`, or where the snapshot stands that has to go on being enough."""
    if behind is None:
        return through
    held = held_ones(connection, head)
    return min(through, held[behind][1]) if behind < len(held) else 0
