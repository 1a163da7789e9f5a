"""What befalls a primary that Sentinels watch, and what is waited for after it."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.redis_server import RedisServer
from tests.redis_sets import SentinelSet, until


def wait_for_another(sentinels: SentinelSet, former: RedisServer) -> None:
    """Until another server is primary, and followed."""

    def has_taken_over() -> bool:
        primary = sentinels.primary()
        return primary is not former and sentinels.is_followed(primary, 1)

    until(has_taken_over, "another primary", sentinels.stand)


def bring_back(sentinels: SentinelSet, killed: RedisServer) -> None:
    """Wait for another primary, and start the one that was killed as its replica."""
    wait_for_another(sentinels, killed)
    killed.options["replicaof"] = f"127.0.0.1 {sentinels.primary().port}"
    killed.start()
    # On a busy machine the Sentinels may take one for dead that only waits for its turn.
    wait_for_replicas(sentinels)


def wait_for_replicas(sentinels: SentinelSet) -> None:
    primary = sentinels.primary
    until(lambda: sentinels.is_followed(primary(), 2), "two replicas", sentinels.stand)
    until(sentinels.agree, "the Sentinels to see them", sentinels.stand)


@contextmanager
def cut_off(sentinels: SentinelSet, primary: RedisServer) -> Iterator[None]:
    """Part the replicas from the primary, which goes on for everybody else.

    Its connections to them are cut, and they stand still, so that they make no new ones: what it
    could refuse them, it would refuse workers and Sentinels that come again as well.
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
