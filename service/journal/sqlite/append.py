"""The append to a model's log."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence

from service.journal._placing import Sorting, check_parts, placed
from service.journal.chain import next_chain
from service.journal.nonces import OURS
from service.journal.protocol import (
    ENTRY_BYTES,
    Appended,
    Change,
    CursorMove,
    CursorMoved,
    Entry,
    Known,
    Limits,
    Part,
    UnknownCopy,
)
from service.journal.sqlite import answers, audit, copies, remembering
from service.journal.sqlite.answers import Result
from service.journal.sqlite.entries import find_entries
from service.journal.sqlite.heads import Head, find_head
from service.journal.sqlite.transactions import Task

# Keys that one append may remove beyond those that it adds: so no append pays for all of them.
PURGE_KEYS = 64
LOOKED_UP_KEYS = 32


# INDEXED BY: SQLite takes a model's keys for few, and would go through all of them.
_KEYS = """
SELECT key, seq, count, fingerprint FROM keys INDEXED BY keys_by_key
WHERE model = ? AND time_ms > ? AND number >= ? AND key IN ({})
""".format(", ".join("?" * LOOKED_UP_KEYS))  # nosec B608 - question marks alone are put in


def append(
    model: str,
    incarnation: str,
    nonce: bytes,
    known_seq: int,
    parts: Sequence[Part],
    cursor: CursorMove | None,
    copy: str | None,
    change: Change | None,
    limits: Limits,
    now_ms: Callable[[], int],
) -> Task[Appended]:
    """The task behind `Journal.append`, to be run in a write transaction."""
    has_keys = check_parts(nonce, parts)
    is_first = OURS.is_first(nonce)

    def task(connection: sqlite3.Connection) -> Appended:
        head = find_head(connection, model, incarnation)
        result = None
        if not is_first:
            result = answers.find(connection, head, incarnation, nonce, limits)
        if result is None:
            if cursor is not None:
                _move_cursor(connection, head.model, cursor)
            result = _append_new(connection, head, nonce, parts, has_keys, limits, now_ms())
            if copy is not None and result.seq > result.before:
                if not copies.is_there(connection, head.model, copy):
                    raise UnknownCopy(model, copy)
                copies.use(connection, head.model, result.seq, copy)
            if change is not None and (result.seq > result.before or not parts):
                place = (model, incarnation, result.seq)
                audit.keep(connection, *place, change, limits, now_ms())
        return _answer(connection, head, result, known_seq, parts)

    return task


def _append_new(
    connection: sqlite3.Connection,
    head: Head,
    nonce: bytes,
    parts: Sequence[Part],
    has_keys: bool,
    limits: Limits,
    time_ms: int,
) -> Result:
    sorting = Sorting(head.seq)
    if has_keys:
        keys = [part.key for part in parts if part.key is not None]
        sorting.sort(parts, _find_keys(connection, head, keys, limits, time_ms).get)
        remembering.let_go(connection, head.model, sorting.labels)
    else:
        sorting.kept = [part.body for part in parts]
        sorting.seq += sum(part.count for part in parts)
    chain = head.chain
    if sorting.seq > head.seq:
        chain = next_chain(head.chain, nonce)
        connection.execute(
            "INSERT INTO entries (model, seq, first_seq, nonce, chain, time_ms, body)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                head.model,
                sorting.seq,
                head.seq + 1,
                nonce,
                chain,
                time_ms,
                b"".join(sorting.kept),
            ),
        )
    result = Result(head.seq, sorting.seq, head.chain, chain, sorting.left)
    answers.keep(connection, head, nonce, result, limits)
    first_key, next_key = head.first_key, head.next_key
    if sorting.keys or first_key < next_key:
        first_key, next_key = _keep_keys(connection, head, sorting.keys, limits, time_ms)
    connection.execute(
        "UPDATE heads SET seq = ?, chain = ?, first_key = ?, next_key = ?, nonces = ?"
        " WHERE model = ?",
        (sorting.seq, chain, first_key, next_key, head.nonces + 1, head.model),
    )
    return result


def _find_keys(
    connection: sqlite3.Connection,
    head: Head,
    keys: Sequence[bytes],
    limits: Limits,
    time_ms: int,
) -> dict[bytes, Known]:
    """Those of the keys that are known, many in one statement."""
    oldest_ms = time_ms - round(limits.key_ttl_s * 1000)
    floor = head.next_key - limits.max_keys
    known: dict[bytes, Known] = {}
    for at in range(0, len(keys), LOOKED_UP_KEYS):
        some = keys[at : at + LOOKED_UP_KEYS]
        padding = [None] * (LOOKED_UP_KEYS - len(some))  # so that there is one statement
        for key, *found in connection.execute(
            _KEYS, (head.model, oldest_ms, floor, *some, *padding)
        ):
            known[key] = Known(*found)
    return known


def known(
    model: str, incarnation: str, keys: Sequence[bytes], limits: Limits, now_ms: Callable[[], int]
) -> Task[list[Known | None]]:
    """The task behind `Journal.known`."""

    def task(connection: sqlite3.Connection) -> list[Known | None]:
        head = find_head(connection, model, incarnation)
        found = _find_keys(connection, head, keys, limits, now_ms())
        return [found.get(key) for key in keys]

    return task


def _keep_keys(
    connection: sqlite3.Connection,
    head: Head,
    keys: dict[bytes, Known],
    limits: Limits,
    time_ms: int,
) -> tuple[int, int]:
    """Keep new keys and let go of some that are too old or too many; (first, next) key's number.

    OR REPLACE: a key may come again while its expired row still waits to be removed.
    """
    connection.executemany(
        "INSERT OR REPLACE INTO keys (model, number, key, seq, count, fingerprint, time_ms)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (head.model, number, key, *known, time_ms)
            for number, (key, known) in enumerate(keys.items(), head.next_key)
        ],
    )
    next_key = head.next_key + len(keys)
    first_key = _first_kept_key(connection, head, next_key - limits.max_keys, limits, time_ms)
    first_key = min(first_key, head.first_key + PURGE_KEYS + 4 * len(keys))
    if first_key > head.first_key:
        connection.execute(
            "DELETE FROM keys WHERE model = ? AND number < ?", (head.model, first_key)
        )
    return first_key, next_key


def _first_kept_key(
    connection: sqlite3.Connection, head: Head, floor: int, limits: Limits, time_ms: int
) -> int:
    oldest_ms = time_ms - round(limits.key_ttl_s * 1000)
    rows: Iterable[tuple[int, int]] = connection.execute(
        "SELECT number, time_ms FROM keys WHERE model = ? AND number >= ? ORDER BY number",
        (head.model, max(floor, head.first_key)),
    )
    first = max(floor, head.first_key)
    for seen, (number, kept_ms) in enumerate(rows):
        if kept_ms > oldest_ms or seen > PURGE_KEYS:
            break
        first = number + 1
    return first


def _move_cursor(connection: sqlite3.Connection, model: int, move: CursorMove) -> None:
    value = find_cursor(connection, model, move.name)
    if value != move.expected:
        raise CursorMoved(move.name, value)
    connection.execute(
        "INSERT OR REPLACE INTO cursors (model, name, value) VALUES (?, ?, ?)",
        (model, move.name, move.new),
    )


def find_cursor(connection: sqlite3.Connection, model: int, name: str) -> str | None:
    row = connection.execute(
        "SELECT value FROM cursors WHERE model = ? AND name = ?", (model, name)
    ).fetchone()
    return None if row is None else row[0]


def _answer(
    connection: sqlite3.Connection,
    head: Head,
    result: Result,
    known_seq: int,
    parts: Sequence[Part],
) -> Appended:
    entries: list[Entry] = []
    more = False
    if known_seq < head.trimmed:
        more = True
    elif known_seq < result.before:
        entries = find_entries(connection, head.model, known_seq, result.before, ENTRY_BYTES)
        more = not entries or entries[-1].seq < result.before
    is_new = result.seq > result.before
    return Appended(
        placed(parts, result.before, result.left),
        result.before + 1 if is_new else None,
        result.seq if is_new else None,
        result.previous,
        result.chain,
        tuple(entries),
        more,
    )
