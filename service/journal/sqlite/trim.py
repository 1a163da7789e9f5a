"""Deletion in bounded steps, so that appends wait for one step at most: trims, deleted models."""

import os
import sqlite3
from collections.abc import Awaitable, Callable
from sqlite3 import Connection
from typing import NamedTuple

from dualstream.service.journal.protocol import JournalUnavailable
from dualstream.service.journal.sqlite.append import keep_trimmed
from dualstream.service.journal.sqlite.base import reads, writes
from dualstream.service.journal.sqlite.log import Head, find_head
from dualstream.service.journal.sqlite.snapshots import PART_BYTES, usable
from dualstream.service.journal.sqlite.state_copies import SqliteCopies

STEP_ENTRIES = 1000
STEP_BYTES = 4 << 20
"""Deleting overwrites the data, so it takes as long as appending it."""
SWEEP_ROWS, SWEEP_PARTS = 1000, 4
MAX_SEQ = 2**63 - 1


MAX_REWRITTEN_BYTES = 128 << 20
"""Largest file that a scrub rewrites: no append is possible for about a second."""


class Deleted(NamedTuple):
    """Result of one step."""

    more: bool
    """Is there more to do?"""
    size: int
    """Bytes written, approximately."""


class SqliteTrim(SqliteCopies):
    """Trimming of logs, and deletion of the rows of deleted models."""

    async def trim(
        self, model: str, incarnation: str, through: int, behind: int | None = None
    ) -> None:
        await self._in_steps(lambda: self._trim_step(model, incarnation, through, behind))
        await self._collect(model, incarnation)

    async def _sweep(self) -> None:
        """Delete all rows of deleted models."""
        await self._in_steps(self._sweep_step)

    async def _in_steps(self, step: Callable[[], Awaitable[Deleted]]) -> None:
        """Run steps until nothing is left to do; other writes come between them."""
        more = True
        while more:
            more, size = await step()
            if size:
                self._checkpointer.wrote(size)
                await self._checkpointer.caught_up()

    async def scrub(self, model: str, incarnation: str) -> bool:
        # SQLite overwrites deleted rows (secure_delete), but not the former bytes of rows that it
        # moved between pages. Only a rewrite of the file removes these.
        await self._check_incarnation(model, incarnation)
        if not await self._checkpointer.empty():  # the write-ahead log may still have the rows
            return False
        if os.path.getsize(self._path) > MAX_REWRITTEN_BYTES:
            return True
        await self._writer.run(_rewrite)
        return await self._checkpointer.empty()

    @reads
    def _check_incarnation(self, db: Connection, model: str, incarnation: str) -> None:
        find_head(db, model, incarnation)

    @writes
    def _trim_step(
        self, db: Connection, model: str, incarnation: str, through: int, behind: int | None
    ) -> Deleted:
        head = find_head(db, model, incarnation)
        last, deleted = _oldest(db, head.model, _limited(db, head, through, behind))
        if last is not None:
            keep_trimmed(db, head, incarnation, last, self._limits)
            _delete_through(db, head.model, last)
            db.execute("UPDATE heads SET trimmed = ? WHERE model = ?", (last, head.model))
        return deleted

    @writes
    def _sweep_step(self, db: Connection) -> Deleted:
        row = db.execute("SELECT model FROM garbage LIMIT 1").fetchone()
        if row is None:
            return Deleted(False, 0)
        last, deleted = _oldest(db, row[0], MAX_SEQ)
        if last is not None:
            _delete_through(db, row[0], last)
            return Deleted(True, deleted.size)
        arguments = {"model": row[0], "rows": SWEEP_ROWS, "parts": SWEEP_PARTS}
        for statement in _SWEEP:
            if db.execute(statement, arguments).rowcount:
                return Deleted(True, SWEEP_PARTS * PART_BYTES if ":parts" in statement else 0)
        db.execute("DELETE FROM garbage WHERE model = ?", row)
        return Deleted(True, 0)


_SWEEP = (
    "DELETE FROM keys WHERE model = :model AND number <"
    " (SELECT min(number) + :rows FROM keys WHERE model = :model)",
    "DELETE FROM nonces WHERE model = :model",
    "DELETE FROM cursors WHERE model = :model",
    "DELETE FROM snapshot_parts WHERE rowid IN (SELECT snapshot_parts.rowid FROM snapshot_parts"
    " JOIN snapshots USING (snapshot) WHERE model = :model LIMIT :parts)",
    "DELETE FROM snapshots WHERE model = :model",
    "DELETE FROM copy_parts WHERE rowid IN (SELECT copy_parts.rowid FROM copy_parts"
    " JOIN copies USING (copy) WHERE model = :model LIMIT :parts)",
    "DELETE FROM copies WHERE model = :model",
    "DELETE FROM copy_uses WHERE model = :model",
    "DELETE FROM versions WHERE model = :model",
    "DELETE FROM remembered WHERE rowid IN"
    " (SELECT rowid FROM remembered WHERE model = :model LIMIT :rows)",
    "DELETE FROM remembered_sums WHERE model = :model",
)


def _rewrite(db: Connection) -> None:
    """Rewrite the file: it then contains no byte of a deleted or moved row."""
    try:
        db.execute("VACUUM")
    except sqlite3.Error as error:
        raise JournalUnavailable(f"SQLite cannot rewrite its file: {error}") from error


def _oldest(db: Connection, model: int, through: int) -> tuple[int | None, Deleted]:
    """Last of the entries up to `through` that one step deletes (one at least), and its work."""
    last, size = None, 0
    entries = db.execute(
        "SELECT seq, length(body) FROM entries WHERE model = ? AND seq <= ? ORDER BY seq LIMIT ?",
        (model, through, STEP_ENTRIES),
    ).fetchall()
    for seq, length in entries:
        if last is not None and size + length > STEP_BYTES:
            break
        last, size = seq, size + length
    if last is None:
        return None, Deleted(False, 0)
    return last, Deleted(last < entries[-1][0] or len(entries) == STEP_ENTRIES, size)


def _delete_through(db: Connection, model: int, last: int) -> None:
    db.execute("DELETE FROM entries WHERE model = ? AND seq <= ?", (model, last))


def _limited(db: Connection, head: Head, through: int, behind: int | None) -> int:
    """`through`, or the seq of the snapshot from which the kept log must continue."""
    if behind is None:
        return through
    snapshots = usable(db, head)
    return min(through, snapshots[behind][1]) if behind < len(snapshots) else 0
