"""`dualstream restore --all`, killed at seeded moments and run again.

At each moment every model visible in the target is whole. At the end every model has all its
records and the bits of its state. DUALSTREAM_CHAOS_ROUNDS multiplies the number of kills,
DUALSTREAM_CHAOS_SEED is the first seed.
"""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from random import Random
from typing import Any

import pytest
import redis

from dualstream.service.journal.protocol import JournalUnavailable
from tests.chaos import restoring
from tests.chaos.failing_over import bring_back, cut_off
from tests.chaos.report import Run, recorded
from tests.forked import forks
from tests.redis_server import RedisServer
from tests.redis_sets import SentinelSet, cluster_or_skip, sentinels_or_skip, until
from tests.service.archive.support import archive_of, bits, changes, everything, learned, opened

KILLS = 4 * int(os.environ.get("DUALSTREAM_CHAOS_ROUNDS", "0")) or 2
FAILOVERS = 2 * int(os.environ.get("DUALSTREAM_CHAOS_ROUNDS", "1"))
KILLS_AT_MOST = 4
"""Of one restore: a machine that has become busy would never come to its end."""
SEED = int(os.environ.get("DUALSTREAM_CHAOS_SEED", "1"))
WHAT = "restore of 3 models, run again after each kill"
MODELS = ("empty", "ids", "names")


@pytest.fixture(scope="module")
def cluster_servers() -> Iterator[list[RedisServer]]:
    with cluster_or_skip() as cluster:
        yield cluster.servers


class Place:
    """Kind of store: on some Redis servers, or in a folder."""

    def __init__(self, folder: Path, servers: list[RedisServer] | None) -> None:
        self._folder, self._servers = folder, servers
        self._count = 0

    def empty(self) -> str:
        """URL of an empty store; a former one may be removed."""
        if self._servers is None:
            self._count += 1
            return f"sqlite:///{self._folder / str(self._count)}.db"
        for server in self._servers:
            with redis.Redis(port=server.port, protocol=2) as client:
                if client.info("replication")["role"] == "master":
                    client.flushall()
        if len(self._servers) == 1:
            return self._servers[0].url
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in self._servers)
        return f"redis+cluster://{hosts}"


Places = Callable[[str], Place]


@pytest.fixture
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Places:
    def place(kind: str) -> Place:
        if kind == "SQLite":
            return Place(tmp_path, None)
        if kind == "Redis":
            return Place(tmp_path, [request.getfixturevalue("redis_server")])
        return Place(tmp_path, request.getfixturevalue("cluster_servers"))

    return place


def file_of(url: str, folder: Path) -> Path:
    """A file with the archive of the store."""
    path = folder / "store.archive"
    path.write_bytes(asyncio.run(archive_of(url)))
    return path


def begun(archive: Path, to: str) -> Any:
    """The process of a restore that has just begun."""
    reads, writes = Pipe(duplex=False)
    process = forks.Process(target=restoring.run, args=(archive, to, writes), daemon=True)
    process.start()
    writes.close()
    reads.recv()
    return process


def ended(process: Any) -> int:
    """Did it end with an error?"""
    process.join(60)
    assert process.exitcode in (0, 1), process.exitcode
    return int(process.exitcode)


def through_in_s(archive: Path, to: str, killed_after_s: float | None = None) -> float | None:
    """Duration of the restore; None if its process was killed before the end."""
    process = begun(archive, to)
    began = time.monotonic()
    process.join(killed_after_s)
    took_s = time.monotonic() - began
    process.kill()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return None if process.exitcode else took_s


async def kept_in(url: str) -> dict[str, Any]:
    """Content of a store, and the states that a server computes from it."""
    async with opened(url) as [journal]:
        assert [record.id for record in await journal.list()] == list(MODELS)
        result: dict[str, Any] = {}
        for model in MODELS:
            result[model] = await everything(journal, model), await bits(journal, model)
        return result | {"identity": await journal.identity(), "changes": await changes(journal)}


