"""Trim a log: delete entries in bounded steps, so that appends wait for one step at most."""

import sqlite3
from typing import NamedTuple

from dualstream.service.journal.protocol import Limits
from dualstream.service.journal.sqlite import nonces
from dualstream.service.journal.sqlite.heads import Head, find_head
from dualstream.service.journal.sqlite.snapshots import usable
from dualstream.service.journal.sqlite.transactions import Task

STEP_ENTRIES = 1000
STEP_BYTES = 4 << 20
"""Deleting overwrites the data, so it takes as long as appending it."""


class Deleted(NamedTuple):
    """Result of one step."""

    more: bool
    """Is there more to do?"""
    size: int
    """Bytes written, approximately."""


def trim_step(
    model: str, incarnation: str, through: int, behind: int | None, limits: Limits
) -> Task[Deleted]:
    """One bounded step of `Journal.trim`."""

    def task(connection: sqlite3.Connection) -> Deleted:
        head = find_head(connection, model, incarnation)
        last, deleted = oldest(connection, head.model, _limited(connection, head, through, behind))
        if last is not None:
            nonces.keep_trimmed(connection, head, incarnation, last, limits)
            delete_through(connection, head.model, last)
            connection.execute("UPDATE heads SET trimmed = ? WHERE model = ?", (last, head.model))
        return deleted

    return task


def oldest(connection: sqlite3.Connection, model: int, through: int) -> tuple[int | None, Deleted]:
    """Last of the entries up to `through` that one step deletes (one at least), and its work."""
    last, size = None, 0
    found = connection.execute(
        "SELECT seq, length(body) FROM entries WHERE model = ? AND seq <= ? ORDER BY seq LIMIT ?",
        (model, through, STEP_ENTRIES),
    ).fetchall()
    for seq, length in found:
        if last is not None and size + length > STEP_BYTES:
            break
        last, size = seq, size + length
    if last is None:
        return None, Deleted(False, 0)
    return last, Deleted(last < found[-1][0] or len(found) == STEP_ENTRIES, size)


def delete_through(connection: sqlite3.Connection, model: int, last: int) -> None:
    connection.execute("DELETE FROM entries WHERE model = ? AND seq <= ?", (model, last))


def _limited(connection: sqlite3.Connection, head: Head, through: int, behind: int | None) -> int:
    """`through`, or the seq of the snapshot from which the kept log must continue."""
    if behind is None:
        return through
    snapshots = usable(connection, head)
    return min(through, snapshots[behind][1]) if behind < len(snapshots) else 0
