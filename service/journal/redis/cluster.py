"""ClusterConnections to the nodes of a Redis Cluster: each command goes to the owner of its key's slot.

HostPort the slots are is found out by redis-py's cluster client, which sends nothing else. A node
that does not own a slot (any more), or not yet, says so and does nothing; the command is then sent
again where it belongs. One that broke off is not: whoever sent it repeats it with its nonce.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any

from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    MovedError,
    RedisClusterException,
    RedisError,
    TryAgainError,
)

from dualstream.service.journal.durability import REDIS_LEVELS
from dualstream.service.journal.protocol import (
    DurabilityTooLow,
    JournalUnavailable,
    OutcomeUnknown,
)
from dualstream.service.journal.redis.address import Address, HostPort
from dualstream.service.journal.redis.connection import REDIRECTIONS, RedisConnection, ServerLost
from dualstream.service.journal.redis.scripts import Argument, Script
from dualstream.service.journal.redis.servers import FINDING_S, FixedServer

SLOTS = 1 << 14
# The nodes are not asked more often than this where the slots are.
REFRESH_S = 0.1
FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.1


class Topology:
    """Which primary owns a slot, as far as is known; shared by all connections of a process."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._client: RedisCluster | None = None
        # Slots that were moved since all were looked at.
        self._moved: dict[int, HostPort] = {}
        self._is_suspect = True
        self._looked_at = float("-inf")
        self._turn = asyncio.Lock()

    async def owner(self, slot: int) -> HostPort:
        """Raises JournalUnavailable where nobody is known to own it."""
        if self._is_suspect:
            await self.look()
        moved = self._moved.get(slot)
        if moved is not None:
            return moved
        try:
            assert self._client is not None
            return _where(self._client.nodes_manager.get_node_from_slot(slot))
        except RedisClusterException as error:
            raise JournalUnavailable(f"Redis: {error}") from error

    async def primaries(self) -> list[HostPort]:
        """All that own slots. Raises JournalUnavailable where a slot has no owner."""
        if self._is_suspect or self._moved:
            await self.look()
        assert self._client is not None
        manager = self._client.nodes_manager
        if len(manager.slots_cache) < SLOTS:
            served = len(manager.slots_cache)
            raise JournalUnavailable(f"Redis: {served} of {SLOTS} slots of the Cluster are served")
        return [_where(node) for node in manager.get_nodes_by_server_type("primary")]

    def moved(self, slot: int, where: HostPort) -> None:
        """The node that was asked says where the slot is."""
        self._moved[slot] = where

    def suspect(self) -> None:
        """A node that should own a slot does not answer: look anew before the next command."""
        self._is_suspect = True

    async def look(self) -> None:
        """Ask some node where all slots are. Raises JournalUnavailable where none was ever found.

        HostPort none answers now, what was known before has to do.
        """
        async with self._turn:
            if time.monotonic() - self._looked_at < REFRESH_S:
                return
            try:
                await self._ask()
                self._moved.clear()
                self._is_suspect = False
            except (RedisError, RedisClusterException, OSError, TimeoutError) as error:
                if self._client is None:
                    raise JournalUnavailable(f"Redis: {error}") from error
            self._looked_at = time.monotonic()

    async def _ask(self) -> None:
        """Ask the nodes that were found last, and if none answers those of the address."""
        if self._client is not None:
            with suppress(RedisError, RedisClusterException, OSError, TimeoutError):
                return await self._client.nodes_manager.initialize()
        fresh = _client(self._address)
        try:
            await fresh.nodes_manager.initialize()
        except BaseException:
            await _close(fresh)
            raise
        old, self._client = self._client, fresh
        if old is not None:
            await _close(old)

    async def close(self) -> None:
        client, self._client = self._client, None
        self._is_suspect, self._looked_at = True, float("-inf")
        if client is not None:
            await _close(client)


