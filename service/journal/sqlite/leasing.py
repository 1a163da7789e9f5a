"""Buckets that fill at a rate, among what the store keeps by name."""

import sqlite3

from service.journal.leasing import Bucket, Lease, take
from service.journal.sqlite.transactions import Task


def lease(bucket: str, rate: int, needed: int, most: int, now_ms: int) -> Task[Lease]:
    """The task behind `Journal.lease`."""
    name = f"rate:{bucket}"

    def task(connection: sqlite3.Connection) -> Lease:
        row = connection.execute("SELECT value FROM store WHERE name = ?", (name,)).fetchone()
        found = None if row is None else Bucket(*map(int, row[0].split()))
        after, taken = take(found, rate, needed, most, now_ms)
        if taken.taken:
            connection.execute(
                "INSERT OR REPLACE INTO store (name, value) VALUES (?, ?)",
                (name, f"{after.held} {after.at_ms}"),
            )
        return taken

    return task
