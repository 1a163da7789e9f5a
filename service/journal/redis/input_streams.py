"""Input streams in Redis: ds:{ID}:in for messages, ds:{ID}:dead as dead-letter queue."""

import time
from collections.abc import Mapping, Sequence

from dualstream.service.journal.input_streams import CURSOR, InputMove, Message, Waiting
from dualstream.service.journal.protocol import JournalUnavailable
from dualstream.service.journal.redis import scripts
from dualstream.service.journal.redis.base import RedisPart, refuse
from dualstream.service.journal.redis.keys_and_values import MODELS, keys_of, packed

MESSAGES = 1000
"""Maximum number of messages read at once; MESSAGE_BYTES limits their bytes."""
MESSAGE_BYTES = 1 << 20
_INPUTS_AT_ONCE = 500
PING_S = 1.0


class RedisInputs(RedisPart):
    """`HasInputs` in Redis."""

    _input_pinged_at = float("-inf")

    async def pending(self) -> Mapping[str, int]:
        if time.monotonic() - self._input_pinged_at >= PING_S:
            self._input_pinged_at = time.monotonic()
            await self._inputs.ping()  # drops a server that is no longer the primary
        listed = await self._inputs.call("ZRANGE", MODELS, 0, -1, is_read=True)
        models = [model.decode() for model in listed]
        found: dict[str, int] = {}
        for at in range(0, len(models), _INPUTS_AT_ONCE):
            batch = models[at : at + _INPUTS_AT_ONCE]
            for model, count in zip(batch, await self._lengths(batch), strict=True):
                if isinstance(count, int) and count:
                    found[model] = count
        return found

    async def _lengths(self, models: Sequence[str]) -> list[int | JournalUnavailable]:
        commands = [("XLEN", keys_of(model).input) for model in models]
        found: list[int | JournalUnavailable]
        try:
            found = await self._inputs.call_many(commands)
        except JournalUnavailable as error:
            if not _is_type(error):
                raise
            found = [error for _ in models]
        # A key of another type counts as one message: `waiting` raises the error.
        return [
            await self._length(model) if _is_type(answer) else answer
            for model, answer in zip(models, found, strict=True)
        ]

    async def _length(self, model: str) -> int:
        try:
            count: int = await self._inputs.call("XLEN", keys_of(model).input, is_read=True)
        except JournalUnavailable as error:
            if not _is_type(error):
                raise
            return 1
        return count

    async def waiting(self, model: str, incarnation: str) -> Waiting:
        keys = keys_of(model)
        answer = await self._inputs.run(
            scripts.INPUT_PENDING,
            (keys.head, keys.cursors, keys.input),
            (incarnation, CURSOR, MESSAGES, MESSAGE_BYTES),
            is_read=True,
        )
        refuse_type(model, answer)
        refuse(model, answer)
        cursor = None if answer[1] is None else answer[1].decode()
        return Waiting(cursor, tuple(_message(*item) for item in answer[2]))


def refuse_type(model: str, answer: list[int]) -> None:
    """Raise JournalUnavailable if the script found a key that is not a stream."""
    if answer[0] == 7:
        keys = keys_of(model)
        names = f"{keys.input.decode()} or {keys.dead.decode()}"
        raise JournalUnavailable(f"Redis: {names} is not a stream")


def _is_type(answer: int | JournalUnavailable) -> bool:
    return isinstance(answer, JournalUnavailable) and "WRONGTYPE" in str(answer)


def packed_move(move: InputMove, max_dead: int) -> bytes:
    """Arguments of `append.lua` for the messages that the append takes."""
    return packed((max_dead, move.reused, move.messages, move.refused, move.parts))


def _message(id_: bytes, texts: list[bytes]) -> Message:
    return Message(id_.decode(), tuple(zip(texts[::2], texts[1::2], strict=True)))
