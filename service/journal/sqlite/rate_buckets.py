"""Buckets that fill at a rate, among what the store keeps by name."""

import sqlite3

from dualstream.service.journal.rate_buckets import SET_BACK_MS, Bucket, Lease, take
from dualstream.service.journal.sqlite.transactions import Task

LOOKED_AT = 100
"""So many others are looked at with each new bucket, from its name on: none pays for all."""

# By any rate, 1 at least, it is full by then, as one that nobody knows is; or nobody knows it any
# more, as the clock was set back. The value is what it held, in thousandths, and when.
_FORGET = """
DELETE FROM store WHERE name IN (
  SELECT name FROM (
    SELECT name, value, CAST(value AS INTEGER) AS held,
      CAST(substr(value, instr(value, ' ') + 1) AS INTEGER) AS at_ms
    FROM store WHERE name > :first AND name < :last ORDER BY name LIMIT :most
  )
  WHERE at_ms + 1000 + :set_back_ms + max(0, -held) < :now_ms OR at_ms - :now_ms > :set_back_ms
)
"""


def lease(bucket: str, rate: int, needed: int, most: int, now_ms: int) -> Task[Lease]:
    """The task behind `Journal.lease`."""
    name = f"rate:{bucket}"

    def task(connection: sqlite3.Connection) -> Lease:
        row = connection.execute("SELECT value FROM store WHERE name = ?", (name,)).fetchone()
        found = None if row is None else Bucket(*map(int, row[0].split()))
        after, taken = take(found, rate, needed, most, now_ms)
        if found is None:
            _forget_others(connection, name, now_ms)
        if taken.taken:
            connection.execute(
                "INSERT OR REPLACE INTO store (name, value) VALUES (?, ?)",
                (name, f"{after.held} {after.at_ms}"),
            )
        return taken

    return task


def _forget_others(connection: sqlite3.Connection, name: str, now_ms: int) -> None:
    """Delete buckets that need not be known any more, those behind this name, then the first."""
    for first, last in ((name, "rate;"), ("rate:", name)):  # ; comes behind :
        given = {"first": first, "last": last, "most": LOOKED_AT, "now_ms": now_ms}
        connection.execute(_FORGET, given | {"set_back_ms": SET_BACK_MS})
