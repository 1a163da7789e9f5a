"""State copies in SQLite, written in parts, and the versions that name them.

A copy's row is incomplete until all parts are written. Its parts are the same for every writer, so
several may write a copy at once, and one continues where another has died.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from sqlite3 import Connection

import msgspec

from dualstream.service.journal.protocol import (
    Change,
    Conflict,
    LogPosition,
    MissingPosition,
    TooManyVersions,
    UnknownCopy,
)
from dualstream.service.journal.sqlite.audit import keep_change
from dualstream.service.journal.sqlite.base import SqlitePart, reads, writes
from dualstream.service.journal.sqlite.log import find_head, leads_on_from, now_ms
from dualstream.service.journal.sqlite.snapshots import PART_BYTES
from dualstream.service.journal.state_copies import CopyUse, StoredCopy, Version

_VERSIONS = "SELECT name, seq, chain, digest, bytes, created_ms, note FROM versions WHERE model = ?"


class SqliteCopies(SqlitePart):
    """Copies and versions."""

    async def copy_put(self, model: str, incarnation: str, data: bytes) -> str:
        digest = (await asyncio.to_thread(hashlib.sha256, data)).hexdigest()
        while True:
            copy, is_complete = await self._begin_copy(model, incarnation, digest, len(data))
            if is_complete or await self._put_copy(model, incarnation, copy, data):
                return digest

    async def _put_copy(self, model: str, incarnation: str, copy: int, data: bytes) -> bool:
        """Write a copy; False if it was collected during the writing."""
        parts = range(0, len(data), PART_BYTES)
        for part, at in enumerate(parts):
            piece = data[at : at + PART_BYTES]
            if not await self._put_copy_part(copy, part, piece):
                return False
            self._checkpointer.wrote(len(piece))
        return await self._complete_copy(model, incarnation, copy, len(parts))

    @writes
    def _begin_copy(
        self, db: Connection, model: str, incarnation: str, digest: str, size: int
    ) -> tuple[int, bool]:
        """The copy's row number, and whether it is complete; protects it from collection."""
        head = find_head(db, model, incarnation)
        db.execute(
            "INSERT OR IGNORE INTO copies (model, digest, bytes, touched_ms) VALUES (?, ?, ?, 0)",
            (head.model, digest, size),
        )
        db.execute(
            "UPDATE copies SET touched_ms = ? WHERE model = ? AND digest = ?",
            (now_ms(), head.model, digest),
        )
        number, is_complete = db.execute(
            "SELECT copy, is_complete FROM copies WHERE model = ? AND digest = ?",
            (head.model, digest),
        ).fetchone()
        return number, bool(is_complete)

    @writes
    def _put_copy_part(self, db: Connection, copy: int, part: int, piece: bytes) -> bool:
        """Write one part; False if the copy's row is gone."""
        touched = db.execute("UPDATE copies SET touched_ms = ? WHERE copy = ?", (now_ms(), copy))
        if not touched.rowcount:
            return False
        db.execute(
            "INSERT OR REPLACE INTO copy_parts (copy, part, bytes) VALUES (?, ?, ?)",
            (copy, part, piece),
        )
        return True

    @writes
    def _complete_copy(
        self, db: Connection, model: str, incarnation: str, copy: int, parts: int
    ) -> bool:
        """Make the copy visible; False if a part is missing because the copy was collected."""
        find_head(db, model, incarnation)
        (count,) = db.execute("SELECT count(*) FROM copy_parts WHERE copy = ?", (copy,)).fetchone()
        if count != parts:
            return False
        updated = db.execute("UPDATE copies SET is_complete = 1 WHERE copy = ?", (copy,))
        return updated.rowcount > 0

    @reads
    def copy_get(self, db: Connection, model: str, incarnation: str, digest: str) -> bytes | None:
        head = find_head(db, model, incarnation)
        if not has_copy(db, head.model, digest):
            return None
        pieces = db.execute(
            "SELECT copy_parts.bytes FROM copies JOIN copy_parts USING (copy)"
            " WHERE model = ? AND digest = ? ORDER BY part",
            (head.model, digest),
        )
        return b"".join(piece for (piece,) in pieces)

    @reads
    def copies(
        self, db: Connection, model: str, incarnation: str, with_partial: bool = False
    ) -> Sequence[StoredCopy]:
        head = find_head(db, model, incarnation)
        rows = db.execute(
            "SELECT digest, bytes FROM copies WHERE model = ? AND (is_complete OR ?)"
            " ORDER BY digest",
            (head.model, with_partial),
        )
        return [StoredCopy(*row) for row in rows]

    @reads
    def copy_uses(self, db: Connection, model: str, incarnation: str) -> Sequence[CopyUse]:
        head = find_head(db, model, incarnation)
        rows = db.execute(
            "SELECT seq, digest FROM copy_uses WHERE model = ? ORDER BY seq", (head.model,)
        )
        return [CopyUse(*row) for row in rows]

    @writes
    def copy_delete(self, db: Connection, model: str, incarnation: str, digest: str) -> None:
        head = find_head(db, model, incarnation)
        if _is_named(db, head.model, digest):
            raise Conflict(f"a version or a kept record of {model!r} refers to the copy {digest}")
        _remove(db, head.model, digest)

    @writes
    def _collect(self, db: Connection, model: str, incarnation: str) -> None:
        """Delete copies that only trimmed records named, and copies without a name for long."""
        head = find_head(db, model, incarnation)
        where = (head.model, head.trimmed)
        freed = db.execute(
            "SELECT digest FROM copy_uses WHERE model = ? AND seq <= ?", where
        ).fetchall()
        db.execute("DELETE FROM copy_uses WHERE model = ? AND seq <= ?", where)
        old = db.execute(
            "SELECT digest FROM copies WHERE model = ? AND touched_ms <= ?",
            (head.model, now_ms() - round(self._limits.unnamed_copy_s * 1000)),
        ).fetchall()
        for (digest,) in freed + old:
            if not _is_named(db, head.model, digest):
                _remove(db, head.model, digest)

    @writes
    def version_put(
        self,
        db: Connection,
        model: str,
        incarnation: str,
        version: Version,
        change: Change | None = None,
    ) -> tuple[Version, bool]:
        head = find_head(db, model, incarnation)
        existing = _find_version(db, head.model, version.name)
        if existing is not None:
            if existing.digest != version.digest:
                raise Conflict(f"version {version.name!r} of {model!r} already names another state")
            return existing, False
        position = LogPosition(version.seq, version.chain)
        if not version.created_ms and not leads_on_from(db, head, position):
            raise MissingPosition(model, version.seq, version.chain)
        if not has_copy(db, head.model, version.digest):
            raise UnknownCopy(model, version.digest)
        (count,) = db.execute(
            "SELECT count(*) FROM versions WHERE model = ?", (head.model,)
        ).fetchone()
        if count >= self._limits.max_versions:
            raise TooManyVersions(model, self._limits.max_versions)
        stored = msgspec.structs.replace(version, created_ms=version.created_ms or now_ms())
        db.execute(
            "INSERT INTO versions (name, seq, chain, digest, bytes, created_ms, note, model)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*msgspec.structs.astuple(stored), head.model),
        )
        keep_change(db, model, incarnation, version.seq, change, self._limits)
        return stored, True

    @reads
    def versions(self, db: Connection, model: str, incarnation: str) -> Sequence[Version]:
        head = find_head(db, model, incarnation)
        rows = db.execute(_VERSIONS + " ORDER BY seq, name", (head.model,))
        return [Version(*row) for row in rows]

    @reads
    def version_get(
        self, db: Connection, model: str, incarnation: str, name: str
    ) -> Version | None:
        return _find_version(db, find_head(db, model, incarnation).model, name)

    @writes
    def version_delete(
        self, db: Connection, model: str, incarnation: str, name: str, change: Change | None = None
    ) -> bool:
        head = find_head(db, model, incarnation)
        existing = _find_version(db, head.model, name)
        if existing is None:
            return False
        db.execute("DELETE FROM versions WHERE model = ? AND name = ?", (head.model, name))
        if not _is_named(db, head.model, existing.digest):
            _remove(db, head.model, existing.digest)
        keep_change(db, model, incarnation, head.seq, change, self._limits)
        return True


