"""One connection to Redis on which each command is sent once, whatever happens.

redis-py's clients repeat a command when the connection breaks, and an append that is sent twice
is learned twice. So there is no client here, only its connection, with no retries.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from redis.asyncio import Connection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from service.journal.protocol import DurabilityTooLow, JournalUnavailable, OutcomeUnknown
from service.journal.redis.scripts import Argument, Script, pack

LEVELS = ("memory", "everysec", "always")

_REFUSALS = (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
)
_REFUSAL_CODES = ("MISCONF", "NOREPLICAS", "BUSY", "OOM", "UNKILLABLE")


class Line:
    """Commands one after the other on one connection, made anew after it broke.

    asked       the least durability asked for, or None
    timeout_s   for one command, waiting for its turn and connecting included
    """

    def __init__(self, url: str, asked: str | None, timeout_s: float) -> None:
        # protocol 2: answers are read by the smaller parser, and no push can come between
        self._pool = ConnectionPool.from_url(
            url,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None,
            socket_connect_timeout=timeout_s,
            health_check_interval=0,
        )
        self._asked = asked
        self._timeout_s = timeout_s
        self._connection: Connection | None = None
        self._is_closed = False
        self._turn = asyncio.Lock()
        self.durability = "memory"

    def open(self) -> None:
        """Take commands, after `close` too; the connection is made by the first one."""
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect()

    async def run(
        self,
        script: Script,
        keys: Sequence[Argument],
        arguments: Sequence[Argument],
        is_read: bool = False,
    ) -> Any:
        """The answer of a script.

        Raises JournalUnavailable (nothing was done), and unless `is_read` OutcomeUnknown.
        """
        count = 1 + len(keys) + len(arguments)
        packed = pack((len(keys), *keys, *arguments))
        return await self.run_packed(script, count, packed, is_read)

    async def run_packed(
        self, script: Script, count: int, packed: list[bytes], is_read: bool = False
    ) -> Any:
        """`run` for `count` packed arguments: the number of keys, the keys, the arguments.

        The script is sent by its digest, and as a text only where Redis does not have it.
        """
        try:
            return await self._call(
                [b"*%d\r\n" % (2 + count), *script.packed_digest, *packed], is_read
            )
        except NoScriptError:
            return await self._call(
                [b"*%d\r\n" % (2 + count), *script.packed_text, *packed], is_read
            )

    async def call(self, *command: Argument, is_read: bool = False) -> Any:
        """The answer to a command.

        Raises JournalUnavailable (nothing was done), and unless `is_read` OutcomeUnknown.
        """
        return await self._call([b"*%d\r\n" % len(command), *pack(command)], is_read)

    async def call_many(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """The answers to commands that only read, sent together.

        Raises JournalUnavailable.
        """
        packed = [piece for c in commands for piece in (b"*%d\r\n" % len(c), *pack(c))]
        answers: list[Any] = await self._call(packed, is_read=True, count=len(commands))
        return answers

    async def listen(self, channel: str) -> AsyncGenerator[bytes | None, None]:
        """None once it listens on a connection of its own, then each message.

        Raises JournalUnavailable when the connection breaks, or answers no PING.
        """
        connection: Connection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(self._timeout_s):
                await connection.connect()  # type: ignore[no-untyped-call]
                await _ask(connection, "SUBSCRIBE", channel)
            yield None
            is_asked = False
            while True:
                told = await connection.read_response(
                    timeout=self._timeout_s, disconnect_on_error=False
                )
                if told is None and is_asked:
                    raise TimeoutError
                is_asked = told is None
                if is_asked:
                    ping = [b"*1\r\n", *pack(("PING",))]
                    await connection.send_packed_command(ping, check_health=False)
                elif told[0] == b"message":
                    yield told[2]
        except (RedisError, OSError, TimeoutError) as error:
            raise _failure(False, error) from error
        finally:
            await connection.disconnect(nowait=True)

    async def _call(self, packed: list[bytes], is_read: bool, count: int | None = None) -> Any:
        """The answer to one packed command, or the list of those to `count` of them."""
        is_unknown = False
        try:
            async with asyncio.timeout(self._timeout_s), self._turn:
                if self._is_closed:
                    raise JournalUnavailable("the journal is closed")
                connection = await self._connected()
                is_unknown = not is_read
                await connection.send_packed_command(packed, check_health=False)
                if count is None:
                    return await connection.read_response()
                return await _read_all(connection, count)
        except NoScriptError:
            raise
        except _REFUSALS as error:
            raise JournalUnavailable(f"Redis: {error}") from error
        except ResponseError as error:
            if str(error).startswith(_REFUSAL_CODES):
                raise JournalUnavailable(f"Redis: {error}") from error
            raise _failure(is_unknown, error) from error
        except (RedisError, OSError, TimeoutError) as error:
            raise _failure(is_unknown, error) from error

    async def _connected(self) -> Connection:
        if self._connection is not None and await _is_broken(self._connection):
            await self._connection.disconnect(nowait=True)
            self._connection = None
        if self._connection is None:
            made: Connection = self._pool.make_connection()  # type: ignore[no-untyped-call]
            try:
                await made.connect()  # type: ignore[no-untyped-call]
                self.durability = await _durability(made, self._asked)
            except BaseException:
                await made.disconnect(nowait=True)
                raise
            self._connection = made
        return self._connection


async def _read_all(connection: Connection, count: int) -> list[Any]:
    """The next answers; an error among them is raised once all are read."""
    answers: list[Any] = []
    wrong: ResponseError | None = None
    for _ in range(count):
        try:
            answers.append(await connection.read_response())
        except ResponseError as error:
            wrong = error
    if wrong is not None:
        raise wrong
    return answers


def _failure(is_unknown: bool, error: Exception) -> Exception:
    reason = f"Redis: {str(error) or 'no answer in time'}"
    return OutcomeUnknown(reason) if is_unknown else JournalUnavailable(reason)


async def _is_broken(connection: Connection) -> bool:
    """Whether the server has gone since the last answer: then there is something to be read."""
    try:
        return not connection.is_connected or await connection.can_read()
    except RedisError:
        return True


async def _durability(connection: Connection, asked: str | None) -> str:
    """What this server keeps.

    Raises JournalUnavailable when it cannot serve at all, DurabilityTooLow.
    """
    info = _fields(await _ask(connection, "INFO", "server"), b"\r\n", b":")
    if int(info["redis_version"].split(".")[0]) < 7:
        raise JournalUnavailable(f"Redis {info['redis_version']} is too old: 7.0 or newer")
    if info["redis_mode"] != "standalone":
        raise JournalUnavailable(f"Redis in {info['redis_mode']} mode is not supported")
    try:
        answer = await _ask(
            connection, "CONFIG", "GET", "appendonly", "appendfsync", "maxmemory-policy"
        )
    except ResponseError as error:
        if asked in (None, "memory"):
            return "memory"
        raise DurabilityTooLow(f"what Redis keeps cannot be read: {error}") from error
    config = dict(zip(*[iter(item.decode() for item in answer)] * 2, strict=True))
    if config["maxmemory-policy"] != "noeviction":
        raise DurabilityTooLow(
            f"Redis may evict the journal: maxmemory-policy is {config['maxmemory-policy']},"
            " set it to noeviction"
        )
    fsync = config["appendfsync"] if config["appendonly"] == "yes" else "memory"
    level = fsync if fsync in LEVELS else "memory"
    if asked is not None and LEVELS.index(level) < LEVELS.index(asked):
        raise DurabilityTooLow(
            f"Redis keeps {level}, {asked} was asked for: set appendonly yes and"
            f" appendfsync {asked} there"
        )
    return level


async def _ask(connection: Connection, *command: Argument) -> Any:
    packed = [b"*%d\r\n" % len(command), *pack(command)]
    await connection.send_packed_command(packed, check_health=False)
    return await connection.read_response()


def _fields(text: bytes, line_end: bytes, separator: bytes) -> dict[str, str]:
    pairs = (line.partition(separator) for line in text.split(line_end))
    return {name.decode(): value.decode() for name, _, value in pairs}
