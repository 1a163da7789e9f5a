"""Connections to one server: the one of an address, or the one that is primary just now."""

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
"""How long one Sentinel, or one node of a Cluster, is asked before another one is."""


class Server(Protocol):
    """HostPort a line leads to."""

    is_node: bool
    """Of a Cluster."""

    def make_connection(self) -> Connection:
        """A connection that is not connected yet, and sends nothing twice."""

    async def is_current(self, connection: Connection) -> bool:
        """Whether a new connection would lead to the same server, as far as that can be told."""

    async def close(self) -> None:
        """Let go of what was needed to find the server."""


class FixedServer:
    """A server that stays where it is."""

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
    """The primary of a service that Sentinels watch; each connect asks them where it is."""

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
        """A primary that was parted from its Sentinels may go on, alone and overtaken."""
        try:
            where = await self._sentinel.discover_master(self._service)
        except RedisError:
            return True  # they know of no other
        return bool(where == (connection.host, connection.port))

    async def close(self) -> None:
        await self._sentinel.aclose()


def connection_options(address: Address, connect_s: float) -> dict[str, Any]:
    """Of a connection on which nothing is sent twice.

    Protocol 2: its answers are read by the smaller parser, and no push can come between.
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