def has_copy(db: Connection, model: int, digest: str) -> bool:
    """Is there a complete copy of this digest?"""
    return _has(db, "copies WHERE model = ? AND digest = ? AND is_complete", (model, digest))


def use_copy(db: Connection, model: int, seq: int, digest: str) -> None:
    """Let the entry that ends at `seq` refer to a copy."""
    db.execute("INSERT INTO copy_uses (model, seq, digest) VALUES (?, ?, ?)", (model, seq, digest))


def _is_named(db: Connection, model: int, digest: str) -> bool:
    return any(
        _has(db, f"{table} WHERE model = ? AND digest = ?", (model, digest))
        for table in ("versions", "copy_uses")
    )


def _has(db: Connection, what: str, values: tuple[int, str]) -> bool:
    """Does such a row exist? `what` is text of this module, never user input."""
    query = f"SELECT 1 FROM {what} LIMIT 1"  # noqa: S608
    return db.execute(query, values).fetchone() is not None


def _remove(db: Connection, model: int, digest: str) -> None:
    db.execute(
        "DELETE FROM copy_parts WHERE copy IN"
        " (SELECT copy FROM copies WHERE model = ? AND digest = ?)",
        (model, digest),
    )
    db.execute("DELETE FROM copies WHERE model = ? AND digest = ?", (model, digest))


def _find_version(db: Connection, model: int, name: str) -> Version | None:
    row = db.execute(_VERSIONS + " AND name = ?", (model, name)).fetchone()
    return None if row is None else Version(*row)
