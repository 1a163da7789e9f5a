"""Failover of a primary that Sentinels watch: faults, and waiting for the new primary."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.redis_server import RedisServer
from tests.redis_sets import SentinelSet, until


def wait_for_another(sentinels: SentinelSet, former: RedisServer) -> None:
    """Wait until another server is primary and has replicas."""

    def has_taken_over() -> bool:
        primary = sentinels.primary()
        return primary is not former and sentinels.is_followed(primary, 1)

    until(has_taken_over, "another primary", sentinels.stand)


def bring_back(sentinels: SentinelSet, killed: RedisServer) -> None:
    """Wait for another primary, and restart the killed one as its replica."""
    wait_for_another(sentinels, killed)
    killed.options["replicaof"] = f"127.0.0.1 {sentinels.primary().port}"
    killed.start()
    # On a busy machine Sentinels may take a server for dead that only waits for CPU.
    wait_for_replicas(sentinels)


def wait_for_replicas(sentinels: SentinelSet) -> None:
    primary = sentinels.primary
    until(lambda: sentinels.is_followed(primary(), 2), "two replicas", sentinels.stand)
    until(sentinels.agree, "the Sentinels to see them", sentinels.stand)


@contextmanager
def cut_off(sentinels: SentinelSet, primary: RedisServer) -> Iterator[None]:
    """Separate the replicas from the primary, which serves all other clients.

    Their connections are cut, and the replicas are stopped, so that they open no new ones. A
    setting that makes the primary refuse replicas would make it refuse workers and Sentinels that
    reconnect, too.
    """
    replicas = [server for server in sentinels.servers if server is not primary]
    for replica in replicas:
        replica.pause()
    try:
        sentinels.ask(primary, "CLIENT", "KILL", "TYPE", "replica")
        yield
    finally:
        for replica in replicas:
            replica.resume()
