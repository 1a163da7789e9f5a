"""Token buckets in SQLite, in the table `store`."""

from sqlite3 import Connection

from dualstream.service.journal.rate_buckets import SET_BACK_MS, Bucket, Lease, take
from dualstream.service.journal.sqlite.base import SqlitePart
from dualstream.service.journal.sqlite.log import now_ms

LOOKED_AT = 100
"""Buckets examined for deletion with each new one, in the order of names; bounds the cost."""

# Deletes buckets that are full by now at any rate >= 1, as a missing bucket is, and those from
# before the clock was set back. A value is the content in thousandths and the time.
_FORGET = """
DELETE FROM store WHERE name IN (
  SELECT name FROM (
    SELECT name, value, CAST(value AS INTEGER) AS level,
      CAST(substr(value, instr(value, ' ') + 1) AS INTEGER) AS at_ms
    FROM store WHERE name > :first AND name < :last ORDER BY name LIMIT :most
  )
  WHERE at_ms + 1000 + :set_back_ms + max(0, -level) < :now_ms OR at_ms - :now_ms > :set_back_ms
)
"""


class SqliteRateBuckets(SqlitePart):
    """Token buckets."""

    async def lease(
        self, bucket: str, rate: int, needed: int, most: int, at_ms: int | None = None
    ) -> Lease:
        name = f"rate:{bucket}"
        time_ms = now_ms() if at_ms is None else at_ms

        def task(db: Connection) -> Lease:
            row = db.execute("SELECT value FROM store WHERE name = ?", (name,)).fetchone()
            bucket_state = None if row is None else Bucket(*map(int, row[0].split()))
            after, taken = take(bucket_state, rate, needed, most, time_ms)
            if bucket_state is None:
                _forget_others(db, name, time_ms)
            if taken.taken:
                db.execute(
                    "INSERT OR REPLACE INTO store (name, value) VALUES (?, ?)",
                    (name, f"{after.level} {after.at_ms}"),
                )
            return taken

        # In one transaction with the appends that wait for the writer.
        return await self._writer.write(task, 100)


def _forget_others(db: Connection, name: str, time_ms: int) -> None:
    """Delete buckets that are no longer needed: those after this name, then from the first on."""
    for first, last in ((name, "rate;"), ("rate:", name)):  # ; follows : in ASCII
        arguments = {"first": first, "last": last, "most": LOOKED_AT, "now_ms": time_ms}
        db.execute(_FORGET, arguments | {"set_back_ms": SET_BACK_MS})
