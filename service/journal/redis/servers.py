"""Connections to a fixed Redis server, or to the current primary behind Sentinels."""

from typing import Any, Protocol

from redis.asyncio import Connection, ConnectionPool, SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    Sentinel,
    SentinelConnectionPool,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from dualstream.service.journal.redis.address import Address, HostPort

FINDING_S = 1.0
"""Timeout for one Sentinel, or one Cluster node, before the next one is asked."""


class Server(Protocol):
    """Target of a connection."""

    is_node: bool
    """Is it a node of a Cluster?"""

    def make_connection(self) -> Connection:
        """A connection, not connected yet, that never retries."""

    async def is_current(self, connection: Connection) -> bool:
        """Would a new connection lead to the same server? True if unknown."""

    async def close(self) -> None:
        """Close the connections used to find the server."""


class FixedServer:
    """A server at a fixed address."""

    def __init__(
        self, address: Address, where: HostPort, timeout_s: float, is_node: bool = False
    ) -> None:
        self.is_node = is_node
        kind = SSLConnection if address.is_tls else Connection
        host, port = where
        self._pool = ConnectionPool(
            kind, host=host, port=port, **connection_options(address, timeout_s)
        )

    def make_connection(self) -> Connection:
        made: Connection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        return made

    async def is_current(self, connection: Connection) -> bool:
        return True

    async def close(self) -> None:
        pass


class SentinelPrimary:
    """Current primary of a service behind Sentinels; each connect asks them for it."""

    is_node = False

    def __init__(self, address: Address, timeout_s: float) -> None:
        tls = {"ssl": True} if address.is_tls else {}
        brief = {"socket_timeout": FINDING_S, "socket_connect_timeout": FINDING_S, "protocol": 2}
        self._service = address.service
        self._sentinel = Sentinel(  # type: ignore[no-untyped-call]
            list(address.hosts),
            sentinel_kwargs=address.of_sentinels | tls | brief | {"retry": _never()},
        )
        self._pool = SentinelConnectionPool(  # type: ignore[no-untyped-call]
            address.service,
            self._sentinel,
            connection_class=(
                SentinelManagedSSLConnection if address.is_tls else SentinelManagedConnection
            ),
            **connection_options(address, timeout_s),
        )

    def make_connection(self) -> Connection:
        made: Connection = self._pool.make_connection()  # type: ignore[no-untyped-call]
        return made

    async def is_current(self, connection: Connection) -> bool:
        """A primary that lost contact with its Sentinels may run on after its replacement."""
        try:
            where = await self._sentinel.discover_master(self._service)
        except RedisError:
            return True  # they do not know another one
        return bool(where == (connection.host, connection.port))

    async def close(self) -> None:
        await self._sentinel.aclose()


def connection_options(address: Address, connect_s: float) -> dict[str, Any]:
    """redis-py options of a connection that never retries.

    Protocol 2: its parser is smaller, and no push messages can arrive between answers.
    """
    return address.options | {
        "protocol": 2,
        "retry": _never(),
        "socket_timeout": None,
        "socket_connect_timeout": connect_s,
        "health_check_interval": 0,
    }


def _never() -> Retry:
    return Retry(NoBackoff(), 0)
