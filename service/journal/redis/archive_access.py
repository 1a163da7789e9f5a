"""Reading and staging of whole models in Redis.

A staged model has keys but no spec, so no reader finds it, and an incarnation that no model has, so
no append reaches it.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import chain
from typing import Any

from dualstream.service.journal.archive_access import (
    KeptKey,
    Position,
    Staged,
    chain_at_start,
    staged_incarnation,
)
from dualstream.service.journal.protocol import (
    Conflict,
    Entry,
    ModelRecord,
    PendingRow,
    UnknownModel,
)
from dualstream.service.journal.redis import scripts
from dualstream.service.journal.redis.base import RedisPart, refuse
from dualstream.service.journal.redis.keys_and_values import (
    ENTRY,
    KNOWN,
    MODELS,
    TIME,
    WAITING,
    keys_of,
)
from dualstream.service.journal.redis.pending_rows import packed_row, row_as_it_is
from dualstream.service.journal.redis.scripts import Argument
from dualstream.service.journal.state_copies import CopyUse

KEYS_AT_ONCE = 5000
ROWS_AT_ONCE = 1000


class RedisArchiveAccess(RedisPart):
    """Reading and staging of whole models."""

    async def position(self, model: str) -> Position:
        answer = await self._access(model, "position", is_read=True)
        incarnation, created_ms, spec, given, seq, chain_, trimmed = answer[1:8]
        fields = (incarnation.decode(), spec, given, int(created_ms))
        record = ModelRecord(model, *fields, int(seq), chain_.decode())
        texts = [item.decode() for item in answer[8:]]
        cursors = dict(sorted(zip(texts[::2], texts[1::2], strict=True)))
        return Position(record, int(trimmed), cursors)

    async def kept_keys(self, model: str, incarnation: str) -> AsyncIterator[Sequence[KeptKey]]:
        last: bytes | None = b""
        while last is not None:
            page = ("kept", incarnation, last, KEYS_AT_ONCE)
            answer = await self._access(model, *page, is_read=True)
            last = answer[-2] if len(answer) > 1 else None
            keys = []
            for item, value in zip(answer[1::2], answer[2::2], strict=True):
                # A key that was stored again after its expiry has a second, later item.
                if value[KNOWN.size :].startswith(item[: TIME.size]):
                    seq, records = KNOWN.unpack_from(value)
                    (time_ms,) = TIME.unpack_from(item)
                    mark = value[KNOWN.size + TIME.size :] or None
                    keys.append(KeptKey(item[TIME.size :], seq, records, mark, time_ms))
            yield keys

    async def kept_rows(self, model: str, incarnation: str) -> AsyncIterator[Sequence[PendingRow]]:
        # A scan returns everything that exists throughout it; some of it more than once.
        seen: set[bytes] = set()
        at: bytes | None = b"0"
        while at is not None:
            command = ("HSCAN", keys_of(model).waits, at, "COUNT", ROWS_AT_ONCE)
            following, texts = await self._read_of(model, incarnation, *command)
            rows = dict(zip(texts[::2], texts[1::2], strict=True))
            yield [row_as_it_is(key, row) for key, row in rows.items() if key not in seen]
            seen |= rows.keys()
            at = None if following == b"0" else following

    async def stage(self, record: ModelRecord, trimmed: int, cursors: Mapping[str, str]) -> Staged:
        staged = Staged(record.id, staged_incarnation())
        begins = (staged.incarnation, trimmed, chain_at_start(record, trimmed))
        await self._models(record.id, "stage", *begins, *chain.from_iterable(cursors.items()))
        return staged

    async def stage_entries(
        self, staged: Staged, entries: Sequence[Entry], uses: Sequence[CopyUse]
    ) -> None:
        named = {use.seq: use.digest for use in uses}
        arguments: list[tuple[Argument, ...]] = [
            (_packed_entry(entry), named.get(entry.seq, "")) for entry in entries
        ]
        await self._put(staged, "entries", *chain.from_iterable(arguments))

    async def stage_keys(self, staged: Staged, keys: Sequence[KeptKey]) -> None:
        arguments = (
            (
                kept.key,
                KNOWN.pack(kept.seq, kept.records)
                + TIME.pack(kept.time_ms)
                + (kept.fingerprint or b""),
                TIME.pack(kept.time_ms) + kept.key,
            )
            for kept in keys
        )
        await self._put(staged, "keys", self._key_ttl_ms, *chain.from_iterable(arguments))

    async def stage_rows(self, staged: Staged, rows: Sequence[PendingRow]) -> None:
        arguments: list[tuple[Argument, ...]] = [
            (row.key, packed_row(row), row.due_ms) for row in rows
        ]
        await self._put(staged, "rows", *chain.from_iterable(arguments))

    async def show(self, staged: Staged, record: ModelRecord) -> None:
        shown = (record.incarnation, record.seq, record.chain, record.created_ms)
        # The store's lists come first: readers skip an id without a model. They are written again
        # afterwards, because a deletion of this id can remove it in between.
        await self._list(record.id)
        await self._models(record.id, "show", staged.incarnation, *shown, record.spec, record.given)
        await self._list(record.id)

    async def discard(self, staged: Staged) -> None:
        await self._models(staged.name, "discard", staged.incarnation)

    async def settle(self) -> None:
        await self._others.settle()

    async def _list(self, model: str) -> None:
        await self._others.call("ZADD", MODELS, 0, model)
        if await self._others.call("EXISTS", keys_of(model).waits, is_read=True):
            await self._others.call("SADD", WAITING, model)

    async def _models(self, model: str, *arguments: bytes | str | int) -> Any:
        raise NotImplementedError

    async def _read_of(self, model: str, incarnation: str, *command: Argument) -> Any:
        """Answer to a command, if the model has this incarnation. Raises ModelChanged."""
        answer = await self._others.call(*command, is_read=True)
        head = keys_of(model).head
        stored = await self._others.call("HGET", head, "incarnation", is_read=True)
        refuse(model, [0 if stored == incarnation.encode() else 1])
        return answer

    async def _put(self, staged: Staged, task: str, *rest: Argument) -> None:
        await self._access(staged.name, task, staged.incarnation, *rest)

    async def _access(self, model: str, *arguments: Argument, is_read: bool = False) -> Any:
        keys = keys_of(model).all
        answer = await self._run(model, scripts.ARCHIVE_ACCESS, keys, arguments, is_read)
        if answer[0] == 4:
            raise UnknownModel(model)
        if answer[0] == 5:
            raise Conflict(f"an entry of {model!r} does not follow the end of its log")
        return answer


def _packed_entry(entry: Entry) -> bytes:
    records = entry.seq + 1 - entry.first_seq
    size = len(entry.body)
    head = (entry.first_seq, records, size, entry.time_ms, entry.nonce, entry.chain.encode())
    return ENTRY.pack(*head) + entry.body
