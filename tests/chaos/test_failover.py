"""Failover: a primary is killed while clients learn. The service recovers and counts losses.

Two workers run on Redis with replicas: one primary with two replicas and three Sentinels, or a
Cluster of three primaries with a replica each. DUALSTREAM_CHAOS_ROUNDS is the number of failovers
of each test (default 1), DUALSTREAM_CHAOS_SEED is the first seed.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from redis.crc import key_slot

from dualstream.service.cli.demo.server_process import ServerProcess
from tests.chaos.check_models import counted_by_workers, examine
from tests.chaos.clients import Clients
from tests.chaos.failing_over import bring_back, cut_off, wait_for_another, wait_for_replicas
from tests.chaos.report import Run, recorded
from tests.chaos.samples import DUAL
from tests.redis_server import RedisServer
from tests.redis_sets import ClusterSet, cluster_or_skip, sentinels_or_skip, until

ROUNDS = int(os.environ.get("DUALSTREAM_CHAOS_ROUNDS", "1"))
SEED = int(os.environ.get("DUALSTREAM_CHAOS_SEED", "1"))
CLIENTS = 8
FLAGS = ("--workers", "2", "--snapshot-every", "200", "--keep-records", "1000000")
CALM_S = (0.1, 0.4)
SENTINELS, CLUSTER = "Redis, Sentinels, 2 replicas", "Redis Cluster, 3 primaries, 3 replicas"

Befall = Callable[[Clients], float]
"""Makes a fault and brings back what was killed; when the fault was over."""


class Scene:
    """A server on replicated Redis, and its clients."""

    def __init__(self, run: Run, server: ServerProcess, store: str, clients: Clients) -> None:
        self.run, self.server, self.store, self.clients = run, server, store, clients

    async def play(self, befalls: list[Befall]) -> None:
        """Cause faults, each after all clients are answered; then check the models."""
        chance = Random(SEED)
        await self.clients.start()
        await self.clients.all_answered(time.monotonic())
        for befall in befalls:
            await asyncio.sleep(chance.uniform(*CALM_S))
            over = await asyncio.to_thread(befall, self.clients)
            self.run.recovery_s.append(await self.clients.all_answered(over))
        await self.clients.stop()
        await examine(self.run, self.store, self.clients.got, self.server)


@contextmanager
def scene(run: Run, store: str, durability: str, scratch: Path) -> Iterator[Scene]:
    with (scratch / "server.log").open("ab") as log, recorded(run):
        flags = (*FLAGS, "--durability", durability)
        server = ServerProcess(store, flags, stderr=log)
        try:
            yield Scene(run, server, store, Clients(server.url, CLIENTS, SEED, run.expects_loss))
        finally:
            server.stop()


def test_with_replicated_2_nothing_that_was_acknowledged_is_lost(tmp_path: Path):
    with sentinels_or_skip() as sentinels:
        run = Run("failover, `replicated:2`", SENTINELS, seeds=[SEED])
        chance = Random(SEED)

        def kill_primary(clients: Clients) -> float:
            primary = sentinels.primary()
            if chance.random() < 0.5:  # From here on nothing is acknowledged.
                with cut_off(sentinels, primary):
                    time.sleep(chance.uniform(0, 0.3))
                    primary.kill()
            else:
                primary.kill()
            over = time.monotonic()
            run.faults["primary killed"] += 1
            bring_back(sentinels, primary)
            return over

        def hang_primary(clients: Clients) -> float:
            # After SIGCONT it considers itself the primary, until the Sentinels reach it.
            primary = sentinels.primary()
            primary.pause()
            try:
                wait_for_another(sentinels, primary)
            finally:
                primary.resume()
            over = time.monotonic()
            run.faults["primary hung until another took over"] += 1
            wait_for_replicas(sentinels)
            return over

        befalls = [hang_primary if number % 3 == 2 else kill_primary for number in range(ROUNDS)]
        with scene(run, sentinels.url, "replicated:2", tmp_path) as played:
            asyncio.run(played.play(befalls))
    assert run.outcome == "passed" and run.acknowledged and not run.lost


def test_with_less_a_loss_is_counted_and_the_workers_agree_again(tmp_path: Path):
    with sentinels_or_skip() as sentinels:
        what = "failover, `everysec`: loss expected, detected, counted"
        run = Run(what, SENTINELS, seeds=[SEED], expects_loss=True)

        def kill_primary(clients: Clients) -> float:
            primary = sentinels.primary()
            with cut_off(sentinels, primary):
                for _ in range(2):  # each client's second answer is to a request sent after the cut
                    now = time.monotonic()
                    until(
                        lambda since=now: min(clients.answered_at) > since,
                        "answers",
                        lambda: (clients.refusals, sentinels.stand()),
                    )
                primary.kill()
            over = time.monotonic()
            run.faults["primary killed, replicas cut off before"] += 1
            bring_back(sentinels, primary)
            return over

        with scene(run, sentinels.url, "everysec", tmp_path) as played:
            asyncio.run(played.play([kill_primary] * ROUNDS))
            forks = counted_by_workers(played.server, "dualstream_forks_total")
            lost = counted_by_workers(played.server, "dualstream_lost_records_total")
    assert run.outcome == "passed" and run.lost >= 1
    # Each worker counts the records it had applied; the acknowledging worker had them.
    assert forks >= 1
    assert lost >= run.lost


def test_in_a_cluster_a_killed_primary_and_a_moved_slot_lose_nothing(tmp_path: Path):
    with cluster_or_skip() as cluster:
        run = Run("failover, moved slots, `replicated:1`", CLUSTER, seeds=[SEED])
        key = f"ds:{{{DUAL}}}:log"

        def move_slot(clients: Clients) -> float:
            source = cluster.owner(key)
            primaries = [server for server in cluster.servers if cluster.is_followed(server, 1)]
            target = next(server for server in primaries if server is not source)
            cluster.move_slot(key_slot(DUAL.encode()), target, lambda: time.sleep(0.02))
            run.faults["slot moved"] += 1
            return time.monotonic()

        def kill_primary(clients: Clients) -> float:
            primary = cluster.owner(key)
            primary.kill()
            over = time.monotonic()
            run.faults["primary of a model's slot killed"] += 1
            replace(cluster, key, primary)
            return over

        with scene(run, cluster.url, "replicated:1", tmp_path) as played:
            asyncio.run(played.play([move_slot, kill_primary] * ROUNDS))
    assert run.outcome == "passed" and run.acknowledged and not run.lost


def replace(cluster: ClusterSet, key: str, killed: RedisServer) -> None:
    """Wait for another owner of the key, and restart the killed one as its replica."""
    until(lambda: cluster.owner(key) is not killed, "another owner", cluster.stand)
    killed.start()
    until(lambda: cluster.is_followed(cluster.owner(key), 1), "its replica", cluster.stand)
    until(cluster.is_whole, "the cluster", cluster.stand)
