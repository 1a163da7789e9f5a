"""Pending rows in Redis."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import msgspec

from dualstream.service.journal.protocol import (
    AwaitingLabels,
    JournalUnavailable,
    NewPendingRow,
    NotReplicated,
    OutcomeUnknown,
    Overdue,
    Part,
    PendingRow,
    TooManyPendingRows,
)
from dualstream.service.journal.redis import scripts
from dualstream.service.journal.redis.base import RedisPart
from dualstream.service.journal.redis.keys_and_values import (
    LABELLED,
    ROW_SEQ,
    WAIT,
    WAITING,
    keys_of,
)
from dualstream.service.journal.redis.scripts import Argument

_KEYS_AT_ONCE = 1000


class RedisPendingRows(RedisPart):
    """Pending rows."""

    async def remember(self, model: str, incarnation: str, rows: Sequence[NewPendingRow]) -> int:
        arguments = [(row.key, *_arguments_of(row)) for row in rows]
        rest: list[Argument] = [*self._most, self._key_ttl_ms, *chain.from_iterable(arguments)]
        answer = await self._pending(model, "keep", incarnation, self._wait_ms, *rest)
        if answer[0] == 8:
            raise self._too_many(model, answer[1])
        count: int = answer[1]
        if count:
            # After the rows, because `awaiting_labels` removes the id if it finds no rows.
            await self._others.call("SADD", WAITING, model)
        return count

    async def remembered(
        self, model: str, incarnation: str, keys: Sequence[bytes]
    ) -> list[PendingRow | None]:
        rows: list[PendingRow | None] = []
        for at in range(0, len(keys), _KEYS_AT_ONCE):
            batch = keys[at : at + _KEYS_AT_ONCE]
            answer = await self._pending(model, "find", incarnation, *batch)
            for key, stored in zip(batch, answer[2:], strict=True):
                row = _row(key, stored, answer[1]) if stored else None
                rows.append(None if row is not None and row.seq and not row.body else row)
        return rows

    async def awaiting_labels(self) -> list[AwaitingLabels]:
        ids = await self._others.call("SMEMBERS", WAITING, is_read=True)
        models = []
        for model in sorted(id_.decode() for id_ in ids):
            answer = await self._pending(model, "sum", "")
            if not answer[4]:
                await self._others.call("SREM", WAITING, model)
                if await self._others.call("EXISTS", keys_of(model).waits):
                    await self._others.call("SADD", WAITING, model)
            else:
                models.append(AwaitingLabels(model, answer[1].decode(), answer[2], bool(answer[3])))
        return models

    async def overdue(self, model: str, incarnation: str, limit: int = 100) -> Overdue:
        answer = await self._pending(model, "due", incarnation, self._wait_ms, limit)
        pairs = zip(answer[3::2], answer[4::2], strict=True)
        return Overdue([_row(key, stored, answer[1]) for key, stored in pairs], answer[2])

    async def forget_labelled(self, model: str, incarnation: str, key: bytes) -> None:
        await self._pending(model, "forget", incarnation, key)

    def _pending_arguments(self, parts: Sequence[Part]) -> list[Argument]:
        """The arguments of an append that stores or keeps rows, as `append.lua` reads them."""
        arguments: list[Argument] = [self._wait_ms, *self._most]
        for part in parts:
            if part.pending is not None:
                arguments += _arguments_of(part.pending)
            if part.revisable is not None:
                label = part.revisable
                arguments += (label.label, label.earlier, label.replaces, label.seq)
        return arguments

    async def _list_as_waiting(self, model: str) -> None:
        """List a model among those with pending rows, after an append that stored some.

        Raises OutcomeUnknown if that fails: the append must be repeated.
        """
        try:
            await self._others.call("SADD", WAITING, model)
        except NotReplicated:
            pass  # the answer to the append reports its own shortfall
        except JournalUnavailable as error:
            raise OutcomeUnknown(str(error)) from error

    def _too_many(self, model: str, waiting: int) -> TooManyPendingRows:
        return TooManyPendingRows(model, waiting, *self._most)

    @property
    def _most(self) -> tuple[int, int]:
        """Maximum number and bytes of pending rows."""
        return self._limits.max_remembered, self._limits.remembered_bytes

    @property
    def _wait_ms(self) -> int:
        return round(1000 * self._limits.remember_s)

    async def _pending(self, model: str, *arguments: Argument) -> Any:
        own = keys_of(model)
        keys = (own.head, own.waits, own.waitq, own.keys)
        is_read = arguments[0] in ("find", "sum")
        return await self._run(model, scripts.PENDING_ROWS, keys, arguments, is_read)


def _arguments_of(row: NewPendingRow) -> tuple[Argument, ...]:
    return round(1000 * row.wait_s), row.default, row.body


def row_as_it_is(key: bytes, stored: bytes, age_s: float = 0.0) -> PendingRow:
    """Parse a stored row."""
    time_ms, due_ms, size = WAIT.unpack_from(stored)
    if size >= LABELLED:
        (seq,), start = ROW_SEQ.unpack_from(stored, WAIT.size), WAIT.size + ROW_SEQ.size
        end = start + size - LABELLED
        return PendingRow(key, stored[end:], b"", time_ms, due_ms, age_s, stored[start:end], seq)
    default, body = stored[WAIT.size : WAIT.size + size], stored[WAIT.size + size :]
    return PendingRow(key, body, default, time_ms, due_ms, age_s)


def packed_row(row: PendingRow) -> bytes:
    """A row as it is stored."""
    if row.seq:
        header = WAIT.pack(row.time_ms, row.due_ms, LABELLED + len(row.label))
        return header + ROW_SEQ.pack(row.seq) + row.label + row.body
    return WAIT.pack(row.time_ms, row.due_ms, len(row.default)) + row.default + row.body


def _row(key: bytes, stored: bytes, now_ms: int) -> PendingRow:
    row = row_as_it_is(key, stored)
    has_expired = not row.default and row.due_ms <= now_ms
    body = b"" if has_expired else row.body
    age_s = (now_ms - row.time_ms) / 1000
    return msgspec.structs.replace(row, body=body, age_s=age_s)
