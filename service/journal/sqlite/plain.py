"""Appends of new rows and of nothing else, as many in one go as wait.

What an append without keys under a first nonce writes follows from its model's head alone, and
nothing but a model that is not there refuses it. So many of them look up their heads in one
statement, those that are not known from before, and write in two. Each statement hands Python to
other threads and takes it back, which is most of what it costs where all have one core.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence

from service.journal.chain import next_chain
from service.journal.protocol import Appended, AppendRequest, Limits, ModelChanged
from service.journal.sqlite.answers import Result, answer, keep
from service.journal.sqlite.heads import Head, KnownHeads
from service.journal.sqlite.keys import keep_keys
from service.journal.sqlite.transactions import Joined

_ENTRY = (
    "INSERT INTO entries (model, seq, first_seq, nonce, chain, time_ms, body)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
_HEAD = (
    "UPDATE heads SET seq = ?, chain = ?, first_key = ?, next_key = ?, nonces = ? WHERE model = ?"
)
_NONE = "", Head(0, 0, "", 0, 0, 0, 0)


class PlainAppend(Joined[Appended]):
    """The task behind `Journal.append` of parts without keys, at least one, under a first nonce."""

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

    def undone(self) -> None:
        self.heads.forget()

    @staticmethod
    def together(
        connection: sqlite3.Connection, tasks: "Sequence[PlainAppend]"
    ) -> list[Appended | BaseException]:
        known = tasks[0].heads
        found = known.find(connection, [task.request.model for task in tasks])
        time_ms = tasks[0].now_ms()
        entries: list[tuple[object, ...]] = []
        results: list[tuple[Head, Result] | None] = []
        moved: dict[str, tuple[str, Head]] = {}
        for task in tasks:
            asked = task.request
            incarnation, head = found.get(asked.model, _NONE)
            if incarnation != asked.incarnation:
                results.append(None)
                continue
            _, head = moved.get(asked.model, (incarnation, head))
            seq = head.seq + sum([part.count for part in asked.parts])
            chain = next_chain(head.chain, asked.nonce)
            body = b"".join([part.body for part in asked.parts])
            entries.append((head.model, seq, head.seq + 1, asked.nonce, chain, time_ms, body))
            result = Result(head.seq, seq, head.chain, chain, [])
            results.append((head, result))
            keep(connection, head, asked.nonce, result, task.limits)
            following = _moved(connection, head, seq, chain, task.limits, time_ms)
            moved[asked.model] = incarnation, following
        _write(connection, entries, [head for _, head in moved.values()])
        known.keep(connection, moved)
        return [
            ModelChanged(task.request.model)
            if result is None
            else answer(connection, *result, task.request.known_seq, task.request.parts)
            for task, result in zip(tasks, results, strict=True)
        ]


def _moved(
    connection: sqlite3.Connection, head: Head, seq: int, chain: str, limits: Limits, time_ms: int
) -> Head:
    """The head after an entry, having let go of what is too old by now."""
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
