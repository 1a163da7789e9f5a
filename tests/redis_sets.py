"""Redis Sentinel and Redis Cluster for tests: primaries, replicas and failover.

All servers are on loopback and free ports, and removed afterwards. Timeouts are short, so that a
failover takes about three seconds.
"""

import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis
from redis.crc import key_slot

from tests.redis_server import NoRedis, RedisServer, _program

SERVICE = "main"
DOWN_AFTER_MS = 1000
NODE_TIMEOUT_MS = 800
FORMING_MS = 15_000
SLOTS = 1 << 14
PATIENCE_S = 120.0
T = TypeVar("T", bound=RedisServer)


class SentinelServer(RedisServer):
    """A Sentinel that watches the primary at `port_of_primary`."""

    def __init__(self, directory: str, port_of_primary: int, down_after_ms: int) -> None:
        super().__init__(directory)
        self.options = {}
        lines = [
            f"sentinel monitor {SERVICE} 127.0.0.1 {port_of_primary} 2",
            f"sentinel down-after-milliseconds {SERVICE} {down_after_ms}",
            f"sentinel failover-timeout {SERVICE} 3000",
            f"sentinel parallel-syncs {SERVICE} 2",
        ]
        Path(directory, "sentinel.conf").write_text("\n".join(lines) + "\n")

    def _first_arguments(self) -> list[str]:
        return [f"{self.directory}/sentinel.conf", "--sentinel"]


class RedisSet:
    """Servers by port."""

    def __init__(self, servers: list[RedisServer]) -> None:
        self.servers = servers

    def by_port(self, port: int) -> RedisServer:
        return next(server for server in self.servers if server.port == port)

    def ask(self, server: RedisServer, *command: Any) -> Any:
        """The answer of one server. Raises redis.RedisError."""
        with redis.Redis(port=server.port, socket_timeout=5, protocol=2) as client:
            return client.execute_command(*command)

    def info(self, server: RedisServer) -> dict[str, Any]:
        """A server's replication info; empty while it does not answer."""
        try:
            result: dict[str, Any] = self.ask(server, "INFO", "replication")
        except redis.RedisError:
            return {}
        return result

    def stand(self) -> str:
        """Replication state of each server, a line each."""
        return "\n".join(["", *(f"{one.port}: {self.info(one)}" for one in self.servers)])

    def is_followed(self, server: RedisServer, replicas: int) -> bool:
        """Is it a primary with `replicas` replicas in sync?"""
        info = self.info(server)
        followed = [
            got for name, got in info.items() if name.startswith("slave") and isinstance(got, dict)
        ]
        online = [got for got in followed if got["state"] == "online"]
        return info.get("role") == "master" and len(online) >= replicas


class SentinelSet(RedisSet):
    """One primary, its replicas, and three Sentinels."""

    def __init__(self, servers: list[RedisServer], sentinels: list[SentinelServer]) -> None:
        super().__init__(servers)
        self.sentinels = sentinels

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}"

    def primary(self) -> RedisServer:
        """The primary according to most Sentinels: one may be stuck waiting for a dead server."""
        ((port, _),) = Counter(self._named()).most_common(1)
        return self.by_port(port)

    def _named(self) -> list[int]:
        """The primary's port according to each Sentinel."""
        request = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
        return [int(self.ask(sentinel, *request)[1]) for sentinel in self.sentinels]

    def stand(self) -> str:
        """State of each server and each Sentinel, a line each."""
        lines = [super().stand()]
        for sentinel in self.sentinels:
            lines.append(f"{sentinel.port}: {self.ask(sentinel, 'INFO', 'sentinel')['master0']}")
        return "\n".join(lines)

    def agree(self) -> bool:
        """Do all Sentinels know each other, all replicas, and the same primary?

        A Sentinel that lags starts a failover of its own if the primary is killed at that time.
        """
        try:
            named = set(self._named())
            states = [self.ask(one, "INFO", "sentinel")["master0"] for one in self.sentinels]
        except redis.RedisError:  # a busy one
            return False
        for state in states:
            named.add(int(state["address"].rpartition(":")[2]))
            if (state["slaves"], state["sentinels"]) != (len(self.servers) - 1, 3):
                return False
        return len(named) == 1


