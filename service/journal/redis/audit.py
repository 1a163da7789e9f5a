"""Audit log in Redis: one stream per model, merged when all models are read.

The streams of a Cluster are on several nodes, and a script reaches only one of them. So a model's
changes are stored in the model's slot, and the log of all models is merged by the reader.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dualstream.service.journal.audit import (
    Audited,
    AuditPosition,
    Change,
    decode_change,
    encode_change,
)
from dualstream.service.journal.protocol import JournalUnavailable
from dualstream.service.journal.redis import scripts
from dualstream.service.journal.redis.base import RedisPart
from dualstream.service.journal.redis.connection import TooFewReplicas
from dualstream.service.journal.redis.keys_and_values import AUDITED, keys_of
from dualstream.service.journal.redis.scripts import Argument

STREAMS_AT_ONCE = 500
MERGED = 100
"""Maximum number of models merged at once, and of changes read from each."""
DAY_MS = 86_400_000
"""Upper bound for the difference of two servers' clocks."""


class RedisAudit(RedisPart):
    """The audit log."""

    @property
    def _kept_ms(self) -> int:
        return round(1000 * self._limits.audit_s)

    async def _change_arguments(self, model: str, change: Change | None) -> tuple[Argument, ...]:
        """Arguments of a script that stores a change. Lists the model as audited first."""
        if change is None:
            return ()
        await self._list_as_changed(model)
        return encode_change(change), self._kept_ms

    async def _deletion_arguments(self, model: str, change: Change | None) -> tuple[Argument, ...]:
        """As `_change_arguments`, for a script that makes room. A full server runs it, too.

        The script deletes first and stores the change then, which a full server permits. The model
        was listed when it was created.
        """
        if change is None:
            return ()
        with suppress(JournalUnavailable):
            await self._list_as_changed(model)
        return encode_change(change), self._kept_ms

    async def _list_as_changed(self, model: str) -> None:
        now_ms = time.time_ns() // 1_000_000
        gone_ms = now_ms - self._kept_ms - DAY_MS
        with suppress(TooFewReplicas):  # the write with the change waits for replicas
            await self._others.call("ZADD", AUDITED, "GT", now_ms, model)
        with suppress(TooFewReplicas):
            await self._others.call("ZREMRANGEBYSCORE", AUDITED, "-inf", gone_ms)

    async def put_changes(self, changes: Sequence[Audited]) -> None:
        of_models: dict[str, list[Argument]] = {}
        for one in changes:
            position = AuditPosition.read(one.place)
            fields = (one.incarnation, one.seq, encode_change(one.change))
            of_model = of_models.setdefault(one.model, [self._kept_ms])
            of_model += (f"{position.time_ms}-{position.number}", *fields)
        for model, arguments in of_models.items():
            await self._list_as_changed(model)
            audit = keys_of(model).audit
            await self._run_script(scripts.AUDIT, (audit, audit + b":anew"), arguments)

    async def audit(
        self, model: str | None = None, after: str | None = None, limit: int = 100
    ) -> Sequence[Audited]:
        start = AuditPosition.read(after)
        if model is not None:
            changes = await self._changes([model], [start], limit)
            return [change for _, change in changes[0]]
        merged: list[Audited] = []
        while len(merged) < limit:
            batch = await self._merged(start, min(limit - len(merged), MERGED))
            if not batch:
                break
            merged += [change for _, change in batch]
            start = batch[-1][0]
        return merged

    async def _merged(
        self, start: AuditPosition, limit: int
    ) -> list[tuple[AuditPosition, Audited]]:
        """The next changes of all models, from the models whose next change is earliest."""
        since = max(0, start.time_ms - DAY_MS)
        listed = await self._others.call("ZRANGEBYSCORE", AUDITED, since, "+inf", is_read=True)
        ids = [item.decode() for item in listed]
        firsts = [
            changes[0][0] for changes in await self._changes(ids, [start] * len(ids), 1) if changes
        ]
        ahead = [position.model for position in sorted(firsts)[:limit]]
        changes = await self._changes(ahead, [start] * len(ahead), limit)
        return sorted([one for of_model in changes for one in of_model], key=lambda one: one[0])[
            :limit
        ]

    async def _changes(
        self, models: Sequence[str], starts: Sequence[AuditPosition], limit: int
    ) -> list[list[tuple[AuditPosition, Audited]]]:
        """The first changes of each of these models after its start."""
        commands: list[Sequence[Argument]] = []
        for model, (ms, number, of_model) in zip(models, starts, strict=True):
            # At the same moment, the change of the model with the smaller id comes first.
            open_end = "(" if model <= of_model else ""
            first = f"{open_end}{ms}-{number}"
            commands.append(("XRANGE", keys_of(model).audit, first, "+", "COUNT", limit))
        answers: list[Any] = []
        for at in range(0, len(commands), STREAMS_AT_ONCE):
            answers += await self._others.call_many(commands[at : at + STREAMS_AT_ONCE])
        for answer in answers:
            if isinstance(answer, JournalUnavailable):
                raise answer
        return [
            [_audited(model, *entry) for entry in answer]
            for model, answer in zip(models, answers, strict=True)
        ]


def _audited(model: str, stream_id: bytes, fields: list[bytes]) -> tuple[AuditPosition, Audited]:
    values = dict(zip(fields[::2], fields[1::2], strict=True))
    time_ms, _, number = stream_id.partition(b"-")
    position = AuditPosition(int(time_ms), int(number), model)
    rest = (values[b"i"].decode(), int(values[b"s"]), decode_change(values[b"c"]))
    return position, Audited(str(position), position.time_ms, model, *rest)