class ClusterConnections:
    """As a `RedisConnection`, but each command has a key first, or a list of them, which says where it goes.

    Each node has a connection of its own, so that one that hangs keeps no other waiting.
    """

    def __init__(
        self,
        address: Address,
        topology: Topology,
        asked: str | None,
        replicas: int,
        timeout_s: float,
        is_pinned: bool = False,
    ) -> None:
        self._address = address
        self._topology = topology
        self._asked, self._replicas = asked, replicas
        self._timeout_s = timeout_s
        self._is_pinned = is_pinned
        self._connections: dict[HostPort, RedisConnection] = {}
        # With `is_pinned`: the nodes that slots were first written to.
        self._pinned: dict[int, HostPort] = {}

    def open(self) -> None:
        for connection in self._connections.values():
            connection.open()

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()
        await self._topology.close()

    @property
    def durability(self) -> str:
        """The least that any node keeps."""
        levels = {connection.durability for connection in self._connections.values()}
        return min(levels, key=REDIS_LEVELS.index, default="memory")

    async def ping(self) -> None:
        """Return when every slot has an owner that answers and is as durable as was asked for.

        Raises JournalUnavailable.
        """
        connections = [self._connection(where) for where in await self._topology.primaries()]
        try:
            await asyncio.gather(*(connection.ping() for connection in connections))
        except JournalUnavailable:
            self._topology.suspect()
            raise
        for slot in self._pinned:
            self._check_pinned(slot, await self._topology.owner(slot))

    async def settle(self) -> None:
        """As `RedisConnection.settle`, of every node that owns slots."""
        connections = [self._connection(where) for where in await self._topology.primaries()]
        await asyncio.gather(*(connection.settle() for connection in connections))

    def _check_pinned(self, slot: int, where: HostPort) -> None:
        """Raise ServerLost where the slot was another node's before."""
        if self._is_pinned and self._pinned.setdefault(slot, where) != where:
            raise ServerLost

    async def run(
        self,
        script: Script,
        keys: Sequence[Argument],
        arguments: Sequence[Argument],
        is_read: bool = False,
    ) -> Any:
        """As `RedisConnection.run`; the keys are of one slot."""
        return await self._send(
            keys[0],
            lambda connection, is_asking: connection.run(
                script, keys, arguments, is_read, is_asking
            ),
        )

    async def run_packed(
        self,
        key: bytes,
        script: Script,
        count: int,
        packed: list[bytes],
        is_read: bool = False,
        before: Sequence[bytes] = (),
    ) -> Any:
        """As `RedisConnection.run_packed`, with nothing `before` it: a slot on its way may split the two."""
        assert not before
        return await self._send(
            key,
            lambda connection, is_asking: connection.run_packed(
                key, script, count, packed, is_read, is_asking
            ),
        )

    async def call(self, *command: Argument, is_read: bool = False) -> Any:
        """As `RedisConnection.call`, for commands whose first argument is their only key."""
        return await self._send(
            command[1],
            lambda connection, is_asking: connection.call(
                *command, is_read=is_read, is_asking=is_asking
            ),
        )

    async def call_many(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """As `RedisConnection.call_many`, one batch for each node.

        Those whose node is away are answered by the JournalUnavailable that says so.
        """
        places: dict[HostPort, list[int]] = defaultdict(list)
        answers: list[Any] = [None] * len(commands)
        for number, command in enumerate(commands):
            try:
                places[await self._topology.owner(_slot(command[1]))].append(number)
            except JournalUnavailable as error:
                answers[number] = error

        async def ask(where: HostPort, numbers: list[int]) -> None:
            try:
                found = await self._connection(where).call_many([commands[at] for at in numbers])
            except (JournalUnavailable, *REDIRECTIONS) as error:
                found = await self._one_by_one([commands[at] for at in numbers], error)
            for at, answer in zip(numbers, found, strict=True):
                answers[at] = answer

        await asyncio.gather(*(ask(where, numbers) for where, numbers in places.items()))
        return answers

    async def _one_by_one(
        self, commands: Sequence[Sequence[Argument]], error: Exception
    ) -> list[Any]:
        """The answers to commands of which one was refused, or whose node has gone."""
        found: list[Any] = []
        for command in commands:
            if isinstance(error, JournalUnavailable) and found and found[-1] is error:
                found.append(error)  # nor does it answer the others
                continue
            try:
                found.append(await self.call(*command, is_read=True))
            except JournalUnavailable as refusal:
                error = refusal
                found.append(refusal)
        return found

    async def listen(self, channel: str) -> AsyncGenerator[bytes | None, None]:
        """As `RedisConnection.listen`; a Cluster passes messages on to all of its nodes."""
        where = await self._topology.owner(_slot(channel))
        connection = self._connection(where)
        try:
            async with aclosing(connection.listen(channel)) as messages:
                async for message in messages:
                    yield message
        except JournalUnavailable:
            self._topology.suspect()
            raise

    async def _send(
        self, key: Argument, send: Callable[[RedisConnection, bool], Awaitable[Any]]
    ) -> Any:
        """Send it to the owner of the key's slot, wherever that is.

        Raises JournalUnavailable, and what the connection raises.
        """
        slot = _slot(key)
        until = time.monotonic() + self._timeout_s
        pause = FIRST_PAUSE_S
        asking: HostPort | None = None
        while True:
            where = asking or await self._topology.owner(slot)
            self._check_pinned(slot, where)
            try:
                return await send(self._connection(where), asking is not None)
            except MovedError as moved:
                asking = None
                self._topology.moved(slot, _redirected_to(moved, where))
                reason: Exception = moved
            except AskError as ask:  # this one command only, while the slot is on its way
                asking = _redirected_to(ask, where)
                reason = ask
            except TryAgainError as error:  # some of the keys are there, and some here
                asking, reason = None, error
            except (DurabilityTooLow, ServerLost):
                raise
            except JournalUnavailable as away:
                self._topology.suspect()
                asking, reason = None, away
                if await self._topology.owner(slot) == where:
                    raise
            except OutcomeUnknown:
                self._topology.suspect()
                raise
            if time.monotonic() + pause > until:
                raise JournalUnavailable(f"Redis: slot {slot} is being moved: {reason}")
            if asking is None:
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)

    def _connection(self, where: HostPort) -> RedisConnection:
        connection = self._connections.get(where)
        if connection is None:
            server = FixedServer(self._address, where, self._timeout_s, is_node=True)
            connection = self._connections[where] = RedisConnection(
                server, self._asked, self._replicas, self._timeout_s, self._is_pinned
            )
        return connection


def _client(address: Address) -> RedisCluster:
    """redis-py's client, which is asked for the places of slots and for nothing else."""
    options = {name: value for name, value in address.options.items() if name != "db"}
    host, port = address.hosts[0]
    return RedisCluster(
        startup_nodes=[ClusterNode(*where) for where in address.hosts],
        require_full_coverage=False,
        retry=Retry(NoBackoff(), 0),
        ssl=address.is_tls,
        protocol=2,
        **options | {"socket_timeout": FINDING_S, "socket_connect_timeout": FINDING_S},
    )


async def _close(client: RedisCluster) -> None:
    await client.nodes_manager.aclose()
    await client.nodes_manager.aclose("startup_nodes")


def _slot(key: Argument) -> int:
    return key_slot(key if isinstance(key, bytes) else str(key).encode())


def _where(node: ClusterNode) -> HostPort:
    return node.host, int(node.port)


def _redirected_to(redirection: AskError, asked: HostPort) -> HostPort:
    """HostPort a node says that a slot is; without a name it means its own host."""
    return redirection.host or asked[0], redirection.port
