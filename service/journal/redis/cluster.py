"""Redis Cluster: one connection per node; each command goes to the owner of its key's slot.

redis-py's cluster client finds out where the slots are, and sends nothing else. A node that does
not own a slot answers with an error and does nothing; the command is then sent to the owner. A
command whose connection broke is not sent again here: the caller repeats it with its nonce.
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
from redis.exceptions import AskError, MovedError, RedisClusterException, RedisError, TryAgainError

from dualstream.service.journal.durability_levels import REDIS_LEVELS
from dualstream.service.journal.protocol import DurabilityTooLow, JournalUnavailable, OutcomeUnknown
from dualstream.service.journal.redis.address import Address, HostPort
from dualstream.service.journal.redis.connection import REDIRECTIONS, RedisConnection, ServerLost
from dualstream.service.journal.redis.scripts import Argument, Script
from dualstream.service.journal.redis.servers import FINDING_S, FixedServer, Server

SLOTS = 1 << 14
# Minimum time between two requests for the slot map.
REFRESH_S = 0.1
FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.1


class Topology:
    """Slot map: which primary owns a slot. Shared by all connections of a process."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._client: RedisCluster | None = None
        # Slots that were moved since the last complete map.
        self._moved: dict[int, HostPort] = {}
        self._is_suspect = True
        self._looked_at = float("-inf")
        self._turn = asyncio.Lock()

    async def owner(self, slot: int) -> HostPort:
        """Owner of a slot. Raises JournalUnavailable if none is known."""
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
        """All primaries that own slots. Raises JournalUnavailable if a slot has no owner."""
        if self._is_suspect or self._moved:
            await self.look()
        assert self._client is not None
        manager = self._client.nodes_manager
        if len(manager.slots_cache) < SLOTS:
            served = len(manager.slots_cache)
            raise JournalUnavailable(f"Redis: the Cluster serves {served} of {SLOTS} slots")
        return [_where(node) for node in manager.get_nodes_by_server_type("primary")]

    def moved(self, slot: int, where: HostPort) -> None:
        """Record a redirection to another node."""
        self._moved[slot] = where

    def suspect(self) -> None:
        """A slot's owner does not answer: refresh the map before the next command."""
        self._is_suspect = True

    async def look(self) -> None:
        """Refresh the slot map. Raises JournalUnavailable if there has never been one.

        If no node answers, the last map stays in use.
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
        """Ask the nodes of the last map, or if none answers, those of the address."""
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
    """As `RedisConnection`, but each command has its key, or a list of keys, first.

    Each node has a connection of its own, so a node that hangs does not delay the others.
    """

    def __init__(
        self,
        address: Address,
        topology: Topology,
        connect: Callable[[Server], RedisConnection],
        timeout_s: float,
        is_pinned: bool = False,
    ) -> None:
        self._address = address
        self._topology = topology
        self._connect = connect
        self._timeout_s = timeout_s
        self._is_pinned = is_pinned
        self._connections: dict[HostPort, RedisConnection] = {}
        # With `is_pinned`: the node to which each slot was first written.
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
        """The lowest level of all nodes."""
        levels = {connection.durability for connection in self._connections.values()}
        return min(levels, key=REDIS_LEVELS.index, default="memory")

    async def ping(self) -> None:
        """Return if every slot has an owner that answers and has the requested durability.

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
        """As `RedisConnection.settle`, for every node that owns slots."""
        connections = [self._connection(where) for where in await self._topology.primaries()]
        await asyncio.gather(*(connection.settle() for connection in connections))

    def _check_pinned(self, slot: int, where: HostPort) -> None:
        """Raise ServerLost if the slot had another owner before."""
        if self._is_pinned and self._pinned.setdefault(slot, where) != where:
            raise ServerLost

    async def run_packed(
        self,
        key: Argument,
        script: Script,
        count: int,
        packed: list[bytes],
        is_read: bool = False,
        before: Sequence[bytes] = (),
    ) -> Any:
        """As `RedisConnection.run_packed`, without `before`: a moving slot could split the two."""
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
        """As `RedisConnection.call_many`, one batch per node.

        Commands to an unavailable node have JournalUnavailable as their answer.
        """
        numbers_by_server: dict[HostPort, list[int]] = defaultdict(list)
        answers: list[Any] = [None] * len(commands)
        for number, command in enumerate(commands):
            try:
                numbers_by_server[await self._topology.owner(_slot(command[1]))].append(number)
            except JournalUnavailable as error:
                answers[number] = error

        async def ask(where: HostPort, numbers: list[int]) -> None:
            try:
                batch = await self._connection(where).call_many([commands[at] for at in numbers])
            except (JournalUnavailable, *REDIRECTIONS) as error:
                batch = await self._one_by_one([commands[at] for at in numbers], error)
            for at, answer in zip(numbers, batch, strict=True):
                answers[at] = answer

        await asyncio.gather(*(ask(where, numbers) for where, numbers in numbers_by_server.items()))
        return answers

    async def _one_by_one(
        self, commands: Sequence[Sequence[Argument]], error: Exception
    ) -> list[Any]:
        """Answers to the commands of a batch in which one was redirected, or whose node is away."""
        answers: list[Any] = []
        for command in commands:
            if isinstance(error, JournalUnavailable) and answers and answers[-1] is error:
                answers.append(error)  # the same node: do not wait for it again
                continue
            try:
                answers.append(await self.call(*command, is_read=True))
            except JournalUnavailable as refusal:
                error = refusal
                answers.append(refusal)
        return answers

    async def listen(self, channel: str) -> AsyncGenerator[bytes | None, None]:
        """As `RedisConnection.listen`; a Cluster forwards messages to all of its nodes."""
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
        """Send a command to the owner of the key's slot; follow redirections.

        Raises JournalUnavailable, and the exceptions of the connection.
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
            except AskError as ask:  # for this command only, while the slot is being moved
                asking = _redirected_to(ask, where)
                reason = ask
            except TryAgainError as error:  # the keys are split between two nodes
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
            connection = self._connections[where] = self._connect(server)
        return connection


def _client(address: Address) -> RedisCluster:
    """redis-py's cluster client, used only for the slot map."""
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


def _redirected_to(redirection: AskError, node: HostPort) -> HostPort:
    """Target of a redirection; without a host it means the host that answered."""
    return redirection.host or node[0], redirection.port
