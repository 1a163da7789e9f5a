"""Snapshots in SQLite, what a replica starts from, and how much storage a model takes.

A snapshot is written in parts, each in its own transaction. Its row is incomplete until its last
part is written. Completing a snapshot deletes all others of the same or an older seq, but one:
those of dead writers and of slow ones, which find their row gone and stop, and those of entries
that the log has lost.
"""

from collections.abc import Sequence
from sqlite3 import Connection

from dualstream.service.journal.protocol import (
    ENTRY_BYTES,
    Base,
    Conflict,
    LogPosition,
    MissingPosition,
    ModelRecord,
    Snapshot,
    UnknownModel,
    Usage,
)
from dualstream.service.journal.sqlite.base import SqlitePart, reads, writes
from dualstream.service.journal.sqlite.log import Head, find_entries, find_head, leads_on_from

PART_BYTES = 1 << 20
KEPT = 2

# Most models have no snapshot: EXISTS is cheaper than a second query.
_BASE = """
SELECT id, incarnation, spec, given, created_ms, seq, chain, models.model, trimmed,
    EXISTS (SELECT 1 FROM snapshots WHERE snapshots.model = models.model)
FROM models JOIN heads ON heads.model = models.model WHERE id = ?
"""


class SqliteSnapshots(SqlitePart):
    """Snapshots, `Journal.base` and `Journal.usage`."""

    async def snapshot_put(
        self,
        model: str,
        incarnation: str,
        seq: int,
        chain: str,
        data: bytes,
        replaces: bool = False,
    ) -> bool:
        snapshot = await self._begin_snapshot(model, incarnation, seq, chain, replaces)
        if snapshot is None:
            return False
        for part, at in enumerate(range(0, len(data), PART_BYTES)):
            piece = data[at : at + PART_BYTES]
            if not await self._put_snapshot_part(snapshot, part, piece):
                return False
            self._checkpointer.wrote(len(piece))
        return await self._complete_snapshot(model, incarnation, snapshot)

    @writes
    def _begin_snapshot(
        self, db: Connection, model: str, incarnation: str, seq: int, chain: str, replaces: bool
    ) -> int | None:
        """Insert the row and return its number; None if there is one of this seq or a newer one.

        With `replaces`, one of the same seq does not count.
        """
        head = find_head(db, model, incarnation)
        existing = usable(db, head)
        is_late = bool(existing) and existing[0][1] >= seq + replaces
        # The log no longer shows whether it had a position before its first entry.
        is_trimmed = is_late and seq < head.trimmed
        if not is_trimmed and not leads_on_from(db, head, LogPosition(seq, chain)):
            raise MissingPosition(model, seq, chain)
        if is_late:
            return None
        return db.execute(
            "INSERT INTO snapshots (model, seq, chain) VALUES (?, ?, ?)", (head.model, seq, chain)
        ).lastrowid

    @writes
    def _put_snapshot_part(self, db: Connection, snapshot: int, part: int, piece: bytes) -> bool:
        """Write one part; False if the snapshot's row is gone."""
        if not _is_there(db, snapshot):
            return False
        db.execute(
            "INSERT INTO snapshot_parts (snapshot, part, bytes) VALUES (?, ?, ?)",
            (snapshot, part, piece),
        )
        return True

    @writes
    def _complete_snapshot(
        self, db: Connection, model: str, incarnation: str, snapshot: int
    ) -> bool:
        """Make the snapshot visible and delete those that it replaces; False if its row is gone."""
        head = find_head(db, model, incarnation)
        if not _is_there(db, snapshot):
            return False
        db.execute("UPDATE snapshots SET is_complete = 1 WHERE snapshot = ?", (snapshot,))
        kept = usable(db, head)[:KEPT]
        if kept:
            _remove_others(db, head.model, kept)
        return True

    @reads
    def snapshot_get(
        self, db: Connection, model: str, incarnation: str, n: int = 0
    ) -> Snapshot | None:
        head = find_head(db, model, incarnation)
        return self._find_snapshot(db, head.model, n)

    def _find_snapshot(self, db: Connection, model: int, n: int) -> Snapshot | None:
        """The complete snapshot with `n` newer ones."""
        row = db.execute(
            "SELECT snapshot, seq, chain FROM snapshots WHERE model = ? AND is_complete"
            " ORDER BY seq DESC LIMIT 1 OFFSET ?",
            (model, n),
        ).fetchone()
        if row is None:
            return None
        pieces = db.execute(
            "SELECT bytes FROM snapshot_parts WHERE snapshot = ? ORDER BY part", (row[0],)
        )
        where = f"row {row[0]} of snapshots in {self._path}"
        return Snapshot(row[1], row[2], b"".join([piece for (piece,) in pieces]), where)

    @reads
    def snapshots(self, db: Connection, model: str, incarnation: str) -> Sequence[LogPosition]:
        head = find_head(db, model, incarnation)
        rows = db.execute(
            "SELECT seq, chain FROM snapshots WHERE model = ? AND is_complete ORDER BY seq DESC",
            (head.model,),
        )
        return [LogPosition(*row) for row in rows]

    @writes
    def snapshots_drop(self, db: Connection, model: str, incarnation: str, before: int) -> None:
        head = find_head(db, model, incarnation)
        if not any(seq >= before for _, seq in usable(db, head)):
            raise Conflict(f"the log of {model!r} contains no snapshot from seq {before} on")
        older = (head.model, before)
        db.execute(
            "DELETE FROM snapshot_parts WHERE snapshot IN"
            " (SELECT snapshot FROM snapshots WHERE model = ? AND seq < ?)",
            older,
        )
        db.execute("DELETE FROM snapshots WHERE model = ? AND seq < ?", older)

    @reads
    def base(self, db: Connection, model: str, limit_bytes: int = ENTRY_BYTES) -> Base:
        row = db.execute(_BASE, (model,)).fetchone()
        if row is None:
            raise UnknownModel(model)
        *about, number, trimmed, has_snapshots = row
        record = ModelRecord(*about)
        if not record.seq:
            return Base(record)
        snapshot = self._find_snapshot(db, number, 0) if has_snapshots else None
        after = 0 if snapshot is None else snapshot.seq
        if after < trimmed:
            return Base(record, snapshot)
        entries = find_entries(db, number, after, record.seq, limit_bytes)
        return Base(record, snapshot, tuple(entries))

    @reads
    def usage(self, db: Connection, model: str, incarnation: str) -> Usage:
        head = find_head(db, model, incarnation)
        # length() reads the row's header only, not the pages of the body.
        log_bytes = db.execute(
            "SELECT coalesce(sum(length(body)), 0) FROM entries WHERE model = ?", (head.model,)
        ).fetchone()[0]
        snapshots_bytes, saved = db.execute(
            "SELECT coalesce(sum(length(bytes)), 0), coalesce(max(seq), 0) FROM snapshots"
            " JOIN snapshot_parts USING (snapshot) WHERE model = ? AND is_complete",
            (head.model,),
        ).fetchone()
        times = (_first_ms(db, head.model, after) for after in (0, saved))
        return Usage(log_bytes, snapshots_bytes, *times)


