"""Read the entries of a model's log."""

import sqlite3

from dualstream.service.journal.chain import next_chain
from dualstream.service.journal.protocol import ENTRY_OVERHEAD, Entry, Place, Trimmed
from dualstream.service.journal.sqlite.heads import Head, find_head
from dualstream.service.journal.sqlite.transactions import Task


def find_entries(
    connection: sqlite3.Connection, model: int, after: int, through: int, limit_bytes: int
) -> list[Entry]:
    """Entries with after < last seq <= through, up to `limit_bytes`, at least one if any."""
    entries: list[Entry] = []
    size = 0
    for row in connection.execute(
        "SELECT first_seq, seq, nonce, chain, time_ms, body FROM entries"
        " WHERE model = ? AND seq > ? AND seq <= ? ORDER BY seq",
        (model, after, through),
    ):
        entry = Entry(*row)
        size += len(entry.body) + ENTRY_OVERHEAD
        if entries and size > limit_bytes:
            break
        entries.append(entry)
    return entries


def leads_on_from(connection: sqlite3.Connection, head: Head, place: Place) -> bool:
    """Does the log continue from this position, or end there?"""
    following = find_entries(connection, head.model, place.seq, head.seq, 0)
    if not following:
        return (place.seq, place.chain) == (head.seq, head.chain)
    first = following[0]
    return first.first_seq == place.seq + 1 and next_chain(place.chain, first.nonce) == first.chain


def read(model: str, incarnation: str, after: int, limit_bytes: int) -> Task[list[Entry]]:
    """The task of `Journal.read`."""

    def task(connection: sqlite3.Connection) -> list[Entry]:
        head = find_head(connection, model, incarnation)
        if after < head.trimmed:
            raise Trimmed(head.trimmed + 1)
        return find_entries(connection, head.model, after, head.seq, limit_bytes)

    return task
