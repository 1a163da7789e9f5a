"""Results of appends by nonce, returned when an append is repeated.

An entry contains its nonce, and its columns give the result. So the table `nonces` only has rows
for appends that skipped a part, made no entry, or came when all entries were trimmed, and for the
last trimmed entries. Searching the entries takes time in the number of nonces kept, so appends
first check whether the nonce can have been used (`Nonces.is_first`).
"""

import sqlite3
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from dualstream.service.journal.chain import first_chain
from dualstream.service.journal.deduplicate import SkippedPart, placed
from dualstream.service.journal.protocol import (
    ENTRY_BYTES,
    Appended,
    Entry,
    Limits,
    NonceForgotten,
    Part,
    Place,
)
from dualstream.service.journal.sqlite import snapshots
from dualstream.service.journal.sqlite.heads import Head
from dualstream.service.journal.sqlite.log import find_entries, leads_on_from

PURGED_EVERY = 100
RESTORED = 1 << 40
"""Number of nonces with which a restored model begins; none of them is stored."""


class Result(NamedTuple):
    """Stored result of an append."""

    before: int
    seq: int
    previous: str
    chain: str
    skipped: list[SkippedPart]


pack_result = msgspec.msgpack.encode
unpack_result = msgspec.msgpack.Decoder(Result).decode


def find(
    connection: sqlite3.Connection, head: Head, incarnation: str, nonce: bytes, limits: Limits
) -> Result | None:
    """The result of this nonce, or None."""
    row = connection.execute(
        "SELECT result FROM nonces WHERE model = ? AND nonce = ?", (head.model, nonce)
    ).fetchone()
    if row is not None:
        return unpack_result(row[0])
    row = connection.execute(
        "SELECT before, seq, chain FROM (SELECT first_seq - 1 AS before, seq, nonce, chain"
        " FROM entries WHERE model = ? ORDER BY seq DESC LIMIT ?) WHERE nonce = ?",
        (head.model, min(limits.nonces, head.nonces % RESTORED), nonce),
    ).fetchone()
    if row is None:
        return None
    before, seq, chain = row
    return Result(before, seq, _chain_at(connection, head, incarnation, before), chain, [])


def find_in_log(
    connection: sqlite3.Connection,
    model: str,
    head: Head,
    nonce: bytes,
    parts: Sequence[Part],
    sent_after: Place,
    limits: Limits,
) -> Result | None:
    """Result of a nonce that is no longer kept, searched in the log after `sent_after`.

    None if the nonce was not used. Raises NonceForgotten if the log cannot show it: it no longer
    contains the position, or parts were skipped and the log does not say which.
    """
    if head.nonces <= limits.nonces:  # all nonces are still kept
        return None
    if not leads_on_from(connection, head, sent_after):
        raise NonceForgotten(model)
    row = connection.execute(
        "SELECT first_seq - 1, seq, chain FROM entries WHERE model = ? AND seq > ? AND nonce = ?",
        (head.model, sent_after.seq, nonce),
    ).fetchone()
    if row is None:
        return None
    before, seq, chain = row
    if seq - before != sum(part.count for part in parts):
        raise NonceForgotten(model)
    previous = (
        sent_after.chain if before == sent_after.seq else _chain_at(connection, head, "", before)
    )
    return Result(before, seq, previous, chain, [])


def _chain_at(connection: sqlite3.Connection, head: Head, incarnation: str, seq: int) -> str:
    """The chain at the end of an entry; empty if it is no longer known."""
    if not seq:
        return first_chain(incarnation)
    row = connection.execute(
        "SELECT chain FROM entries WHERE model = ? AND seq = ?", (head.model, seq)
    ).fetchone()
    return "" if row is None else row[0]


def keep(
    connection: sqlite3.Connection, head: Head, nonce: bytes, result: Result, limits: Limits
) -> None:
    """Store the result unless its entry contains it; delete old ones now and then.

    An entry needs the one before it for `previous`, so the result is stored if that was trimmed.
    """
    is_alone = 0 < head.seq == head.trimmed
    if result.skipped or result.seq == result.before or is_alone:
        connection.execute(
            "INSERT INTO nonces (model, nonce, number, result) VALUES (?, ?, ?, ?)",
            (head.model, nonce, head.nonces, pack_result(result)),
        )
    purge(connection, head, limits)


def purge(connection: sqlite3.Connection, head: Head, limits: Limits) -> None:
    """Every PURGED_EVERY appends, delete results older than the last `limits.nonces`."""
    if head.nonces % PURGED_EVERY == 0:
        connection.execute(
            "DELETE FROM nonces WHERE model = ? AND number <= ?",
            (head.model, head.nonces - limits.nonces),
        )


def keep_trimmed(
    connection: sqlite3.Connection, head: Head, incarnation: str, through: int, limits: Limits
) -> None:
    """Store the results of the last nonces whose entries, up to `through`, are about to be deleted.

    Also that of the next entry, whose previous chain is deleted with them.
    """
    rows = connection.execute(
        "SELECT first_seq - 1, seq, nonce, chain FROM entries WHERE model = :model AND seq >="
        " coalesce((SELECT seq FROM entries WHERE model = :model"
        " ORDER BY seq DESC LIMIT 1 OFFSET :nonces - 1), 0)"
        " AND seq <= coalesce((SELECT min(seq) FROM entries"
        " WHERE model = :model AND seq > :through), :through) ORDER BY seq",
        {"model": head.model, "nonces": limits.nonces, "through": through},
    ).fetchall()
    if not rows:
        return
    [following] = connection.execute(
        "SELECT count(*) FROM entries WHERE model = ? AND seq > ?", (head.model, rows[-1][1])
    ).fetchone()
    previous = _chain_at(connection, head, incarnation, rows[0][0])
    number = head.nonces - following - len(rows)
    rows_to_keep = []
    for before, seq, nonce, chain in rows:
        packed = pack_result(Result(before, seq, previous, chain, []))
        rows_to_keep.append((head.model, nonce, number, packed))
        number, previous = number + 1, chain
    # OR IGNORE: an existing row has skipped parts, or a previous chain that was trimmed before.
    connection.executemany(
        "INSERT OR IGNORE INTO nonces (model, nonce, number, result) VALUES (?, ?, ?, ?)",
        rows_to_keep,
    )


def answer(
    connection: sqlite3.Connection,
    head: Head,
    result: Result,
    known_seq: int,
    parts: Sequence[Part],
) -> Appended:
    """Result of an append for its caller, with the entries that the caller has not seen."""
    entries: list[Entry] = []
    more = False
    if known_seq < head.trimmed:
        more = True
    elif not known_seq and result.before and snapshots.is_any(connection, head.model):
        more = True
    elif known_seq < result.before:
        entries = find_entries(connection, head.model, known_seq, result.before, ENTRY_BYTES)
        more = not entries or entries[-1].seq < result.before
    is_new = result.seq > result.before
    return Appended(
        placed(parts, result.before, result.skipped),
        result.before + 1 if is_new else None,
        result.seq if is_new else None,
        result.previous,
        result.chain,
        tuple(entries),
        more,
    )
