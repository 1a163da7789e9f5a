"""Storage usage of a model in SQLite."""

import sqlite3

from dualstream.service.journal.sqlite.heads import find_head
from dualstream.service.journal.sqlite.transactions import Task
from dualstream.service.journal.usage import Usage


def usage(model: str, incarnation: str) -> Task[Usage]:
    """The task of `Journal.usage`."""

    def task(connection: sqlite3.Connection) -> Usage:
        head = find_head(connection, model, incarnation)
        # length() reads the row's header only, not the pages of the body.
        log_bytes = connection.execute(
            "SELECT coalesce(sum(length(body)), 0) FROM entries WHERE model = ?", (head.model,)
        ).fetchone()[0]
        snapshots_bytes, saved = connection.execute(
            "SELECT coalesce(sum(length(bytes)), 0), coalesce(max(seq), 0) FROM snapshots"
            " JOIN snapshot_parts USING (snapshot) WHERE model = ? AND is_complete",
            (head.model,),
        ).fetchone()
        times = (_first_ms(connection, head.model, after) for after in (0, saved))
        return Usage(log_bytes, snapshots_bytes, *times)

    return task


def _first_ms(connection: sqlite3.Connection, model: int, after: int) -> int | None:
    row = connection.execute(
        "SELECT time_ms FROM entries WHERE model = ? AND seq > ? ORDER BY seq LIMIT 1",
        (model, after),
    ).fetchone()
    return None if row is None else int(row[0])
