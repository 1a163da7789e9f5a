"""Lines to the nodes of a Redis Cluster: each command goes to the owner of its key's slot.

Where the slots are is found out by redis-py's cluster client, which sends nothing else. A node
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
from dualstream.service.journal.redis.address import Address, Where
from dualstream.service.journal.redis.connection import REDIRECTIONS, Line, ServerLost
from dualstream.service.journal.redis.scripts import Argument, Script
from dualstream.service.journal.redis.servers import FINDING_S, Standing

SLOTS = 1 << 14
# The nodes are not asked more often than this where the slots are.
REFRESH_S = 0.1
FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.1


class Topology:
    """Which primary owns a slot, as far as is known; shared by all lines of a process."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._client: RedisCluster | None = None
        # Slots that were moved since all were looked at.
        self._moved: dict[int, Where] = {}
        self._is_suspect = True
        self._looked_at = float("-inf")
        self._turn = asyncio.Lock()

    async def owner(self, slot: int) -> Where:
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

    async def primaries(self) -> list[Where]:
        """All that own slots. Raises JournalUnavailable where a slot has no owner."""
        if self._is_suspect or self._moved:
            await self.look()
        assert self._client is not None
        manager = self._client.nodes_manager
        if len(manager.slots_cache) < SLOTS:
            served = len(manager.slots_cache)
            raise JournalUnavailable(f"Redis: {served} of {SLOTS} slots of the Cluster are served")
        return [_where(node) for node in manager.get_nodes_by_server_type("primary")]

    def moved(self, slot: int, where: Where) -> None:
        """The node that was asked says where the slot is."""
        self._moved[slot] = where

    def suspect(self) -> None:
        """A node that should own a slot does not answer: look anew before the next command."""
        self._is_suspect = True

    async def look(self) -> None:
        """Ask some node where all slots are. Raises JournalUnavailable where none was ever found.

        Where none answers now, what was known before has to do.
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


class Lines:
    """As a `Line`, but each command has a key first, or a list of them, which says where it goes.

    Each node has a line of its own, so that one that hangs keeps no other waiting.
    """

    def __init__(
        self,
        address: Address,
        topology: Topology,
        asked: str | None,
        replicas: int,
        timeout_s: float,
        stays: bool = False,
    ) -> None:
        self._address = address
        self._topology = topology
        self._asked, self._replicas = asked, replicas
        self._timeout_s = timeout_s
        self._stays = stays
        self._lines: dict[Where, Line] = {}
        # With `stays`: the nodes that slots were first written to.
        self._places: dict[int, Where] = {}

    def open(self) -> None:
        for line in self._lines.values():
            line.open()

    async def close(self) -> None:
        for line in self._lines.values():
            await line.close()
        await self._topology.close()

    @property
    def durability(self) -> str:
        """The least that any node keeps."""
        levels = {line.durability for line in self._lines.values()}
        return min(levels, key=REDIS_LEVELS.index, default="memory")

    async def ping(self) -> None:
        """Return when every slot has an owner that answers and is as durable as was asked for.

        Raises JournalUnavailable.
        """
        lines = [self._line(where) for where in await self._topology.primaries()]
        try:
            await asyncio.gather(*(line.ping() for line in lines))
        except JournalUnavailable:
            self._topology.suspect()
            raise
        for slot in self._places:
            self._check_stays(slot, await self._topology.owner(slot))

    async def settle(self) -> None:
        """As `Line.settle`, of every node that owns slots."""
        lines = [self._line(where) for where in await self._topology.primaries()]
        await asyncio.gather(*(line.settle() for line in lines))

    def _check_stays(self, slot: int, where: Where) -> None:
        """Raise ServerLost where the slot was another node's before."""
        if self._stays and self._places.setdefault(slot, where) != where:
            raise ServerLost

    async def run(
        self,
        script: Script,
        keys: Sequence[Argument],
        arguments: Sequence[Argument],
        is_read: bool = False,
    ) -> Any:
        """As `Line.run`; the keys are of one slot."""
        return await self._send(
            keys[0],
            lambda line, is_asking: line.run(script, keys, arguments, is_read, is_asking),
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
        """As `Line.run_packed`, with nothing `before` it: a slot on its way may split the two."""
        assert not before
        return await self._send(
            key,
            lambda line, is_asking: line.run_packed(key, script, count, packed, is_read, is_asking),
        )

    async def call(self, *command: Argument, is_read: bool = False) -> Any:
        """As `Line.call`, for commands whose first argument is their only key."""
        return await self._send(
            command[1],
            lambda line, is_asking: line.call(*command, is_read=is_read, is_asking=is_asking),
        )

    async def call_many(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """As `Line.call_many`, one batch for each node.

        Those whose node is away are answered by the JournalUnavailable that says so.
        """
        places: dict[Where, list[int]] = defaultdict(list)
        answers: list[Any] = [None] * len(commands)
        for number, command in enumerate(commands):
            try:
                places[await self._topology.owner(_slot(command[1]))].append(number)
            except JournalUnavailable as error:
                answers[number] = error

        async def ask(where: Where, numbers: list[int]) -> None:
            try:
                found = await self._line(where).call_many([commands[at] for at in numbers])
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
        """As `Line.listen`; a Cluster passes messages on to all of its nodes."""
        where = await self._topology.owner(_slot(channel))
        line = self._line(where)
        try:
            async with aclosing(line.listen(channel)) as messages:
                async for message in messages:
                    yield message
        except JournalUnavailable:
            self._topology.suspect()
            raise

    async def _send(self, key: Argument, send: Callable[[Line, bool], Awaitable[Any]]) -> Any:
        """Send it to the owner of the key's slot, wherever that is.

        Raises JournalUnavailable, and what the line raises.
        """
        slot = _slot(key)
        until = time.monotonic() + self._timeout_s
        pause = FIRST_PAUSE_S
        asking: Where | None = None
        while True:
            where = asking or await self._topology.owner(slot)
            self._check_stays(slot, where)
            try:
                return await send(self._line(where), asking is not None)
            except MovedError as moved:
                asking = None
                self._topology.moved(slot, _told(moved, where))
                reason: Exception = moved
            except AskError as ask:  # this one command only, while the slot is on its way
                asking = _told(ask, where)
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

    def _line(self, where: Where) -> Line:
        line = self._lines.get(where)
        if line is None:
            server = Standing(self._address, where, self._timeout_s, is_node=True)
            line = self._lines[where] = Line(
                server, self._asked, self._replicas, self._timeout_s, self._stays
            )
        return line


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


def _where(node: ClusterNode) -> Where:
    return node.host, int(node.port)


def _told(redirection: AskError, asked: Where) -> Where:
    """Where a node says that a slot is; without a name it means its own host."""
    return redirection.host or asked[0], redirection.port
