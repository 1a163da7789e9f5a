"""Read what a replica starts from (model, snapshot, entries) in one transaction."""

import sqlite3

from dualstream.service.journal.protocol import Base, ModelRecord, UnknownModel
from dualstream.service.journal.sqlite import snapshots
from dualstream.service.journal.sqlite.log import find_entries
from dualstream.service.journal.sqlite.transactions import Task

# Most models have no snapshot: EXISTS is cheaper than a second query.
_BASE = """
SELECT id, incarnation, spec, given, created_ms, seq, chain, models.model, trimmed,
    EXISTS (SELECT 1 FROM snapshots WHERE snapshots.model = models.model)
FROM models JOIN heads ON heads.model = models.model WHERE id = ?
"""


def read(model: str, limit_bytes: int, path: str) -> Task[Base]:
    """The task of `Journal.base`."""

    def task(connection: sqlite3.Connection) -> Base:
        row = connection.execute(_BASE, (model,)).fetchone()
        if row is None:
            raise UnknownModel(model)
        *about, number, trimmed, has_snapshots = row
        record = ModelRecord(*about)
        if not record.seq:
            return Base(record, entries=())
        snapshot = snapshots.find(connection, number, 0, path) if has_snapshots else None
        after = 0 if snapshot is None else snapshot.seq
        if after < trimmed:
            return Base(record, snapshot)
        entries = find_entries(connection, number, after, record.seq, limit_bytes)
        return Base(record, snapshot, tuple(entries))

    return task
