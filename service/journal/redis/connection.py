"""Redis connection without retries: each command is sent at most once.

redis-py's clients repeat a command when the connection breaks, and an append that is sent twice is
learned twice. So this module uses redis-py's connection and no client.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

from redis import exceptions
from redis.asyncio import Connection

from dualstream.service.journal.protocol import JournalUnavailable, NotReplicated, OutcomeUnknown
from dualstream.service.journal.redis.scripts import Argument, Script, pack
from dualstream.service.journal.redis.server_checks import (
    check_replicas,
    check_server,
    read_level,
    replicas_of,
)
from dualstream.service.journal.redis.servers import Server

REPLICAS_MS = 1000
"""How long an append waits for its replicas."""

CHECK_S = 5.0
"""Interval at which the server's settings are read again."""

SETTLED_S = 30.0
"""How long replicas may take to receive the last writes of a restore."""

REDIRECTIONS = (exceptions.AskError, exceptions.TryAgainError)
"""Answers of a Cluster node that did nothing because a slot was or is being moved."""

_REFUSALS = (
    exceptions.AuthenticationError,
    exceptions.BusyLoadingError,
    exceptions.ClusterDownError,
    exceptions.MasterDownError,
    exceptions.NoPermissionError,
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
)
_REFUSAL_CODES = ("MISCONF", "NOREPLICAS", "BUSY", "OOM", "UNKILLABLE")
_ASKING = (b"*1\r\n", *pack(("ASKING",)))


class ServerLost(JournalUnavailable):
    """The connection to a pinned server broke; its successor may lack the last writes."""

    def __init__(self) -> None:
        super().__init__(
            "Redis: the connection to the server was lost, and a server that replaces it may lack "
            "the last writes; run this again"
        )


class TooFewReplicas(NotReplicated):
    """A write was done, but too few replicas confirmed it in time."""

    def __init__(self, answer: Any, reached: int, replicas: int) -> None:
        super().__init__(
            f"journalled, not replicated: {reached} of {replicas} replicas had it"
            f" in {REPLICAS_MS} ms"
        )
        self.answer = answer


