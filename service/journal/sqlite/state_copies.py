"""State copies in SQLite, written in parts, and the versions that name them.

A copy's row is incomplete until all parts are written. Its parts are the same for every writer, so
several may write a copy at once, and one continues where another has died.
"""

import hashlib
import sqlite3

from dualstream.service.journal.protocol import (
    Change,
    Conflict,
    Limits,
    NotHeld,
    Place,
    TooManyVersions,
    UnknownCopy,
)
from dualstream.service.journal.sqlite import audit
from dualstream.service.journal.sqlite.heads import find_head
from dualstream.service.journal.sqlite.log import leads_on_from
from dualstream.service.journal.sqlite.transactions import Task
from dualstream.service.journal.state_copies import CopyUse, StoredCopy, Version

PART_BYTES = 1 << 20


def digest_of(data: bytes) -> str:
    """SHA-256 of the bytes in hex."""
    return hashlib.sha256(data).hexdigest()


def begin(
    model: str, incarnation: str, digest: str, size: int, now_ms: int
) -> Task[tuple[int, bool]]:
    """The copy's row number, and whether it is complete; protects it from collection."""

    def task(connection: sqlite3.Connection) -> tuple[int, bool]:
        head = find_head(connection, model, incarnation)
        connection.execute(
            "INSERT OR IGNORE INTO copies (model, digest, bytes, touched_ms) VALUES (?, ?, ?, 0)",
            (head.model, digest, size),
        )
        connection.execute(
            "UPDATE copies SET touched_ms = ? WHERE model = ? AND digest = ?",
            (now_ms, head.model, digest),
        )
        number, is_complete = connection.execute(
            "SELECT copy, is_complete FROM copies WHERE model = ? AND digest = ?",
            (head.model, digest),
        ).fetchone()
        return number, bool(is_complete)

    return task


def put_part(copy: int, part: int, piece: bytes, now_ms: int) -> Task[bool]:
    """Write one part; False if the copy's row is gone."""

    def task(connection: sqlite3.Connection) -> bool:
        touched = connection.execute(
            "UPDATE copies SET touched_ms = ? WHERE copy = ?", (now_ms, copy)
        )
        if not touched.rowcount:
            return False
        connection.execute(
            "INSERT OR REPLACE INTO copy_parts (copy, part, bytes) VALUES (?, ?, ?)",
            (copy, part, piece),
        )
        return True

    return task


def complete(model: str, incarnation: str, copy: int, parts: int) -> Task[bool]:
    """Make the copy visible; False if a part is missing because the copy was collected."""

    def task(connection: sqlite3.Connection) -> bool:
        find_head(connection, model, incarnation)
        (found,) = connection.execute(
            "SELECT count(*) FROM copy_parts WHERE copy = ?", (copy,)
        ).fetchone()
        if found != parts:
            return False
        updated = connection.execute("UPDATE copies SET is_complete = 1 WHERE copy = ?", (copy,))
        return updated.rowcount > 0

    return task


def get(model: str, incarnation: str, digest: str) -> Task[bytes | None]:
    """The task of `Journal.copy_get`."""

    def task(connection: sqlite3.Connection) -> bytes | None:
        head = find_head(connection, model, incarnation)
        if not is_there(connection, head.model, digest):
            return None
        pieces = connection.execute(
            "SELECT copy_parts.bytes FROM copies JOIN copy_parts USING (copy)"
            " WHERE model = ? AND digest = ? ORDER BY part",
            (head.model, digest),
        )
        return b"".join(piece for (piece,) in pieces)

    return task


def is_there(connection: sqlite3.Connection, model: int, digest: str) -> bool:
    """Is there a complete copy of this digest?"""
    return _has(
        connection, "copies WHERE model = ? AND digest = ? AND is_complete", (model, digest)
    )


def stored(model: str, incarnation: str, with_partial: bool) -> Task[list[StoredCopy]]:
    """The task of `Journal.copies`."""

    def task(connection: sqlite3.Connection) -> list[StoredCopy]:
        head = find_head(connection, model, incarnation)
        found = connection.execute(
            "SELECT digest, bytes FROM copies WHERE model = ? AND (is_complete OR ?)"
            " ORDER BY digest",
            (head.model, with_partial),
        )
        return [StoredCopy(*row) for row in found]

    return task


def use(connection: sqlite3.Connection, model: int, seq: int, digest: str) -> None:
    """Let the entry that ends at `seq` refer to a copy."""
    connection.execute(
        "INSERT INTO copy_uses (model, seq, digest) VALUES (?, ?, ?)", (model, seq, digest)
    )


def uses(model: str, incarnation: str) -> Task[list[CopyUse]]:
    """The task of `Journal.copy_uses`."""

    def task(connection: sqlite3.Connection) -> list[CopyUse]:
        head = find_head(connection, model, incarnation)
        found = connection.execute(
            "SELECT seq, digest FROM copy_uses WHERE model = ? ORDER BY seq", (head.model,)
        )
        return [CopyUse(*row) for row in found]

    return task


