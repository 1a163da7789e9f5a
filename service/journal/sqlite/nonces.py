"""What an append of this nonce was answered, for whoever repeats it.

An entry has its nonce with it, and tells the answer: so there is a row of it alone for an append
that left out a part, made no entry, or came when all entries were trimmed; and for the last entries
where the log was trimmed. To find one among entries takes as many steps as nonces are kept, so who
asks first makes sure that the nonce can have been used (`Nonces.is_first`).
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
"""How many nonces a restored model begins with: none of them is kept."""


class Result(NamedTuple):
    """What is kept under a nonce."""

    before: int
    seq: int
    previous: str
    chain: str
    left: list[SkippedPart]


pack_result = msgspec.msgpack.encode
unpack_result = msgspec.msgpack.Decoder(Result).decode


def find(
    connection: sqlite3.Connection, head: Head, incarnation: str, nonce: bytes, limits: Limits
) -> Result | None:
    """What stands under the nonce, None where nothing does."""
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
    asked: Place,
    limits: Limits,
) -> Result | None:
    """What the log tells of a nonce that is no longer kept, first asked for behind a place.

    None where it was not used. Raises NonceForgotten where the log does not tell: it has lost the
    place, or has it not any more; or parts were left out, and it does not say which.
    """
    if head.nonces <= limits.nonces:  # all that ever came are kept
        return None
    if not leads_on_from(connection, head, asked):
        raise NonceForgotten(model)
    row = connection.execute(
        "SELECT first_seq - 1, seq, chain FROM entries WHERE model = ? AND seq > ? AND nonce = ?",
        (head.model, asked.seq, nonce),
    ).fetchone()
    if row is None:
        return None
    before, seq, chain = row
    if seq - before != sum(part.count for part in parts):
        raise NonceForgotten(model)
    previous = asked.chain if before == asked.seq else _chain_at(connection, head, "", before)
    return Result(before, seq, previous, chain, [])


def _chain_at(connection: sqlite3.Connection, head: Head, incarnation: str, seq: int) -> str:
    """The chain where an entry ends, empty where the log does not tell it any more."""
    if not seq:
        return first_chain(incarnation)
    row = connection.execute(
        "SELECT chain FROM entries WHERE model = ? AND seq = ?", (head.model, seq)
    ).fetchone()
    return "" if row is None else row[0]


def keep(
    connection: sqlite3.Connection, head: Head, nonce: bytes, result: Result, limits: Limits
) -> None:
    """Keep the answer unless its entry does; let go of old ones now and then.

    The entry tells which chain it follows by the one before it, if that was not trimmed away.
    """
    is_alone = 0 < head.seq == head.trimmed
    if result.left or result.seq == result.before or is_alone:
        connection.execute(
            "INSERT INTO nonces (model, nonce, number, result) VALUES (?, ?, ?, ?)",
            (head.model, nonce, head.nonces, pack_result(result)),
        )
    purge(connection, head, limits)


def purge(connection: sqlite3.Connection, head: Head, limits: Limits) -> None:
    """Each so many appends delete what is older than the last ones that are kept."""
    if head.nonces % PURGED_EVERY == 0:
        connection.execute(
            "DELETE FROM nonces WHERE model = ? AND number <= ?",
            (head.model, head.nonces - limits.nonces),
        )


def keep_trimmed(
    connection: sqlite3.Connection, head: Head, incarnation: str, through: int, limits: Limits
) -> None:
    """Keep what entries up to `through`, which are about to go, tell of the last nonces.

    And what the next one tells: the chain that it follows goes with them.
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
    told = []
    for before, seq, nonce, chain in rows:
        packed = pack_result(Result(before, seq, previous, chain, []))
        told.append((head.model, nonce, number, packed))
        number, previous = number + 1, chain
    # One that has a row keeps it: it may have left out parts, or what it follows went before.
    connection.executemany(
        "INSERT OR IGNORE INTO nonces (model, nonce, number, result) VALUES (?, ?, ?, ?)", told
    )


def answer(
    connection: sqlite3.Connection,
    head: Head,
    result: Result,
    known_seq: int,
    parts: Sequence[Part],
) -> Appended:
    """The answer to an append, with what its caller has not seen."""
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
        placed(parts, result.before, result.left),
        result.before + 1 if is_new else None,
        result.seq if is_new else None,
        result.previous,
        result.chain,
        tuple(entries),
        more,
    )
