"""Idempotency keys in SQLite: look-up, insertion and expiry."""

from collections.abc import Iterable, Mapping, Sequence
from sqlite3 import Connection

from dualstream.service.journal.protocol import KeyEntry, Limits
from dualstream.service.journal.sqlite.log import Head

# Expired keys that an append deletes beyond those that it adds: bounds the cost of one append.
PURGE_KEYS = 64
LOOKED_UP_KEYS = 32

# INDEXED BY: SQLite underestimates a model's keys and chooses to scan all of them.
_KEYS = """
SELECT key, seq, count, fingerprint FROM keys INDEXED BY keys_by_key
WHERE model = ? AND time_ms > ? AND number >= ? AND key IN ({})
""".format(", ".join("?" * LOOKED_UP_KEYS))  # nosec B608 - question marks alone are put in


def find_keys(
    db: Connection, head: Head, keys: Sequence[bytes], limits: Limits, time_ms: int
) -> dict[bytes, KeyEntry]:
    """Stored values of the known ones among these keys, many per statement."""
    oldest_ms = time_ms - round(limits.key_ttl_s * 1000)
    floor = head.next_key - limits.max_keys
    entries: dict[bytes, KeyEntry] = {}
    for at in range(0, len(keys), LOOKED_UP_KEYS):
        batch = keys[at : at + LOOKED_UP_KEYS]
        padding = [None] * (LOOKED_UP_KEYS - len(batch))  # keeps it one prepared statement
        for key, *fields in db.execute(_KEYS, (head.model, oldest_ms, floor, *batch, *padding)):
            entries[key] = KeyEntry(*fields)
    return entries


def keep_keys(
    db: Connection, head: Head, keys: Mapping[bytes, KeyEntry], limits: Limits, time_ms: int
) -> tuple[int, int]:
    """Insert new keys and delete some expired or excess ones; return (first, next) key number.

    OR REPLACE: a key can return while its expired row is not deleted yet.
    """
    db.executemany(
        "INSERT OR REPLACE INTO keys (model, number, key, seq, count, fingerprint, time_ms)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (head.model, number, key, *entry, time_ms)
            for number, (key, entry) in enumerate(keys.items(), head.next_key)
        ],
    )
    next_key = head.next_key + len(keys)
    first_key = _first_kept_key(db, head, next_key - limits.max_keys, limits, time_ms)
    first_key = min(first_key, head.first_key + PURGE_KEYS + 4 * len(keys))
    if first_key > head.first_key:
        db.execute("DELETE FROM keys WHERE model = ? AND number < ?", (head.model, first_key))
    return first_key, next_key


def _first_kept_key(db: Connection, head: Head, floor: int, limits: Limits, time_ms: int) -> int:
    oldest_ms = time_ms - round(limits.key_ttl_s * 1000)
    rows: Iterable[tuple[int, int]] = db.execute(
        "SELECT number, time_ms FROM keys WHERE model = ? AND number >= ? ORDER BY number",
        (head.model, max(floor, head.first_key)),
    )
    first = max(floor, head.first_key)
    for seen, (number, kept_ms) in enumerate(rows):
        if kept_ms > oldest_ms or seen > PURGE_KEYS:
            break
        first = number + 1
    return first
