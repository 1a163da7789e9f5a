"""Redis store of the journal: Lua scripts for atomic steps, two connections to each server."""

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from struct import Struct, error as TruncatedEntry
from typing import Any

from dualstream.service.journal.chain import first_chain, new_incarnation, next_chain
from dualstream.service.journal.deduplicate import check_parts, opens_request, part_positions
from dualstream.service.journal.durability_levels import REDIS_LEVELS, replicas_in
from dualstream.service.journal.page import Page
from dualstream.service.journal.protocol import (
    DEFAULT_LIMITS,
    ENTRY_BYTES,
    Announced,
    Appended,
    AppendRequest,
    Base,
    Change,
    Conflict,
    CursorMove,
    CursorMoved,
    Entry,
    Head,
    JournalUnavailable,
    KeyEntry,
    Lease,
    Limits,
    LogPosition,
    MissingPosition,
    ModelChanged,
    ModelRecord,
    NonceForgotten,
    Part,
    Revision,
    Snapshot,
    Trimmed,
    UnknownCopy,
    UnknownModel,
    Usage,
)
from dualstream.service.journal.record import CorruptRecord
from dualstream.service.journal.redis import scripts
from dualstream.service.journal.redis.address import Address, parse_address
from dualstream.service.journal.redis.announcer import Announcer, channel_of
from dualstream.service.journal.redis.archive_access import RedisArchiveAccess
from dualstream.service.journal.redis.cluster import ClusterConnections, Topology
from dualstream.service.journal.redis.connection import RedisConnection, TooFewReplicas
from dualstream.service.journal.redis.keys_and_values import (
    ENTRY,
    IDENTITY,
    KNOWN,
    MODELS,
    PINGED,
    Keys,
    keys_of,
    packed,
    unpack_result,
)
from dualstream.service.journal.redis.pending_rows import RedisPendingRows
from dualstream.service.journal.redis.scripts import Argument, pack
from dualstream.service.journal.redis.servers import FixedServer, SentinelPrimary, Server
from dualstream.service.journal.redis.state_copies import PART_BYTES, RedisCopies

_HEADS_AT_ONCE = 500
_KEYS_AT_ONCE = 1000
_BASE_BYTES = 1 << 16
"""Entries that come with a snapshot. They are parsed in the event loop."""
_APPENDED = Struct("<QQI")
_COUNT_OF_LIMITS = 4
_LONG = 1 << 16
"""From this size, a body is sent in front of the script: Lua would copy and hash it."""
_BODY_MS = 600_000
"""Expiry of such a body if its script never runs."""