class ClusterSet(RedisSet):
    """Primaries first, then a replica of each."""

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:3])
        return f"redis+cluster://{hosts}"

    def owner(self, key: str) -> RedisServer:
        """The primary of the key's slot, according to a server that answers."""
        slot = key_slot(key.encode())
        for first, last, *nodes in self._slots():
            if first <= slot <= last:
                return self.by_port(int(nodes[0][1]))
        raise AssertionError(f"no server owns slot {slot}")

    def id_of(self, server: RedisServer) -> str:
        result = self.ask(server, "CLUSTER", "MYID")
        return result.decode() if isinstance(result, bytes) else str(result)

    def is_whole(self) -> bool:
        """Do all that answer see every slot served, and a replica of each primary?"""
        for server in self.servers:
            try:
                info = self.ask(server, "CLUSTER INFO")
            except redis.RedisError:
                continue
            if info["cluster_state"] != "ok" or info["cluster_known_nodes"] != str(
                len(self.servers)
            ):
                return False
        return True

    def set_node_timeout(self, node_timeout_ms: int) -> None:
        """Time without an answer after which a primary is replaced."""
        for server in self.servers:
            self.ask(server, "CONFIG", "SET", "cluster-node-timeout", node_timeout_ms)
            server.options["cluster-node-timeout"] = str(node_timeout_ms)

    def move_slot(self, slot: int, target: RedisServer, steps: Callable[[], None]) -> None:
        """Move a slot key by key, as redis-cli does; `steps` is called between the steps."""
        source = next(
            self.by_port(int(nodes[0][1]))
            for first, last, *nodes in self._slots()
            if first <= slot <= last
        )
        its_id, target_id = self.id_of(source), self.id_of(target)
        self.ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", its_id)
        self.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", target_id)
        steps()
        while keys := self.ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 1):
            self.ask(source, "MIGRATE", "127.0.0.1", target.port, keys[0], 0, 5000)
            steps()
        for server in (target, source):
            self.ask(server, "CLUSTER", "SETSLOT", slot, "NODE", target_id)

    def _slots(self) -> list[Any]:
        for server in self.servers:
            try:
                result: list[Any] = self.ask(server, "CLUSTER", "SLOTS")
                return result
            except redis.RedisError:
                continue
        raise AssertionError("no node answers")


def until(reached: Callable[[], bool], what: str, stand: Callable[[], object] = lambda: "") -> None:
    """Wait for a condition; on timeout the error has the output of `stand`."""
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S} s for {what}: {stand()}"
        time.sleep(0.02)


@contextmanager
def sentinels_or_skip(down_after_ms: int = DOWN_AFTER_MS, **options: str) -> Iterator[SentinelSet]:
    """One primary, two replicas, three Sentinels that agree on it.

    A primary that a busy machine keeps from answering for `down_after_ms` is replaced.
    """
    options |= {"repl-diskless-sync-delay": "0"}
    with ExitStack() as running:
        primary = _started(running, RedisServer(_directory(running), **options))
        follow = options | {"replicaof": f"127.0.0.1 {primary.port}"}
        replicas = [_started(running, RedisServer(_directory(running), **follow)) for _ in range(2)]
        sentinels = [
            _started(running, SentinelServer(_directory(running), primary.port, down_after_ms))
            for _ in range(3)
        ]
        result = SentinelSet([primary, *replicas], sentinels)
        until(lambda: result.is_followed(primary, 2), "two replicas")
        until(result.agree, "the Sentinels to find each other")
        yield result


@contextmanager
def cluster_or_skip(
    replicas: bool = True, node_timeout_ms: int = NODE_TIMEOUT_MS, **options: str
) -> Iterator[ClusterSet]:
    """Three primaries that serve all slots, with a replica each if wanted.

    A primary that a busy machine keeps from answering for `node_timeout_ms` is replaced.
    """
    # On a busy machine nodes take time to find each other.
    options |= {"cluster-enabled": "yes", "cluster-node-timeout": str(FORMING_MS)}
    options |= {"repl-diskless-sync-delay": "0"}
    with ExitStack() as running:
        count = 6 if replicas else 3
        servers = [
            _started(running, RedisServer(_directory(running), **options)) for _ in range(count)
        ]
        result = ClusterSet(servers)
        primaries = servers[:3]
        for number, server in enumerate(servers):
            result.ask(server, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number:
                result.ask(server, "CLUSTER", "MEET", "127.0.0.1", servers[0].port)
        bounds = [round(number * SLOTS / 3) for number in range(4)]
        for server, first, after in zip(primaries, bounds, bounds[1:], strict=False):
            result.ask(server, "CLUSTER", "ADDSLOTSRANGE", first, after - 1)
        until(result.is_whole, "the nodes to know each other")
        for server, primary in zip(servers[3:], primaries, strict=replicas):
            its_id = result.id_of(primary)
            until(
                lambda s=server, i=its_id: _replicates(result, s, i),
                "a replica to know its primary",
            )
        until(
            lambda: all(result.is_followed(server, int(replicas)) for server in primaries),
            "replicas",
        )
        result.set_node_timeout(node_timeout_ms)
        yield result


def _replicates(cluster: ClusterSet, server: RedisServer, its_id: str) -> bool:
    try:
        cluster.ask(server, "CLUSTER", "REPLICATE", its_id)
    except redis.ResponseError:
        return False
    return True


def _directory(running: ExitStack) -> str:
    return running.enter_context(tempfile.TemporaryDirectory(prefix="dualstream-redis-"))


def _started(running: ExitStack, server: T) -> T:
    try:
        _program()
    except NoRedis as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    server.start()
    running.callback(server.kill)
    return server