def delete(model: str, incarnation: str, digest: str) -> Task[None]:
    """The task of `Journal.copy_delete`."""

    def task(connection: sqlite3.Connection) -> None:
        head = find_head(connection, model, incarnation)
        if _is_named(connection, head.model, digest):
            raise Conflict(f"a version or a kept record of {model!r} refers to the copy {digest}")
        _remove(connection, head.model, digest)

    return task


def collect(model: str, incarnation: str, limits: Limits, now_ms: int) -> Task[None]:
    """Delete copies that only trimmed records referred to, and copies without a name for long."""

    def task(connection: sqlite3.Connection) -> None:
        head = find_head(connection, model, incarnation)
        where = (head.model, head.trimmed)
        freed = connection.execute(
            "SELECT digest FROM copy_uses WHERE model = ? AND seq <= ?", where
        ).fetchall()
        connection.execute("DELETE FROM copy_uses WHERE model = ? AND seq <= ?", where)
        old = connection.execute(
            "SELECT digest FROM copies WHERE model = ? AND touched_ms <= ?",
            (head.model, now_ms - round(limits.unnamed_copy_s * 1000)),
        ).fetchall()
        for (digest,) in freed + old:
            if not _is_named(connection, head.model, digest):
                _remove(connection, head.model, digest)

    return task


def _is_named(connection: sqlite3.Connection, model: int, digest: str) -> bool:
    return any(
        _has(connection, f"{table} WHERE model = ? AND digest = ?", (model, digest))
        for table in ("versions", "copy_uses")
    )


def _has(connection: sqlite3.Connection, what: str, values: tuple[int, str]) -> bool:
    """Does such a row exist? `what` is text of this module, never user input."""
    query = f"SELECT 1 FROM {what} LIMIT 1"  # noqa: S608
    return connection.execute(query, values).fetchone() is not None


def _remove(connection: sqlite3.Connection, model: int, digest: str) -> None:
    connection.execute(
        "DELETE FROM copy_parts WHERE copy IN"
        " (SELECT copy FROM copies WHERE model = ? AND digest = ?)",
        (model, digest),
    )
    connection.execute("DELETE FROM copies WHERE model = ? AND digest = ?", (model, digest))


# -- versions ------------------------------------------------------------------------------------

_VERSIONS = "SELECT name, seq, chain, digest, bytes, created_ms, note FROM versions WHERE model = ?"


def name(
    model: str,
    incarnation: str,
    version: Version,
    change: Change | None,
    limits: Limits,
    now_ms: int,
) -> Task[tuple[Version, bool]]:
    """The task of `Journal.version_put`."""

    def task(connection: sqlite3.Connection) -> tuple[Version, bool]:
        head = find_head(connection, model, incarnation)
        known = _find(connection, head.model, version.name)
        if known is not None:
            if known.digest != version.digest:
                raise Conflict(f"version {version.name!r} of {model!r} already names another state")
            return known, False
        place = Place(version.seq, version.chain)
        if not version.created_ms and not leads_on_from(connection, head, place):
            raise NotHeld(model, version.seq, version.chain)
        if not is_there(connection, head.model, version.digest):
            raise UnknownCopy(model, version.digest)
        (count,) = connection.execute(
            "SELECT count(*) FROM versions WHERE model = ?", (head.model,)
        ).fetchone()
        if count >= limits.max_versions:
            raise TooManyVersions(model, limits.max_versions)
        connection.execute(
            "INSERT INTO versions (model, name, seq, chain, digest, bytes, created_ms, note)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                head.model,
                version.name,
                version.seq,
                version.chain,
                version.digest,
                version.bytes,
                version.created_ms or now_ms,
                version.note,
            ),
        )
        stored_version = _find(connection, head.model, version.name)
        assert stored_version is not None
        audit.keep(connection, model, incarnation, version.seq, change, limits, now_ms)
        return stored_version, True

    return task


def _find(connection: sqlite3.Connection, model: int, name: str) -> Version | None:
    row = connection.execute(_VERSIONS + " AND name = ?", (model, name)).fetchone()
    return None if row is None else Version(*row)


def find(model: str, incarnation: str, name: str) -> Task[Version | None]:
    """The task of `Journal.version_get`."""

    def task(connection: sqlite3.Connection) -> Version | None:
        return _find(connection, find_head(connection, model, incarnation).model, name)

    return task


def versions(model: str, incarnation: str) -> Task[list[Version]]:
    """The task of `Journal.versions`."""

    def task(connection: sqlite3.Connection) -> list[Version]:
        head = find_head(connection, model, incarnation)
        rows = connection.execute(_VERSIONS + " ORDER BY seq, name", (head.model,))
        return [Version(*row) for row in rows]

    return task


def unname(
    model: str, incarnation: str, name: str, change: Change | None, limits: Limits, now_ms: int
) -> Task[bool]:
    """The task of `Journal.version_delete`."""

    def task(connection: sqlite3.Connection) -> bool:
        head = find_head(connection, model, incarnation)
        known = _find(connection, head.model, name)
        if known is None:
            return False
        connection.execute("DELETE FROM versions WHERE model = ? AND name = ?", (head.model, name))
        if not _is_named(connection, head.model, known.digest):
            _remove(connection, head.model, known.digest)
        audit.keep(connection, model, incarnation, head.seq, change, limits, now_ms)
        return True

    return task