class RedisJournal(RedisCopies, RedisPendingRows, RedisArchiveAccess):
    """`Journal` in Redis.

    durability  lowest acceptable level: `memory`, `everysec` (appendonly yes), `always` or
                `replicated:N`
    timeout_s   per command
    is_pinned   raise JournalUnavailable instead of continuing on another server, or on a restarted
                one: it may lack acknowledged writes
    """

    def __init__(
        self,
        url: str,
        durability: str | None = None,
        limits: Limits = DEFAULT_LIMITS,
        timeout_s: float = 5.0,
        is_pinned: bool = False,
    ) -> None:
        replicas = replicas_in(durability)
        if durability is not None and durability not in REDIS_LEVELS and not replicas:
            levels = ", ".join(REDIS_LEVELS)
            raise ValueError(f"Redis's durability is {levels} or replicated:N, not {durability}")
        self._replicated = durability if replicas else None
        self._limits = limits
        self._key_ttl_ms = round(limits.key_ttl_s * 1000)
        self._packed_limits = pack((self._key_ttl_ms, limits.max_keys, limits.nonces, ENTRY_BYTES))
        address = parse_address(url)
        connect = partial(
            RedisConnection,
            required=None if replicas else durability,
            replicas=replicas,
            timeout_s=timeout_s,
            is_pinned=is_pinned,
        )
        self._is_cluster = address.kind == "cluster"
        topology = Topology(address)
        self._appends, self._others = (
            ClusterConnections(address, topology, connect, timeout_s, is_pinned)
            if self._is_cluster
            else connect(_server(address, timeout_s))
            for _ in range(2)
        )
        self._channel = channel_of(address.options.get("db", 0))
        self._announcer = Announcer(self._others, self._channel)

    async def open(self) -> None:
        self._appends.open()
        self._others.open()
        await self.ping()

    async def close(self) -> None:
        await self._announcer.close()
        await self._appends.close()
        await self._others.close()

    async def ping(self, writes: bool = False) -> None:
        await self._appends.ping()
        await self._others.ping()
        if writes:  # refused at maxmemory, and by a server that cannot save
            await self._others.call("SET", PINGED, b"1")

    def durability(self) -> str:
        return self._replicated or self._appends.durability

    def log_name(self, model: str) -> str:
        return str(keys_of(model).log, "ascii")

    def spec_name(self, model: str) -> str:
        return str(keys_of(model).spec, "ascii")

    async def claim_identity(self, mine: str) -> str:
        await self._others.call("SET", IDENTITY, mine, "NX")
        return await self.identity() or mine

    async def identity(self) -> str | None:
        stored: bytes | None = await self._others.call("GET", IDENTITY, is_read=True)
        return None if stored is None else stored.decode()

    async def adopt_identity(self, mine: str) -> None:
        await self._others.call("SET", IDENTITY, mine)

    async def create(
        self, model: str, spec: bytes, given: bytes, change: Change | None = None
    ) -> tuple[ModelRecord, bool]:
        extra = await self._change_arguments(model, change)
        answer = await self._models(model, "create", *_creation_arguments(spec, given), *extra)
        await self._others.call("ZADD", MODELS, 0, model)
        return _record(model, answer), bool(answer[1])

    async def get(self, model: str) -> ModelRecord:
        return _record(model, await self._models(model, "get"))

    async def base(self, model: str, limit_bytes: int = ENTRY_BYTES) -> Base:
        keys = keys_of(model)
        names, most = (keys.spec, keys.head, keys.log, keys.snaps), min(limit_bytes, _BASE_BYTES)
        answer = await self._run(model, scripts.BASE, names, (most,), is_read=True)
        if answer[0] == 4:
            raise UnknownModel(model)
        record = _record(model, answer[:8])
        newest, end, texts = answer[8:]
        snapshot = None
        if len(newest) == 5 and newest[4] is not None:
            snapshot = _snapshot(keys, newest[:4], newest[4:])
        elif newest:
            snapshot = await self.snapshot_get(model, record.incarnation)
        return Base(record, snapshot, tuple(_parse_page(texts, end)) if texts else ())

    async def heads(self, models: Sequence[str]) -> list[Head | JournalUnavailable | None]:
        heads: list[Head | JournalUnavailable | None] = []
        for at in range(0, len(models), _HEADS_AT_ONCE):
            batch = models[at : at + _HEADS_AT_ONCE]
            keys = [keys_of(id_).head for id_ in batch]
            if isinstance(self._others, RedisConnection):
                extra = await self._run_script(scripts.HEADS, keys, (), is_read=True)
                heads += map(_parse_head, extra.decode().split("\n"))
            else:  # the keys of a script must be in one slot
                commands = [("HMGET", key, "incarnation", "seq", "chain") for key in keys]
                heads += map(_head, await self._others.call_many(commands))
        return heads

    async def revision(self) -> Revision | None:
        return None

    async def announcements(self) -> AsyncGenerator[Announced, None]:
        async with aclosing(self._others.listen(self._channel)) as messages:
            async for message in messages:
                if message is None:
                    yield Announced()
                else:
                    model, _, seq = message.decode().rpartition(" ")
                    yield Announced(model, int(seq))

    async def count(self) -> int:
        number: int = await self._others.call("ZCARD", MODELS, is_read=True)
        return number

    async def replace(
        self,
        model: str,
        incarnation: str,
        seq: int,
        chain: str,
        spec: bytes,
        given: bytes,
        change: Change | None = None,
    ) -> ModelRecord:
        arguments = (
            *_creation_arguments(spec, given),
            *await self._change_arguments(model, change),
        )
        answer = await self._models(model, "replace", incarnation, seq, chain, *arguments)
        return _record(model, answer)

    async def delete(
        self,
        model: str,
        incarnation: str | None = None,
        change: Change | None = None,
        at: LogPosition | None = None,
    ) -> None:
        extra = await self._deletion_arguments(model, change)
        position = ("", "") if at is None else (at.seq, at.chain)
        try:
            await self._models(model, "delete", incarnation or "", *position, *extra)
        except UnknownModel:
            await self._unlist(model)  # an earlier deletion may have died before this step
            raise
        await self._unlist(model)

    async def _unlist(self, model: str) -> None:
        """Remove the id from the list of models; list it again if the model was created again."""
        await self._others.call("ZREM", MODELS, model)
        if await self._others.call("EXISTS", keys_of(model).spec):
            await self._others.call("ZADD", MODELS, 0, model)

    async def append(self, request: AppendRequest) -> Appended:
        model, nonce, parts = request.model, request.nonce, request.parts
        cursor, copy, change = request.cursor, request.copy, request.change
        held, repeats = request.held, request.repeats
        may_skip = check_parts(nonce, parts)
        keys = keys_of(model)
        body = b"".join([part.body for part in parts])
        before: tuple[bytes, ...] = ()
        if len(body) >= _LONG and not self._is_cluster and _is_whole(parts, may_skip):
            command = ("SET", keys.body(nonce), body, "PX", _BODY_MS, "NX")
            before, body = (b"*%d\r\n" % len(command), *pack(command)), b""
        arguments = (
            request.incarnation,
            nonce,
            request.known_seq,
            body,
            sum([part.count for part in parts]),
            *(_packed_parts(parts) if may_skip else (b"", b"")),
            *_packed_cursor(cursor),
        )
        packed = [*keys.packed_of_append, *pack(arguments), *self._packed_limits]
        count = 1 + keys.count_of_append + len(arguments) + _COUNT_OF_LIMITS
        pending = may_skip and any([part.pending is not None for part in parts])
        has_rows = pending or (may_skip and any([part.revisable is not None for part in parts]))
        is_plain = copy is None and change is None and held is None and repeats is None
        if not is_plain or has_rows:
            extra = [copy or "", *(await self._change_arguments(model, change) or ("", ""))]
            for place in (held, repeats):
                extra += ("", "") if place is None else (place.seq, place.chain)
            if has_rows:
                extra += self._pending_arguments(parts)
            packed += pack(extra)
            count += len(extra)
        if change is not None:
            packed[: len(keys.packed_of_append)] = keys.packed_of_change
            count += 1
        shortfall = None
        try:
            answer = await self._appends.run_packed(
                keys.head, scripts.APPEND, count, packed, before=before
            )
        except TooFewReplicas as short:
            answer, shortfall = short.answer, str(short)
        if isinstance(answer, bytes):
            appended = _appended(nonce, request.known_seq, parts, answer, shortfall)
            if pending:
                await self._list_as_waiting(model)
            if appended.seq is not None:
                self._announcer.announce(model, appended.seq)
            return appended
        if answer[0] == 2:
            assert cursor is not None
            raise CursorMoved(cursor.name, None if answer[1] is None else answer[1].decode())
        if answer[0] == 5:
            assert held is not None
            raise MissingPosition(model, held.seq, held.chain)
        if answer[0] == 6:
            assert copy is not None
            raise UnknownCopy(model, copy)
        if answer[0] == 7:
            raise self._too_many(model, answer[1])
        if answer[0] == 9:
            raise NonceForgotten(model)
        if answer[0] == 8:
            raise JournalUnavailable("Redis: the rows expired before they were journalled")
        raise ModelChanged(model)

    async def known(
        self, model: str, incarnation: str, keys: Sequence[bytes]
    ) -> list[KeyEntry | None]:
        entries: list[KeyEntry | None] = []
        own = keys_of(model)
        for at in range(0, len(keys), _KEYS_AT_ONCE):
            batch = keys[at : at + _KEYS_AT_ONCE]
            names = (own.head, own.keys)
            arguments: list[Argument] = [incarnation, self._key_ttl_ms, *batch]
            answer = await self._run(model, scripts.FIND_KEYS, names, arguments, True)
            for stored in answer[1:]:
                seq, records = KNOWN.unpack_from(stored) if stored else (0, 0)
                mark = stored[24:] or None
                entries.append(KeyEntry(seq, records, mark) if stored else None)
        return entries

    async def read(
        self, model: str, incarnation: str, after: int, limit_bytes: int = ENTRY_BYTES
    ) -> Sequence[Entry]:
        keys = keys_of(model)
        names, arguments = (keys.head, keys.log), (incarnation, after, limit_bytes)
        answer = await self._run(model, scripts.READ, names, arguments, is_read=True)
        if answer[0] == 3:
            raise Trimmed(answer[1] + 1)
        end, texts = answer[1:]
        return Page(end, sum(map(len, texts)), partial(_parse_page, texts, end)) if texts else []

    async def trim(
        self, model: str, incarnation: str, through: int, behind: int | None = None
    ) -> None:
        keys = keys_of(model)
        arguments = (incarnation, through, "" if behind is None else behind)
        is_done = False
        while not is_done:
            names = (keys.head, keys.log, keys.snaps, keys.bodies)
            answer = await self._run(model, scripts.TRIM, names, arguments)
            is_done = not answer[1]
        await self.collect(model, incarnation)

    async def snapshot_put(
        self,
        model: str,
        incarnation: str,
        seq: int,
        chain: str,
        data: bytes,
        replaces: bool = False,
    ) -> bool:
        token = secrets.token_hex(8)
        parts = range(0, len(data), PART_BYTES)
        begin = ("begin", incarnation, seq, chain, token, int(replaces))
        answer = await self._snapshot(model, token, *begin)
        if answer[0] == 5:
            raise MissingPosition(model, seq, chain)
        for number, at in enumerate(parts):
            if not answer[1]:
                return False
            piece = data[at : at + PART_BYTES]
            answer = await self._snapshot(model, token, "part", incarnation, token, number, piece)
        if answer[1]:
            answer = await self._snapshot(model, token, "complete", incarnation, token, len(parts))
        return bool(answer[1])

    async def snapshot_get(self, model: str, incarnation: str, n: int = 0) -> Snapshot | None:
        seen: bytes | None = None
        while True:
            answer = await self._snapshot(model, "", "find", incarnation, n)
            if len(answer) == 1:
                return None
            token, parts = answer[1], answer[4]
            pieces = [
                (await self._snapshot(model, token.decode(), "piece", incarnation, number))[1]
                for number in range(parts)
            ]
            # If a piece is missing, a newer snapshot has replaced this one, or it is damaged.
            if None not in pieces or token == seen:
                return _snapshot(keys_of(model), answer[1:], pieces)
            seen = token

    async def snapshots(self, model: str, incarnation: str) -> Sequence[LogPosition]:
        answer = await self._snapshot(model, "", "places", incarnation)
        pairs = zip(answer[1::2], answer[2::2], strict=True)
        return [LogPosition(seq, chain.decode()) for seq, chain in pairs]

    async def snapshots_drop(self, model: str, incarnation: str, before: int) -> None:
        answer = await self._snapshot(model, "", "drop", incarnation, before)
        if answer[0] == 5:
            raise Conflict(f"the log of {model!r} contains no snapshot from seq {before} on")

    async def usage(self, model: str, incarnation: str) -> Usage:
        keys = keys_of(model)
        names = (keys.head, keys.log, keys.snaps)
        answer = await self._run(model, scripts.USAGE, names, (incarnation,), is_read=True)
        oldest_ms, unsaved_ms = (None if ms < 0 else ms for ms in answer[3:])
        return Usage(answer[1], answer[2], oldest_ms, unsaved_ms)

    async def scrub(self, model: str, incarnation: str) -> bool:
        keys = keys_of(model)
        names = (keys.head, keys.log, keys.log + b":anew")
        return bool((await self._run(model, scripts.SCRUB, names, (incarnation,)))[1])

    async def lease(
        self, bucket: str, rate: int, needed: int, most: int, at_ms: int | None = None
    ) -> Lease:
        # Sent as a read: it needs no replicas, and its outcome may be lost.
        arguments = (rate, needed, most, "" if at_ms is None else at_ms)
        key = f"ds:rate:{bucket}"
        return Lease(*await self._run_script(scripts.RATE_BUCKET, (key,), arguments, is_read=True))

    async def cursor(self, model: str, incarnation: str, name: str) -> str | None:
        keys = keys_of(model)
        names, arguments = (keys.head, keys.cursors), (incarnation, name)
        answer = await self._run(model, scripts.CURSOR, names, arguments, is_read=True)
        return None if answer[1] is None else answer[1].decode()

    async def cursors(self, model: str, incarnation: str, prefix: str) -> dict[str, str]:
        keys = keys_of(model)
        names = (keys.head, keys.cursors)
        answer = await self._run(model, scripts.CURSOR, names, (incarnation,), is_read=True)
        texts = [text.decode() for text in answer[1:]]
        pairs = zip(texts[::2], texts[1::2], strict=True)
        return dict(sorted(pair for pair in pairs if pair[0].startswith(prefix)))

    async def _models(self, model: str, *arguments: Argument) -> Any:
        is_read = arguments[0] == "get"
        own = keys_of(model)
        keys = (*own.all, own.audit)
        answer = await self._run(model, scripts.MODELS, keys, arguments, is_read)
        if answer[0] == 4:
            raise UnknownModel(model)
        if answer[0] == 5:
            seq, chain = (item.decode() for item in answer[1:])
            raise Conflict(f"model {model!r} is at seq {seq} {chain[:8]}")
        return answer

    async def _snapshot(self, model: str, token: str, *arguments: Argument) -> Any:
        keys = keys_of(model).of_snapshot(token)
        is_read = arguments[0] in ("find", "piece", "places")
        return await self._run(model, scripts.SNAPSHOTS, keys, arguments, is_read)

    # Last, because it shadows the type `list` in what follows.
    async def list(self, after: str = "", limit: int = 100) -> list[ModelRecord]:
        records: list[ModelRecord] = []
        while len(records) < limit:
            start = f"({after}" if after else "-"
            ids = await self._others.call(
                "ZRANGEBYLEX", MODELS, start, "+", "LIMIT", 0, limit - len(records), is_read=True
            )
            if not ids:
                break
            for model in ids:
                after = model.decode()
                answer = await self._run_script(
                    scripts.MODELS, keys_of(after).all, ("get",), is_read=True
                )
                if answer[0] == 0:  # else a deletion has not removed it from the list yet
                    records.append(_record(after, answer))
        return records


