"""Append to a model's log in SQLite."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence

from dualstream.service.journal.chain import next_chain
from dualstream.service.journal.deduplicate import Deduplication, check_parts
from dualstream.service.journal.nonces import OURS
from dualstream.service.journal.protocol import (
    Appended,
    AppendRequest,
    CursorMove,
    CursorMoved,
    Limits,
    ModelChanged,
    NotHeld,
    Part,
    UnknownCopy,
)
from dualstream.service.journal.sqlite import (
    audit,
    log,
    nonces,
    pending_rows,
    state_copies,
)
from dualstream.service.journal.sqlite.heads import Head, KnownHeads, find_head
from dualstream.service.journal.sqlite.keys import find_keys, keep_keys
from dualstream.service.journal.sqlite.nonces import Result, answer, keep
from dualstream.service.journal.sqlite.transactions import GroupTask, Task


def append(
    request: AppendRequest, limits: Limits, now_ms: Callable[[], int], heads: KnownHeads
) -> Task[Appended]:
    """The task of `Journal.append`, to be run in a write transaction."""
    model, nonce, parts = request.model, request.nonce, request.parts
    cursor, copy, change, held = request.cursor, request.copy, request.change, request.held
    may_skip = check_parts(nonce, parts)
    is_first = OURS.is_first(nonce)
    is_plain = cursor is None and copy is None and change is None and held is None
    if is_first and is_plain and parts and not may_skip:
        return PlainAppend(request, limits, now_ms, heads)

    def task(connection: sqlite3.Connection) -> Appended:
        incarnation, repeats = request.incarnation, request.repeats
        head = find_head(connection, model, incarnation)
        result = None
        if not is_first:
            result = nonces.find(connection, head, incarnation, nonce, limits)
            if result is None and repeats is not None:
                result = nonces.find_in_log(connection, model, head, nonce, parts, repeats, limits)
        if result is None:
            if cursor is not None:
                _move_cursor(connection, head.model, cursor)
            result = _append_new(connection, head, nonce, parts, may_skip, limits, now_ms())
            if held is not None and result.seq > result.before:
                if not log.leads_on_from(connection, head, held):  # the head before the append
                    raise NotHeld(model, held.seq, held.chain)
            if copy is not None and result.seq > result.before:
                if not state_copies.is_there(connection, head.model, copy):
                    raise UnknownCopy(model, copy)
                state_copies.use(connection, head.model, result.seq, copy)
            if change is not None and (result.seq > result.before or not parts):
                place = (model, incarnation, result.seq)
                audit.keep(connection, *place, change, limits, now_ms())
        return nonces.answer(connection, head, result, request.known_seq, parts)

    return task


def _append_new(
    connection: sqlite3.Connection,
    head: Head,
    nonce: bytes,
    parts: Sequence[Part],
    may_skip: bool,
    limits: Limits,
    time_ms: int,
) -> Result:
    new = Deduplication(head.seq)
    if may_skip:
        keys = [part.key for part in parts if part.key is not None]
        new.process(parts, find_keys(connection, head, keys, limits, time_ms).get)
        pending_rows.delete_rows(connection, head.model, new.labels)
    else:
        new.kept = [part.body for part in parts]
        new.seq += sum(part.count for part in parts)
    chain = head.chain
    if new.seq > head.seq:
        chain = next_chain(head.chain, nonce)
        connection.execute(
            "INSERT INTO entries (model, seq, first_seq, nonce, chain, time_ms, body)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                head.model,
                new.seq,
                head.seq + 1,
                nonce,
                chain,
                time_ms,
                b"".join(new.kept),
            ),
        )
    result = Result(head.seq, new.seq, head.chain, chain, new.skipped)
    nonces.keep(connection, head, nonce, result, limits)
    first_key, next_key = head.first_key, head.next_key
    if new.keys or first_key < next_key:
        first_key, next_key = keep_keys(connection, head, new.keys, limits, time_ms)
    connection.execute(
        "UPDATE heads SET seq = ?, chain = ?, first_key = ?, next_key = ?, nonces = ?"
        " WHERE model = ?",
        (new.seq, chain, first_key, next_key, head.nonces + 1, head.model),
    )
    return result


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


_ENTRY = (
    "INSERT INTO entries (model, seq, first_seq, nonce, chain, time_ms, body)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_HEAD = (
    "UPDATE heads SET seq = ?, chain = ?, first_key = ?, next_key = ?, nonces = ? WHERE model = ?"
)
_NONE = "", Head(0, 0, "", 0, 0, 0, 0)


class PlainAppend(GroupTask[Appended]):
    """The task of `Journal.append` for parts without keys, at least one, and a new nonce.

    Appends of this class that wait at the same time are executed as one group: one look-up of all
    heads, one INSERT of all entries and one UPDATE of all heads.
    """

    __slots__ = "heads", "limits", "now_ms", "request"

    def __init__(
        self,
        request: AppendRequest,
        limits: Limits,
        now_ms: Callable[[], int],
        heads: KnownHeads,
    ) -> None:
        self.request = request
        self.limits, self.now_ms, self.heads = limits, now_ms, heads

    def on_rollback(self) -> None:
        self.heads.forget()

    @staticmethod
    def run_group(
        connection: sqlite3.Connection, tasks: "Sequence[PlainAppend]"
    ) -> list[Appended | BaseException]:
        known = tasks[0].heads
        found = known.find(connection, [task.request.model for task in tasks])
        time_ms = tasks[0].now_ms()
        entries: list[tuple[object, ...]] = []
        results: list[tuple[Head, Result] | None] = []
        moved: dict[str, tuple[str, Head]] = {}
        for task in tasks:
            request = task.request
            incarnation, head = found.get(request.model, _NONE)
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
            keep(connection, head, request.nonce, result, task.limits)
            following = _following_head(connection, head, seq, chain, task.limits, time_ms)
            moved[request.model] = incarnation, following
        _write(connection, entries, [head for _, head in moved.values()])
        known.keep(connection, moved)
        return [
            ModelChanged(task.request.model)
            if result is None
            else answer(connection, *result, task.request.known_seq, task.request.parts)
            for task, result in zip(tasks, results, strict=True)
        ]


def _following_head(
    connection: sqlite3.Connection, head: Head, seq: int, chain: str, limits: Limits, time_ms: int
) -> Head:
    """The head after an entry; deletes some expired keys."""
    first_key, next_key = head.first_key, head.next_key
    if first_key < next_key:
        first_key, next_key = keep_keys(connection, head, {}, limits, time_ms)
    return Head(head.model, seq, chain, head.trimmed, first_key, next_key, head.nonces + 1)


def _write(
    connection: sqlite3.Connection, entries: Sequence[tuple[object, ...]], heads: Iterable[Head]
) -> None:
    connection.executemany(_ENTRY, entries)
    connection.executemany(
        _HEAD, [(h.seq, h.chain, h.first_key, h.next_key, h.nonces, h.model) for h in heads]
    )
