"""What a replica begins from, read in one transaction."""

import sqlite3

from service.journal.protocol import Base
from service.journal.sqlite import models, snapshots
from service.journal.sqlite.entries import find_entries
from service.journal.sqlite.heads import find_head
from service.journal.sqlite.transactions import Task


def read(model: str, limit_bytes: int, path: str) -> Task[Base]:
    """The task behind `Journal.base`."""

    def task(connection: sqlite3.Connection) -> Base:
        record = models.get(model)(connection)
        if not record.seq:
            return Base(record, entries=())
        head = find_head(connection, model, record.incarnation)
        snapshot = snapshots.find(connection, head.model, 0, path)
        after = 0 if snapshot is None else snapshot.seq
        if after < head.trimmed:
            return Base(record, snapshot)
        entries = find_entries(connection, head.model, after, head.seq, limit_bytes)
        return Base(record, snapshot, tuple(entries))

    return task