def _creation_arguments(spec: bytes, given: bytes) -> tuple[str, str, bytes, bytes]:
    incarnation = new_incarnation(spec)
    return incarnation, first_chain(incarnation), spec, given


def _record(model: str, answer: list[Any]) -> ModelRecord:
    incarnation, created_ms, spec, given, seq, chain = answer[2:]
    return ModelRecord(
        model, incarnation.decode(), spec, given, int(created_ms), int(seq), chain.decode()
    )


def _snapshot(keys: Keys, stored: list[Any], pieces: Sequence[bytes | None]) -> Snapshot:
    """A snapshot that is `stored` as token, seq, chain and number of parts, of these parts."""
    token, seq, chain, _ = stored
    where = f"key {(keys.prefix + b'snap:' + token).decode()}"
    return Snapshot(seq, chain.decode(), b"".join(filter(None, pieces)), where)


def _is_whole(parts: Sequence[Part], may_skip: bool) -> bool:
    """Are the parts rows that are journalled completely or not at all?"""
    return sum(part.count for part in parts) > 0 and (len(parts) == 1 or not may_skip)


def _packed_parts(parts: Sequence[Part]) -> tuple[bytes, bytes]:
    """Metadata of the parts for the script; keys and fingerprints concatenated."""
    fields: list[int] = []
    joined: list[bytes] = []
    for part in parts:
        key, mark = part.key or b"", part.fingerprint or b""
        role = 2 if part.continues else opens_request(part) + 4 * part.whole
        role += 8 * (part.pending is not None) + 16 * (part.revisable is not None)
        fields += (part.count, len(part.body), len(key), len(mark), role)
        joined += (key, mark)
    return packed(fields), b"".join(joined)


