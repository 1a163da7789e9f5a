"""One connection to Redis on which each command is sent once, whatever happens.

redis-py's clients repeat a command when the connection breaks, and an append that is sent twice
is learned twice. So there is no client here, only its connection, with no retries.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from redis.asyncio import Connection
from redis.exceptions import (
    AskError,
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
    TryAgainError,
)

from dualstream.service.journal.protocol import JournalUnavailable, NotReplicated, OutcomeUnknown
from dualstream.service.journal.redis.scripts import Argument, Script, pack
from dualstream.service.journal.redis.server_checks import (
    check_replicas,
    check_server,
    replicas_of,
)
from dualstream.service.journal.redis.servers import Server

REPLICAS_MS = 1000
"""How long an append waits for the replicas to have it."""

SETTLED_S = 30.0
"""How long replicas may take for all that a restore has written last."""

REDIRECTIONS = (AskError, TryAgainError)
"""What a node of a Cluster answers, having done nothing, where a slot was or is moved."""

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
_ASKING = (b"*1\r\n", *pack(("ASKING",)))


class ServerLost(JournalUnavailable):
    """The server that was written to is out of reach; another one may lack what it was sent."""

    def __init__(self) -> None:
        super().__init__(
            "Redis: the server that was written to is out of reach, and what takes its place may "
            "lack the last of it: run this again"
        )


class TooFewReplicas(NotReplicated):
    """A write was done, and too few replicas said in time that they have it."""

    def __init__(self, answer: Any, found: int, replicas: int) -> None:
        super().__init__(
            f"journalled, not replicated: {found} of {replicas} replicas had it in {REPLICAS_MS} ms"
        )
        self.answer = answer


class RedisConnection:
    """Commands one after the other on one connection, made anew after it broke.

    asked       the least that the server's disk must keep, or None
    replicas    so many replicas must have each write
    timeout_s   for one command, waiting for its turn and connecting included
    is_pinned       one connection alone: once it broke, all is ServerLost
    """

    def __init__(
        self,
        server: Server,
        asked: str | None,
        replicas: int,
        timeout_s: float,
        is_pinned: bool = False,
    ) -> None:
        self._server = server
        self._asked = asked
        self._replicas = replicas
        self._wait = [b"*3\r\n", *pack(("WAIT", replicas, REPLICAS_MS))]
        # After a write that too few replicas had, none is sent until there are enough of them.
        self._may_be_short = True
        self._timeout_s = timeout_s
        self._is_pinned, self._was_connected = is_pinned, False
        self._replicas_seen = 0
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
        await self._server.close()

    async def ping(self) -> None:
        """Return when the server answers, keeps what was asked for and has its replicas.

        Leaves one that is no longer the primary. Raises JournalUnavailable.
        """
        await self._drop_former_primary()
        await self._call([b"*1\r\n", *pack(("PING",))], is_read=True)
        if self._replicas or self._is_pinned:
            info = await self._call([b"*2\r\n", *pack(("INFO", "replication"))], is_read=True)
            self._replicas_seen = max(self._replicas_seen, replicas_of(info))
        if self._replicas:
            self._may_be_short = True
            check_replicas(info, self._replicas)
            self._may_be_short = False

    async def settle(self) -> None:
        """Return once every replica that follows has all that the server had when this was called.

        As many as followed when it was pinged: where they have left it, another server may have
        taken over, which not every Sentinel has to know yet.

        Raises JournalUnavailable; NotReplicated where one does not say so in time.
        """
        # It waits for what stood in the server's log at the command before it on its connection.
        info = await self.call("INFO", "replication", is_read=True)
        count = max(self._replicas_seen, replicas_of(info))
        found = 0
        until = asyncio.get_running_loop().time() + SETTLED_S
        while count and asyncio.get_running_loop().time() < until:
            found = await self.call("WAIT", count, REPLICAS_MS, is_read=True)
            if found >= count:
                return
        if count:
            raise NotReplicated(
                f"written, not replicated: {found} of {count} replicas had it in {SETTLED_S:g} s; "
                "run this again, it ends once they all have it"
            )

    async def run(
        self,
        script: Script,
        keys: Sequence[Argument],
        arguments: Sequence[Argument],
        is_read: bool = False,
        is_asking: bool = False,
    ) -> Any:
        """The answer of a script.

        Raises JournalUnavailable (nothing was done), and unless `is_read` OutcomeUnknown and
        TooFewReplicas.
        """
        count = 1 + len(keys) + len(arguments)
        packed = pack((len(keys), *keys, *arguments))
        return await self.run_packed(b"", script, count, packed, is_read, is_asking)

    async def run_packed(
        self,
        key: bytes,
        script: Script,
        count: int,
        packed: list[bytes],
        is_read: bool = False,
        is_asking: bool = False,
        before: Sequence[bytes] = (),
    ) -> Any:
        """`run` for `count` packed arguments: the number of keys, the keys, the arguments.

        `key` is one of the keys, which in a Cluster says whose they are. The script is sent by its
        digest, and as a text only where Redis does not have it. `before` is a packed command that
        is sent with it, in front of it; its answer counts only where it is an error.
        """
        try:
            digest = [b"*%d\r\n" % (2 + count), *script.packed_digest, *packed]
            return await self._call(digest, is_read, is_asking, before=before)
        except NoScriptError:
            text = [b"*%d\r\n" % (2 + count), *script.packed_text, *packed]
            return await self._call(text, is_read, is_asking, before=before)

    async def call(self, *command: Argument, is_read: bool = False, is_asking: bool = False) -> Any:
        """The answer to a command.

        Raises JournalUnavailable (nothing was done), and unless `is_read` OutcomeUnknown and
        TooFewReplicas.
        """
        return await self._call([b"*%d\r\n" % len(command), *pack(command)], is_read, is_asking)

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
        except (RedisError, OSError, TimeoutError) as error:
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
        """The answer to one packed command, or the list of those to `count` of them."""
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
        except (NoScriptError, *REDIRECTIONS):
            raise
        except _REFUSALS as error:
            raise JournalUnavailable(f"Redis: {error}") from error
        except ResponseError as error:
            if str(error).startswith(_REFUSAL_CODES):
                raise JournalUnavailable(f"Redis: {error}") from error
            raise _failure(is_unknown, error) from error
        except (RedisError, OSError, TimeoutError) as error:
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

    async def _connected(self) -> Connection:
        if self._connection is not None and await _is_broken(self._connection):
            await self._connection.disconnect(nowait=True)
            self._connection = None
        if self._connection is None and self._is_pinned and self._was_connected:
            raise ServerLost
        if self._connection is None:
            made = self._server.make_connection()
            try:
                await made.connect()  # type: ignore[no-untyped-call]
                self.durability = await check_server(
                    lambda *command: _ask(made, *command), self._asked, self._server.is_node
                )
            except BaseException:
                await made.disconnect(nowait=True)
                raise
            self._connection, self._was_connected = made, True
            self._may_be_short = True
        return self._connection


async def _read_all(connection: Connection, count: int) -> list[Any]:
    """The next answers; the first error among them is raised once all are read."""
    answers: list[Any] = []
    wrong: ResponseError | None = None
    for _ in range(count):
        try:
            answers.append(await connection.read_response())
        except ResponseError as error:
            wrong = wrong or error
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


async def _ask(connection: Connection, *command: Argument) -> Any:
    packed = [b"*%d\r\n" % len(command), *pack(command)]
    await connection.send_packed_command(packed, check_health=False)
    return await connection.read_response()