def _first_ms(db: Connection, model: int, after: int) -> int | None:
    row = db.execute(
        "SELECT time_ms FROM entries WHERE model = ? AND seq > ? ORDER BY seq LIMIT 1",
        (model, after),
    ).fetchone()
    return None if row is None else int(row[0])


def has_snapshot(db: Connection, model: int) -> bool:
    """Does the model have a complete snapshot, usable or not?"""
    rows = db.execute("SELECT 1 FROM snapshots WHERE model = ? AND is_complete LIMIT 1", (model,))
    return rows.fetchone() is not None


def usable(db: Connection, head: Head) -> list[tuple[int, int]]:
    """Complete snapshots from which the log continues, as (number, seq), newest first.

    Of several with one seq, the last one begun.
    """
    newest: dict[int, int] = {}
    for snapshot, seq, chain in db.execute(
        "SELECT snapshot, seq, chain FROM snapshots WHERE model = ? AND is_complete"
        " ORDER BY seq DESC, snapshot DESC",
        (head.model,),
    ):
        if seq not in newest and leads_on_from(db, head, LogPosition(seq, chain)):
            newest[seq] = snapshot
    return [(snapshot, seq) for seq, snapshot in newest.items()]


def _is_there(db: Connection, snapshot: int) -> bool:
    row = db.execute("SELECT 1 FROM snapshots WHERE snapshot = ?", (snapshot,)).fetchone()
    return row is not None


def _remove_others(db: Connection, model: int, kept: Sequence[tuple[int, int]]) -> None:
    """Delete all snapshots but the kept ones and incomplete ones of a later seq."""
    numbers = {snapshot for snapshot, _ in kept}
    for snapshot, seq, is_complete in db.execute(
        "SELECT snapshot, seq, is_complete FROM snapshots WHERE model = ?", (model,)
    ).fetchall():
        if snapshot not in numbers and (is_complete or seq <= kept[0][1]):
            _remove(db, snapshot)


def _remove(db: Connection, snapshot: int) -> None:
    db.execute("DELETE FROM snapshot_parts WHERE snapshot = ?", (snapshot,))
    db.execute("DELETE FROM snapshots WHERE snapshot = ?", (snapshot,))