def _packed_cursor(cursor: CursorMove | None) -> tuple[str, str, str]:
    if cursor is None:
        return "", "", ""
    return cursor.name, _optional(cursor.expected), _optional(cursor.new)


def _optional(value: str | None) -> str:
    """A value that can be absent, as `append.lua` reads it."""
    return "" if value is None else "=" + value


def _server(address: Address, timeout_s: float) -> Server:
    if address.kind == "sentinel":
        return SentinelPrimary(address, timeout_s)
    return FixedServer(address, address.hosts[0], timeout_s)


def _parse_head(line: str) -> Head | None:
    if not line:
        return None
    incarnation, seq, chain = line.split(" ")
    return Head(incarnation, int(seq), chain)


def _head(answer: list[bytes | None] | JournalUnavailable) -> Head | JournalUnavailable | None:
    if isinstance(answer, JournalUnavailable):
        return answer
    incarnation, seq, chain = answer
    if incarnation is None or seq is None or chain is None:
        return None
    return Head(incarnation.decode(), int(seq), chain.decode())


def _appended(
    nonce: bytes, known_seq: int, parts: Sequence[Part], answer: bytes, shortfall: str | None
) -> Appended:
    last, trimmed, size = _APPENDED.unpack_from(answer)
    unseen = _APPENDED.size + size
    result = unpack_result(answer[_APPENDED.size : unseen])
    is_new = result.seq > result.before
    return Appended(
        part_positions(parts, result.before, result.skipped),
        result.before + 1 if is_new else None,
        result.seq if is_new else None,
        result.previous,
        next_chain(result.previous, nonce) if is_new else result.previous,
        tuple(_entries(answer, unseen)),
        known_seq < trimmed or last < result.before,
        shortfall,
    )


def _parse_page(texts: Sequence[bytes], end: int) -> list[Entry]:
    """Parse the entries of a read, which by their stream ids end at seq `end`."""
    entries = _entries(b"".join(texts))
    if not entries or entries[-1].seq != end:
        raise CorruptRecord(f"the entry at seq {end} does not end there")
    return entries


def _entries(joined: bytes, at: int = 0) -> list[Entry]:
    entries: list[Entry] = []
    unpack, head, end, add = ENTRY.unpack_from, ENTRY.size, len(joined), entries.append
    try:
        while at < end:
            first, count, size, time_ms, nonce, extra = unpack(joined, at)
            chain = extra.decode("ascii", "replace")
            begins = at + head
            at = begins + size
            add(Entry(first, first + count - 1, nonce, chain, time_ms, joined[begins:at]))
    except TruncatedEntry as error:
        raise CorruptRecord(f"the entry {_after(entries)} is truncated") from error
    if at > end:
        raise CorruptRecord(f"the entry {_after(entries[:-1])} is truncated")
    return entries


def _after(entries: Sequence[Entry]) -> str:
    return f"after seq {entries[-1].seq}" if entries else "that was read first"
