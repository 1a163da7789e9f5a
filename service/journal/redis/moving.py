"""Models as they are, out of Redis and into it.

A staged model has its keys and no spec, so that nobody finds it, and an incarnation that none can
have, so that nobody writes to it who knew the model before.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from service.journal.copies import CopyUse
from service.journal.moving import MOVED, KeptAppend, KeptKey, Staged, chain_at_start
from service.journal.protocol import Conflict, Entry, ModelRecord, Place, Remembered
from service.journal.redis import scripts
from service.journal.redis.cluster import Lines
from service.journal.redis.copies import refuse
from service.journal.redis.keys import keys_of
from service.journal.redis.line import Line
from service.journal.redis.records import (
    ENTRY,
    IDENTITY,
    KNOWN,
    MODELS,
    TIME,
    WAIT,
    WAITING,
    Result,
    packed,
    unpack_result,
)
from service.journal.redis.remembering import row_as_it_is
from service.journal.redis.scripts import Argument

KEYS_AT_ONCE = 1000
ROWS_AT_ONCE = 200


def staged_incarnation(incarnation: str) -> str:
    """The incarnation of a model while it is staged."""
    return f"staged:{incarnation}"


class RedisMoving:
    """`Movable` in one Redis server."""

    _others: Line | Lines
    _key_ttl_ms: int

    async def identity(self) -> str | None:
        found: bytes | None = await self._others.call("GET", IDENTITY, is_read=True)
        return None if found is None else found.decode()

    async def kept_keys(
        self, model: str, incarnation: str, start: int
    ) -> tuple[Sequence[KeptKey], int | None]:
        own = keys_of(model)
        queue = own.prefix + b"keyq"
        stop = start + KEYS_AT_ONCE
        queued: list[bytes] = await self._read(model, incarnation, "LRANGE", queue, start, stop - 1)
        if not queued:
            return [], None
        names = [item[TIME.size :] for item in queued]
        stored = await self._others.call("HMGET", own.keys, *names, is_read=True)
        keys = []
        for item, name, value in zip(queued, names, stored, strict=True):
            # A key that came again after it had expired stands further back as well.
            if value is not None and value[KNOWN.size :].startswith(item[: TIME.size]):
                seq, records = KNOWN.unpack_from(value)
                (time_ms,) = TIME.unpack_from(item)
                mark = value[KNOWN.size + TIME.size :] or None
                keys.append(KeptKey(name, seq, records, mark, time_ms))
        return keys, stop

    async def kept_appends(self, model: str, incarnation: str) -> Sequence[KeptAppend]:
        prefix = keys_of(model).prefix
        newest_first = await self._read(model, incarnation, "LRANGE", prefix + b"nonceq", 0, -1)
        if not newest_first:
            return []
        nonces = newest_first[::-1]
        stored = await self._others.call("HMGET", prefix + b"nonces", *nonces, is_read=True)
        # An append may let go of some in between.
        results = [
            (nonce, unpack_result(value))
            for nonce, value in zip(nonces, stored, strict=True)
            if value is not None
        ]
        return [KeptAppend(nonce, r.before, r.seq, r.previous, r.left) for nonce, r in results]

    async def cursors(self, model: str, incarnation: str) -> Mapping[str, str]:
        stored = await self._read(model, incarnation, "HGETALL", keys_of(model).cursors)
        texts = [item.decode() for item in stored]
        found = dict(sorted(zip(texts[::2], texts[1::2], strict=True)))
        found.pop(MOVED, None)
        return found

    async def kept_rows(
        self, model: str, incarnation: str, start: int
    ) -> tuple[Sequence[Remembered], int | None]:
        own, stop = keys_of(model), start + ROWS_AT_ONCE
        keys: list[bytes] = await self._read(
            model, incarnation, "ZRANGE", own.waitq, start, stop - 1
        )
        if not keys:
            return [], None
        stored = await self._others.call("HMGET", own.waits, *keys, is_read=True)
        found = zip(keys, stored, strict=True)  # a label may let go of some in between
        return [row_as_it_is(key, row) for key, row in found if row is not None], stop

    async def stage_rows(
        self, staged: str, incarnation: str, rows: Sequence[Remembered], are_first: bool
    ) -> None:
        told: list[tuple[Argument, ...]] = [
            (
                row.key,
                WAIT.pack(row.time_ms, row.due_ms, len(row.default)) + row.default + row.body,
                row.due_ms,
            )
            for row in rows
        ]
        rest = chain.from_iterable(told)
        await self._move(staged, "rows", incarnation, int(are_first), *rest)
        if rows:
            await self._others.call("SADD", WAITING, staged)

    async def stage(
        self,
        record: ModelRecord,
        trimmed: int,
        there: Place | None = None,
        is_anew: bool = False,
    ) -> Staged:
        incarnation = staged_incarnation(record.incarnation)
        place = ("", "") if there is None else (there.seq, there.chain)
        begins = (incarnation, trimmed, chain_at_start(record, trimmed), int(is_anew))
        answer = await self._models(record.id, "stage", record.incarnation, *place, *begins)
        await self._others.call("ZREM", MODELS, record.id)
        return Staged(record.id, incarnation, int(answer[1]), answer[2].decode())

    async def stage_entries(
        self, staged: str, incarnation: str, entries: Sequence[Entry], uses: Sequence[CopyUse]
    ) -> None:
        named = {use.seq: use.digest for use in uses}
        told: list[tuple[Argument, ...]] = [
            (_packed_entry(entry), named.get(entry.seq, "")) for entry in entries
        ]
        await self._move(staged, "entries", incarnation, *chain.from_iterable(told))

    async def stage_keys(
        self, staged: str, incarnation: str, start: int, keys: Sequence[KeptKey]
    ) -> None:
        told = (
            (
                kept.key,
                KNOWN.pack(kept.seq, kept.records)
                + TIME.pack(kept.time_ms)
                + (kept.fingerprint or b""),
                TIME.pack(kept.time_ms) + kept.key,
            )
            for kept in keys
        )
        rest = chain.from_iterable(told)
        await self._move(staged, "keys", incarnation, start, self._key_ttl_ms, *rest)

    async def stage_rest(
        self,
        staged: str,
        incarnation: str,
        appends: Sequence[KeptAppend],
        cursors: Mapping[str, str],
    ) -> None:
        told: list[tuple[Argument, ...]] = [
            (kept.nonce, packed(Result(kept.before, kept.seq, kept.previous, list(kept.left))))
            for kept in appends
        ]
        rest = chain(chain.from_iterable(told), chain.from_iterable(cursors.items()))
        await self._move(staged, "rest", incarnation, len(appends), *rest)

    async def unstage(self, record: ModelRecord) -> None:
        await self._models(
            record.id,
            "unstage",
            record.incarnation,
            record.seq,
            record.chain,
            staged_incarnation(record.incarnation),
            record.created_ms,
            record.spec,
            record.given,
        )
        await self._others.call("ZADD", MODELS, 0, record.id)
        # Lists beside the model, of which a failover of the run before may have lost the last.
        if await self._others.call("EXISTS", keys_of(record.id).waits, is_read=True):
            await self._others.call("SADD", WAITING, record.id)

    async def settle(self) -> None:
        await self._others.settle()

    async def _models(self, model: str, *arguments: bytes | str | int) -> Any:
        raise NotImplementedError

    async def _read(self, model: str, incarnation: str, *command: Argument) -> Any:
        """The answer to a command, of this incarnation. Raises ModelChanged."""
        answer = await self._others.call(*command, is_read=True)
        head = keys_of(model).head
        found = await self._others.call("HGET", head, "incarnation", is_read=True)
        refuse(model, [0 if found == incarnation.encode() else 1])
        return answer

    async def _move(self, model: str, *arguments: Argument) -> None:
        answer = await self._others.run(scripts.MOVING, keys_of(model).all, arguments)
        refuse(model, answer)
        if answer[0] == 5:
            raise Conflict(f"what is to come of {model!r} does not follow from what is there")


def _packed_entry(entry: Entry) -> bytes:
    records = entry.seq + 1 - entry.first_seq
    size = len(entry.body)
    head = (entry.first_seq, records, size, entry.time_ms, entry.nonce, entry.chain.encode())
    return ENTRY.pack(*head) + entry.body
