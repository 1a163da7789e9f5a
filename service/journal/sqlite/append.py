"""Append to a model's log in SQLite, and the results of appends by nonce.

A repeated append gets the result of the first one. An entry contains its nonce, and its columns
give the result. So the table `nonces` only has rows for appends that skipped a part, made no entry,
or came when all entries were trimmed, and for the last trimmed entries. Searching the entries takes
time in the number of nonces kept, so appends first check whether the nonce can have been used
(`Nonces.is_first`).
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from sqlite3 import Connection
from typing import NamedTuple

import msgspec

from dualstream.service.journal.chain import OURS, first_chain, next_chain
from dualstream.service.journal.deduplicate import (
    Deduplication,
    SkippedPart,
    check_parts,
    part_positions,
)
from dualstream.service.journal.protocol import (
    ENTRY_BYTES,
    Appended,
    AppendRequest,
    CursorMove,
    CursorMoved,
    Entry,
    KeyEntry,
    Limits,
    LogPosition,
    MissingPosition,
    ModelChanged,
    NonceForgotten,
    Part,
    UnknownCopy,
)
from dualstream.service.journal.sqlite.audit import keep_change
from dualstream.service.journal.sqlite.base import SqlitePart, reads
from dualstream.service.journal.sqlite.connection_thread import AnyTask, GroupTask
from dualstream.service.journal.sqlite.keys import find_keys, keep_keys
from dualstream.service.journal.sqlite.log import (
    Head,
    HeadCache,
    find_entries,
    find_head,
    leads_on_from,
    now_ms,
)
from dualstream.service.journal.sqlite.pending_rows import (
    delete_rows,
    has_row,
    relabel_rows,
    row_label,
    store_rows,
)
from dualstream.service.journal.sqlite.snapshots import has_snapshot
from dualstream.service.journal.sqlite.state_copies import has_copy, use_copy
from dualstream.service.journal.sqlite.steady_clock import SteadyClock

PURGED_EVERY = 100
RESTORED = 1 << 40
"""Number of nonces with which a restored model begins; none of them is stored."""

_ENTRY = (
    "INSERT INTO entries (model, seq, first_seq, nonce, chain, time_ms, body)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_HEAD = (
    "UPDATE heads SET seq = ?, chain = ?, first_key = ?, next_key = ?, nonces = ? WHERE model = ?"
)
_NONE = "", Head(0, 0, "", 0, 0, 0, 0)
_Row = tuple[object, ...]
"""Values of an entry."""


class SqliteAppends(SqlitePart):
    """Appends, idempotency keys and cursors."""

    def append(self, request: AppendRequest) -> "asyncio.Future[Appended]":
        self._checks.check()
        task = _task_of(request, self._limits, self._heads, self._clock)
        size = sum([len(part.body) for part in request.parts])
        appended = self._writer.write(task, size)
        self._checkpointer.wrote(size)
        return appended

    @reads
    def known(
        self, db: Connection, model: str, incarnation: str, keys: Sequence[bytes]
    ) -> list[KeyEntry | None]:
        head = find_head(db, model, incarnation)
        entries = find_keys(db, head, keys, self._limits, self._clock.now_ms())
        return [entries.get(key) for key in keys]

    @reads
    def cursor(self, db: Connection, model: str, incarnation: str, name: str) -> str | None:
        return _find_cursor(db, find_head(db, model, incarnation).model, name)

    @reads
    def cursors(self, db: Connection, model: str, incarnation: str, prefix: str) -> dict[str, str]:
        rows = db.execute(
            "SELECT name, value FROM cursors WHERE model = ? AND substr(name, 1, ?) = ?"
            " ORDER BY name",
            (find_head(db, model, incarnation).model, len(prefix), prefix),
        )
        return dict(rows.fetchall())


def _task_of(
    request: AppendRequest, limits: Limits, heads: HeadCache, clock: SteadyClock
) -> AnyTask[Appended]:
    model, nonce, parts = request.model, request.nonce, request.parts
    cursor, copy, change, held = request.cursor, request.copy, request.change, request.held
    may_skip = check_parts(nonce, parts)
    is_first = OURS.is_first(nonce)
    is_plain = cursor is None and copy is None and change is None and held is None
    if is_first and is_plain and parts and not may_skip:
        return PlainAppend(request, limits, heads, clock)

    def task(db: Connection) -> Appended:
        incarnation, repeats = request.incarnation, request.repeats
        head = find_head(db, model, incarnation)
        result = None
        if not is_first:
            result = _find_result(db, head, incarnation, nonce, limits)
            if result is None and repeats is not None:
                result = _find_in_log(db, model, head, nonce, parts, repeats, limits)
        if result is None:
            if cursor is not None:
                _move_cursor(db, head.model, cursor)
            result = _append_new(db, head, request, may_skip, limits, clock)
            if held is not None and result.seq > result.before:
                if not leads_on_from(db, head, held):  # the head before the append
                    raise MissingPosition(model, held.seq, held.chain)
            if copy is not None and result.seq > result.before:
                if not has_copy(db, head.model, copy):
                    raise UnknownCopy(model, copy)
                use_copy(db, head.model, result.seq, copy)
            if change is not None and (result.seq > result.before or not parts):
                keep_change(db, model, incarnation, result.seq, change, limits)
        return _answer(db, head, result, request.known_seq, parts)

    return task


class PlainAppend(GroupTask[Appended]):
    """The task of `Journal.append` for parts without keys, at least one, and a new nonce.

    Appends of this class that wait at the same time are executed as one group: one look-up of all
    heads, one INSERT of all entries and one UPDATE of all heads.
    """

    __slots__ = "clock", "heads", "limits", "request"

    def __init__(
        self, request: AppendRequest, limits: Limits, heads: HeadCache, clock: SteadyClock
    ) -> None:
        self.request, self.limits, self.heads, self.clock = request, limits, heads, clock

    @staticmethod
    def run_group(db: Connection, tasks: "Sequence[PlainAppend]") -> list[Appended | BaseException]:
        cache = tasks[0].heads
        heads = cache.find(db, [task.request.model for task in tasks])
        time_ms = now_ms()
        entries: list[_Row] = []
        results: list[tuple[Head, Result] | None] = []
        moved: dict[str, tuple[str, Head]] = {}
        for task in tasks:
            request = task.request
            incarnation, head = heads.get(request.model, _NONE)
            if incarnation != request.incarnation:
                results.append(None)
                continue
            _, head = moved.get(request.model, (incarnation, head))
            seq = head.seq + sum([part.count for part in request.parts])
            chain = next_chain(head.chain, request.nonce)
            body = b"".join([part.body for part in request.parts])
            entries.append((head.model, seq, head.seq + 1, request.nonce, chain, time_ms, body))
            result = Result(head.seq, seq, head.chain, chain, [])
            results.append((head, result))
            _keep_result(db, head, request.nonce, result, task.limits)
            following = _following_head(db, head, result, {}, task.limits, task.clock)
            moved[request.model] = incarnation, following
        _write(db, entries, [head for _, head in moved.values()])
        cache.keep(db, moved)
        return [
            ModelChanged(task.request.model)
            if result is None
            else _answer(db, *result, task.request.known_seq, task.request.parts)
            for task, result in zip(tasks, results, strict=True)
        ]


class Result(NamedTuple):
    """Stored result of an append."""

    before: int
    seq: int
    previous: str
    chain: str
    skipped: list[SkippedPart]


pack_result = msgspec.msgpack.encode
unpack_result = msgspec.msgpack.Decoder(Result).decode


def _append_new(
    db: Connection,
    head: Head,
    request: AppendRequest,
    may_skip: bool,
    limits: Limits,
    clock: SteadyClock,
) -> Result:
    nonce, parts = request.nonce, request.parts
    time_ms = clock.now_ms()
    new = Deduplication(
        head.seq,
        lambda key: has_row(db, head.model, key),
        lambda key: row_label(db, head.model, key, time_ms),
    )
    if may_skip:
        keys = [part.key for part in parts if part.key is not None]
        new.process(parts, find_keys(db, head, keys, limits, time_ms).get)
        if new.pending:
            store_rows(db, request.model, head, new.pending.values(), limits, time_ms)
        if new.relabelled:
            relabel_rows(db, head.model, new.relabelled, limits, time_ms)
        delete_rows(db, head.model, new.labels, time_ms)
    else:
        new.kept = [part.body for part in parts]
        new.seq += sum(part.count for part in parts)
    chain, entries = head.chain, list[_Row]()
    if new.seq > head.seq:
        chain, body = next_chain(head.chain, nonce), b"".join(new.kept)
        entries.append((head.model, new.seq, head.seq + 1, nonce, chain, now_ms(), body))
    result = Result(head.seq, new.seq, head.chain, chain, new.skipped)
    _keep_result(db, head, nonce, result, limits)
    following = _following_head(db, head, result, new.keys, limits, clock)
    _write(db, entries, [following])
    return result


def _following_head(
    db: Connection,
    head: Head,
    result: Result,
    keys: Mapping[bytes, KeyEntry],
    limits: Limits,
    clock: SteadyClock,
) -> Head:
    """The head after an append; inserts its keys and deletes some expired ones."""
    first_key, next_key = head.first_key, head.next_key
    if keys or first_key < next_key:
        first_key, next_key = keep_keys(db, head, keys, limits, clock.now_ms())
    numbers = (head.trimmed, first_key, next_key, head.nonces + 1)
    return Head(head.model, result.seq, result.chain, *numbers)


def _write(db: Connection, entries: Sequence[_Row], heads: Iterable[Head]) -> None:
    db.executemany(_ENTRY, entries)
    db.executemany(
        _HEAD, [(h.seq, h.chain, h.first_key, h.next_key, h.nonces, h.model) for h in heads]
    )


def _move_cursor(db: Connection, model: int, move: CursorMove) -> None:
    value = _find_cursor(db, model, move.name)
    if value != move.expected:
        raise CursorMoved(move.name, value)
    if move.new is None:
        db.execute("DELETE FROM cursors WHERE model = ? AND name = ?", (model, move.name))
        return
    db.execute(
        "INSERT OR REPLACE INTO cursors (model, name, value) VALUES (?, ?, ?)",
        (model, move.name, move.new),
    )


def _find_cursor(db: Connection, model: int, name: str) -> str | None:
    row = db.execute(
        "SELECT value FROM cursors WHERE model = ? AND name = ?", (model, name)
    ).fetchone()
    return None if row is None else row[0]


def _find_result(
    db: Connection, head: Head, incarnation: str, nonce: bytes, limits: Limits
) -> Result | None:
    """The result of this nonce, or None."""
    row = db.execute(
        "SELECT result FROM nonces WHERE model = ? AND nonce = ?", (head.model, nonce)
    ).fetchone()
    if row is not None:
        return unpack_result(row[0])
    row = db.execute(
        "SELECT before, seq, chain FROM (SELECT first_seq - 1 AS before, seq, nonce, chain"
        " FROM entries WHERE model = ? ORDER BY seq DESC LIMIT ?) WHERE nonce = ?",
        (head.model, min(limits.nonces, head.nonces % RESTORED), nonce),
    ).fetchone()
    if row is None:
        return None
    before, seq, chain = row
    return Result(before, seq, _chain_at(db, head, incarnation, before), chain, [])


def _find_in_log(
    db: Connection,
    model: str,
    head: Head,
    nonce: bytes,
    parts: Sequence[Part],
    sent_after: LogPosition,
    limits: Limits,
) -> Result | None:
    """Result of a nonce that is no longer kept, searched in the log after `sent_after`.

    None if the nonce was not used. Raises NonceForgotten if the log cannot show it: it no longer
    contains the position, or parts were skipped and the log does not say which.
    """
    if head.nonces <= limits.nonces:  # all nonces are still kept
        return None
    if not leads_on_from(db, head, sent_after):
        raise NonceForgotten(model)
    row = db.execute(
        "SELECT first_seq - 1, seq, chain FROM entries WHERE model = ? AND seq > ? AND nonce = ?",
        (head.model, sent_after.seq, nonce),
    ).fetchone()
    if row is None:
        return None
    before, seq, chain = row
    if seq - before != sum(part.count for part in parts):
        raise NonceForgotten(model)
    previous = sent_after.chain if before == sent_after.seq else _chain_at(db, head, "", before)
    return Result(before, seq, previous, chain, [])


def _chain_at(db: Connection, head: Head, incarnation: str, seq: int) -> str:
    """The chain at the end of an entry; empty if it is no longer known."""
    if not seq:
        return first_chain(incarnation)
    row = db.execute(
        "SELECT chain FROM entries WHERE model = ? AND seq = ?", (head.model, seq)
    ).fetchone()
    return "" if row is None else row[0]


def _keep_result(db: Connection, head: Head, nonce: bytes, result: Result, limits: Limits) -> None:
    """Store the result unless its entry contains it; delete old ones now and then.

    An entry needs the one before it for `previous`, so the result is stored if that was trimmed.
    """
    is_alone = 0 < head.seq == head.trimmed
    if result.skipped or result.seq == result.before or is_alone:
        db.execute(
            "INSERT INTO nonces (model, nonce, number, result) VALUES (?, ?, ?, ?)",
            (head.model, nonce, head.nonces, pack_result(result)),
        )
    if head.nonces % PURGED_EVERY == 0:
        db.execute(
            "DELETE FROM nonces WHERE model = ? AND number <= ?",
            (head.model, head.nonces - limits.nonces),
        )


def keep_trimmed(
    db: Connection, head: Head, incarnation: str, through: int, limits: Limits
) -> None:
    """Store the results of the last nonces whose entries, up to `through`, are about to be deleted.

    Also that of the next entry, whose previous chain is deleted with them.
    """
    rows = db.execute(
        "SELECT first_seq - 1, seq, nonce, chain FROM entries WHERE model = :model AND seq >="
        " coalesce((SELECT seq FROM entries WHERE model = :model"
        " ORDER BY seq DESC LIMIT 1 OFFSET :nonces - 1), 0)"
        " AND seq <= coalesce((SELECT min(seq) FROM entries"
        " WHERE model = :model AND seq > :through), :through) ORDER BY seq",
        {"model": head.model, "nonces": limits.nonces, "through": through},
    ).fetchall()
    if not rows:
        return
    [following] = db.execute(
        "SELECT count(*) FROM entries WHERE model = ? AND seq > ?", (head.model, rows[-1][1])
    ).fetchone()
    previous = _chain_at(db, head, incarnation, rows[0][0])
    number = head.nonces - following - len(rows)
    rows_to_keep = []
    for before, seq, nonce, chain in rows:
        packed = pack_result(Result(before, seq, previous, chain, []))
        rows_to_keep.append((head.model, nonce, number, packed))
        number, previous = number + 1, chain
    # OR IGNORE: an existing row has skipped parts, or a previous chain that was trimmed before.
    db.executemany(
        "INSERT OR IGNORE INTO nonces (model, nonce, number, result) VALUES (?, ?, ?, ?)",
        rows_to_keep,
    )


def _answer(
    db: Connection, head: Head, result: Result, known_seq: int, parts: Sequence[Part]
) -> Appended:
    """Result of an append for its caller, with the entries that the caller has not seen."""
    entries: list[Entry] = []
    more = False
    if known_seq < head.trimmed:
        more = True
    elif not known_seq and result.before and has_snapshot(db, head.model):
        more = True
    elif known_seq < result.before:
        entries = find_entries(db, head.model, known_seq, result.before, ENTRY_BYTES)
        more = not entries or entries[-1].seq < result.before
    is_new = result.seq > result.before
    return Appended(
        part_positions(parts, result.before, result.skipped),
        result.before + 1 if is_new else None,
        result.seq if is_new else None,
        result.previous,
        result.chain,
        tuple(entries),
        more,
    )