class RedisConnection:
    """Sends commands one after the other on one connection; reconnects after it broke.

    required    lowest acceptable durability of the server's disk, or None
    replicas    number of replicas that must confirm each write
    timeout_s   per command, including the wait for the lock and connecting
    is_pinned   never reconnect: raise ServerLost once the connection broke
    """

    def __init__(
        self,
        server: Server,
        required: str | None,
        replicas: int,
        timeout_s: float,
        is_pinned: bool = False,
    ) -> None:
        self._server = server
        self._required = required
        self._replicas = replicas
        self._wait = [b"*3\r\n", *pack(("WAIT", replicas, REPLICAS_MS))]
        # After a write on too few replicas, writes wait until there are enough replicas.
        self._may_be_short = True
        self._timeout_s = timeout_s
        self._is_pinned, self._was_connected = is_pinned, False
        self._replicas_seen = 0
        self._connection: Connection | None = None
        self._is_closed = False
        self._turn = asyncio.Lock()
        self._checked_at = float("-inf")
        self.durability = "memory"

    def open(self) -> None:
        """Accept commands, also after `close`; the first command connects."""
        self._is_closed = False

    async def close(self) -> None:
        self._is_closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect()
        await self._server.close()

    async def ping(self) -> None:
        """Return if the server answers, with the requested durability and replicas.

        Drops the connection to a server that is no longer the primary. Raises JournalUnavailable.
        """
        await self._drop_former_primary()
        await self._call([b"*1\r\n", *pack(("PING",))], is_read=True)
        await self._check_settings()
        if self._replicas or self._is_pinned:
            info = await self._call([b"*2\r\n", *pack(("INFO", "replication"))], is_read=True)
            self._replicas_seen = max(self._replicas_seen, replicas_of(info))
        if self._replicas:
            self._may_be_short = True
            check_replicas(info, self._replicas)
            self._may_be_short = False

    async def settle(self) -> None:
        """Return once every replica has all that the server had at the time of the call.

        Expects at least as many replicas as were seen at a ping: if they left, another server may
        have become primary before every Sentinel knows.

        Raises JournalUnavailable; NotReplicated if a replica does not confirm in time.
        """
        # WAIT covers what precedes the last command on this connection; for Valkey 9, the last that
        # may write. So send one that writes nothing.
        await self.call("PUBLISH", "ds:none", "", is_read=True)
        info = await self.call("INFO", "replication", is_read=True)
        count = max(self._replicas_seen, replicas_of(info))
        reached = 0
        until = asyncio.get_running_loop().time() + SETTLED_S
        while count and asyncio.get_running_loop().time() < until:
            reached = await self.call("WAIT", count, REPLICAS_MS, is_read=True)
            if reached >= count:
                return
        if count:
            raise NotReplicated(
                f"written, not replicated: {reached} of {count} replicas had it in"
                f" {SETTLED_S:g} s; run this again to wait for them"
            )

    async def run_packed(
        self,
        key: Argument,
        script: Script,
        count: int,
        packed: list[bytes],
        is_read: bool = False,
        is_asking: bool = False,
        before: Sequence[bytes] = (),
    ) -> Any:
        """Run a script with `count` packed arguments: the number of keys, the keys, the rest.

        `key` is one of the keys; a Cluster finds the node by it. The script is sent by its digest,
        and as text only if Redis does not have it. `before` is a packed command sent in front of
        it, whose answer counts only if it is an error.

        Raises JournalUnavailable (nothing was done), and unless `is_read` OutcomeUnknown and
        TooFewReplicas.
        """
        try:
            digest = [b"*%d\r\n" % (2 + count), *script.packed_digest, *packed]
            return await self._call(digest, is_read, is_asking, before=before)
        except exceptions.NoScriptError:
            text = [b"*%d\r\n" % (2 + count), *script.packed_text, *packed]
            return await self._call(text, is_read, is_asking, before=before)

    async def call(self, *command: Argument, is_read: bool = False, is_asking: bool = False) -> Any:
        """Send a command and return its answer.

        Raises JournalUnavailable (nothing was done), and unless `is_read` OutcomeUnknown and
        TooFewReplicas.
        """
        return await self._call([b"*%d\r\n" % len(command), *pack(command)], is_read, is_asking)

    async def call_many(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send read-only commands together and return their answers.

        Raises JournalUnavailable.
        """
        packed = [piece for c in commands for piece in (b"*%d\r\n" % len(c), *pack(c))]
        answers: list[Any] = await self._call(packed, is_read=True, count=len(commands))
        return answers

    async def listen(self, channel: str) -> AsyncGenerator[bytes | None, None]:
        """Yield None once subscribed on a connection of its own, then each message.

        Raises JournalUnavailable if the connection breaks, or does not answer a PING.
        """
        connection = self._server.make_connection()
        try:
            async with asyncio.timeout(self._timeout_s):
                await connection.connect()  # type: ignore[no-untyped-call]
                await _ask(connection, "SUBSCRIBE", channel)
            yield None
            is_asked = False
            while True:
                message = await connection.read_response(
                    timeout=self._timeout_s, disconnect_on_error=False
                )
                if message is None and is_asked:
                    raise TimeoutError
                is_asked = message is None
                if is_asked:
                    ping = [b"*1\r\n", *pack(("PING",))]
                    await connection.send_packed_command(ping, check_health=False)
                elif message[0] == b"message":
                    yield message[2]
        except (exceptions.RedisError, OSError, TimeoutError) as error:
            raise _failure(False, error) from error
        finally:
            await connection.disconnect(nowait=True)

    async def _call(
        self,
        packed: list[bytes],
        is_read: bool,
        is_asking: bool = False,
        count: int | None = None,
        before: Sequence[bytes] = (),
    ) -> Any:
        """Answer to one packed command, or with `count` the list of answers to that many."""
        is_unknown = False
        is_waited = self._replicas > 0 and not is_read
        ahead = is_asking + bool(before)
        try:
            async with asyncio.timeout(self._timeout_s), self._turn:
                if self._is_closed:
                    raise JournalUnavailable("the journal is closed")
                connection = await self._connected()
                if is_waited and self._may_be_short:
                    check_replicas(await _ask(connection, "INFO", "replication"), self._replicas)
                    self._may_be_short = False
                if ahead:
                    packed = [*(_ASKING if is_asking else ()), *before, *packed]
                if is_waited:
                    packed = [*packed, *self._wait]
                is_unknown = not is_read
                await connection.send_packed_command(packed, check_health=False)
                if not is_waited and not ahead:
                    if count is None:
                        return await connection.read_response()
                    return await _read_all(connection, count)
                answers = await _read_all(connection, ahead + (count or 1) + is_waited)
        except (exceptions.NoScriptError, *REDIRECTIONS):
            raise
        except _REFUSALS as error:
            raise JournalUnavailable(f"Redis: {error}") from error
        except exceptions.ResponseError as error:
            if str(error).startswith(_REFUSAL_CODES):
                raise JournalUnavailable(f"Redis: {error}") from error
            raise _failure(is_unknown, error) from error
        except (exceptions.RedisError, OSError, TimeoutError) as error:
            raise _failure(is_unknown, error) from error
        answer = answers[ahead]
        if is_waited and answers[-1] < self._replicas:
            self._may_be_short = True
            raise TooFewReplicas(answer, answers[-1], self._replicas)
        return answer

    async def _drop_former_primary(self) -> None:
        connection = self._connection
        if connection is None or await self._server.is_current(connection):
            return
        async with self._turn:
            if self._connection is connection:
                self._connection = None
                await connection.disconnect(nowait=True)

    async def _check_settings(self) -> None:
        """Read the server's settings every CHECK_S: they may be changed while it runs.

        Below the requested durability, the connection is dropped. The next command then fails with
        the reason. Raises JournalUnavailable, DurabilityTooLow.
        """
        now = time.monotonic()
        if now < self._checked_at + CHECK_S:
            return
        try:
            async with asyncio.timeout(self._timeout_s), self._turn:
                connection = self._connection
                if connection is None:
                    return
                try:
                    self.durability = await read_level(partial(_ask, connection), self._required)
                except exceptions.ResponseError:
                    pass  # it refuses CONFIG GET: what was found at the connect stays
                except BaseException:
                    self._connection = None
                    await connection.disconnect(nowait=True)
                    raise
        except (exceptions.RedisError, OSError, TimeoutError) as error:
            raise JournalUnavailable(f"Redis: {error}") from error
        self._checked_at = now

    async def _connected(self) -> Connection:
        if self._connection is not None and await _is_broken(self._connection):
            await self._connection.disconnect(nowait=True)
            self._connection = None
        if self._connection is None and self._is_pinned and self._was_connected:
            raise ServerLost
        if self._connection is None:
            connection = self._server.make_connection()
            try:
                await connection.connect()  # type: ignore[no-untyped-call]
                self.durability = await check_server(
                    lambda *command: _ask(connection, *command),
                    self._required,
                    self._server.is_node,
                )
            except BaseException:
                await connection.disconnect(nowait=True)
                raise
            self._connection, self._was_connected = connection, True
            self._may_be_short = True
        return self._connection


async def _read_all(connection: Connection, count: int) -> list[Any]:
    """Read `count` answers; then raise the first error among them."""
    answers: list[Any] = []
    first_error: exceptions.ResponseError | None = None
    for _ in range(count):
        try:
            answers.append(await connection.read_response())
        except exceptions.ResponseError as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
    return answers


def _failure(is_unknown: bool, error: Exception) -> Exception:
    reason = f"Redis: {str(error) or 'no answer in time'}"
    return OutcomeUnknown(reason) if is_unknown else JournalUnavailable(reason)


async def _is_broken(connection: Connection) -> bool:
    """Has the server closed the connection? Then there is something to read."""
    try:
        return not connection.is_connected or await connection.can_read()
    except exceptions.RedisError:
        return True


async def _ask(connection: Connection, *command: Argument) -> Any:
    packed = [b"*%d\r\n" % len(command), *pack(command)]
    await connection.send_packed_command(packed, check_health=False)
    return await connection.read_response()