def read_through(sentinels: SentinelSet) -> dict[str, Any]:
    """Content of the store, once every Sentinel names its primary.

    A Sentinel that does not know of a failover names the former primary, which refuses reads.
    """
    results: list[dict[str, Any]] = []

    def can_be_read() -> bool:
        try:
            results.append(asyncio.run(kept_in(sentinels.url)))
        except JournalUnavailable:
            return False
        return True

    until(can_be_read, "a primary", sentinels.stand)
    return results[0]


async def check_seen(url: str, kept: dict[str, Any]) -> None:
    """Visible models of an incomplete target are whole."""
    async with opened(url) as [journal]:
        for record in await journal.list():
            assert await everything(journal, record.id) == kept[record.id][0]


@pytest.mark.parametrize(
    ("source", "target"), [("SQLite", "Redis"), ("Redis", "SQLite"), ("SQLite", "Redis Cluster")]
)
def test_a_killed_restore_is_run_again_to_the_same_bits(
    places: Places, tmp_path: Path, source: str, target: str
):
    of, goes_to = places(source).empty(), places(target)
    learned(of)
    kept = asyncio.run(kept_in(of))
    archive = file_of(of, tmp_path)
    takes_s = through_in_s(archive, goes_to.empty())
    assert takes_s is not None
    chance = Random(SEED)
    with recorded(Run(WHAT, f"{source} to {target}", seeds=[SEED])) as run:
        while run.faults.total() < KILLS:
            to = goes_to.empty()
            for kills in range(KILLS_AT_MOST):
                took_s = through_in_s(archive, to, chance.uniform(0, takes_s))
                if took_s is not None:
                    takes_s = took_s if not kills else takes_s  # the machine is less busy
                    break
                run.faults["restore killed"] += 1
                asyncio.run(check_seen(to, kept))
            assert through_in_s(archive, to) is not None
            assert asyncio.run(kept_in(to)) == kept
            run.acknowledged += sum(kept[model][0]["record"].seq for model in MODELS)
    assert run.outcome == "passed"


@pytest.mark.skipif("DUALSTREAM_CHAOS_ROUNDS" not in os.environ, reason="`make chaos` runs it")
def test_a_target_that_fails_over_lacks_nothing_in_the_end(places: Places, tmp_path: Path):
    """The primary is killed during a restore, and its replicas lack the last writes.

    A restore that is stopped until another server has taken over first meets that server, and must
    not write to it.
    """
    of = places("SQLite").empty()
    learned(of)
    kept = asyncio.run(kept_in(of))
    archive = file_of(of, tmp_path)
    chance = Random(SEED)
    what = "restore of 3 models, its target fails over"
    with (
        sentinels_or_skip() as sentinels,
        recorded(Run(what, "SQLite to Redis, Sentinels", seeds=[SEED])) as run,
    ):
        takes_s = through_in_s(archive, sentinels.url)
        assert takes_s is not None and asyncio.run(kept_in(sentinels.url)) == kept
        failed = 0
        for number in range(FAILOVERS):
            primary = sentinels.primary()
            sentinels.ask(primary, "FLUSHALL")
            process = begun(archive, sentinels.url)
            time.sleep(chance.uniform(0, takes_s / 2))
            with cut_off(sentinels, primary):
                time.sleep(chance.uniform(0, takes_s / 2))
                if number % 2 == 0 and process.is_alive():
                    os.kill(process.pid, signal.SIGSTOP)
                primary.kill()
            run.faults["primary of the target killed"] += 1
            try:
                bring_back(sentinels, primary)
            finally:  # a stopped process cannot be terminated
                if process.is_alive():  # it may have ended before it was stopped
                    os.kill(process.pid, signal.SIGCONT)
            failed += ended(process)
            until(lambda: not ended(begun(archive, sentinels.url)), "a whole run", sentinels.stand)
            assert read_through(sentinels) == kept
            run.acknowledged += sum(kept[model][0]["record"].seq for model in MODELS)
    assert run.outcome == "passed" and failed
