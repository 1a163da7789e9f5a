"""Four workers, sixteen clients, three models or many, and what befalls them at seeded moments."""

import asyncio
import contextlib
import os
import resource
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from random import Random

from dualstream.service.cli.demo.server_process import ServerProcess
from tests.chaos.clients import Clients
from tests.chaos.report import Run
from tests.chaos.samples import SPECS, Spec
from tests.chaos.verdict import counted_by_workers, examine
from tests.redis_server import RedisServer
from tests.service.journal.proxy import Proxy, running_proxy
from tests.service.server.test_workers import children

WORKERS, CLIENTS = 4, 16
# Small, so that faults meet snapshots that are written or read.
FLAGS = ("--snapshot-every", "400", "--keep-records", "1000000", "--workers", str(WORKERS))
HELD = 5
"""Models that a worker has room for where there are many."""
CALM_S = (0.05, 0.3)
"""Between a recovery and the next fault, within these."""
OVERLAP = 0.2
"""How often a second fault comes at the same time."""
FILE_LIMIT_BYTES = 16 * 1024

Fault = Callable[[], Awaitable[None]]


class Storm:
    """One server and its store, in the hands of a seed.

    store     the URL that the workers are given
    specs     of the models, by their ids; of more than HELD most are out of memory all the time
    redis     the server behind `store_proxy`, or None for SQLite
    full      the file that makes SQLite find no page, see `server.py`
    """

    def __init__(
        self,
        run: Run,
        seed: int,
        store: str,
        scratch: Path,
        client_proxy: Proxy,
        specs: Mapping[str, Spec],
        redis: RedisServer | None = None,
        store_proxy: Proxy | None = None,
    ) -> None:
        self._run, self._chance = run, Random(seed)
        self._store, self._scratch = store, scratch
        self._client_proxy, self._store_proxy, self._redis = client_proxy, store_proxy, redis
        self._full = scratch / "full"
        self._log = (scratch / "server.log").open("ab")
        self._server: ServerProcess | None = None
        self._is_crowded = len(specs) > HELD
        self._bare_groups = 0
        url = f"http://127.0.0.1:{client_proxy.port}"
        self.clients = Clients(url, CLIENTS, seed, specs=specs)

    async def blow(self, faults: int) -> None:
        """Make so many faults, each after all clients were answered again."""
        # In a thread: the proxies have to pass on what it asks of the store.
        self._server = await asyncio.to_thread(self._started)
        await self.clients.start()
        await self.clients.all_answered(time.monotonic())
        deck = self._deck()
        while self._run.faults.total() < faults:
            await asyncio.sleep(self._chance.uniform(*CALM_S))
            await self._count_bare_groups()
            some = [next(deck)]
            if self._chance.random() < OVERLAP and self._run.faults.total() + 1 < faults:
                some.append(next(card for card in deck if card[0] != some[0][0]))
            await asyncio.gather(*(fault() for _, fault in some))
            over = time.monotonic()
            self._run.faults.update(name for name, _ in some)
            self._run.recovery_s.append(await self.clients.all_answered(over))
        await self._count_bare_groups()
        await self.clients.stop()

    async def judge(self, direct: str) -> None:
        """Hold what clients and workers say against the journal. Raises HistoryBroken."""
        await examine(self._run, direct, self.clients.told, self._server)
        if self._is_crowded:
            assert self._bare_groups > 0, "no model learned while it was not in memory"

    async def _count_bare_groups(self) -> None:
        """At least so many there were: what workers count that die goes with them."""
        if self._is_crowded:
            name = "dualstream_bare_groups_total"
            counted = await asyncio.to_thread(counted_by_workers, self._server, name)
            self._bare_groups = max(self._bare_groups, int(counted))

    async def end(self) -> None:
        """Stop the server, should it run; its log stays."""
        if self._server is not None and self._server.process.poll() is None:
            for worker in children(self._server):
                _send(worker, signal.SIGCONT)
            await asyncio.to_thread(self._server.stop)
        self._log.close()

    def _started(self) -> ServerProcess:
        server = ServerProcess(
            self._store,
            (*FLAGS, "--models-held", str(HELD)) if self._is_crowded else FLAGS,
            env={"DUALSTREAM_FULL_MARK": str(self._full)},
            stderr=self._log.fileno(),
            module="tests.chaos.server",
        )
        self._client_proxy.target = int(server.url.rpartition(":")[2])
        return server

    # -- the faults ------------------------------------------------------------------------------

    def _deck(self) -> Iterator[tuple[str, Fault]]:
        """The faults of this store in the seed's order; each as often as the others say."""
        cards: list[tuple[str, Fault]] = [
            ("worker killed", self._kill_worker),
            ("worker killed", self._kill_worker),
            ("worker stopped", self._stop_worker),
            ("worker stopped", self._stop_worker),
            ("client's connection cut", self._cut_client),
            ("all killed", self._kill_all),
        ]
        if self._redis is None:
            cards += [
                ("no page left", self._fill_up),
                ("no page left", self._fill_up),
                ("file limit", self._limit_files),
                ("file limit", self._limit_files),
            ]
        else:
            cards += [
                ("Redis killed", self._kill_redis),
                ("Redis killed", self._kill_redis),
                ("store's connection cut", self._cut_store),
                ("store's connection cut", self._cut_store),
            ]
        while True:
            self._chance.shuffle(cards)
            yield from cards

    async def _kill_worker(self) -> None:
        self._signal_one(signal.SIGKILL)

    async def _stop_worker(self) -> None:
        worker = self._signal_one(signal.SIGSTOP)
        await asyncio.sleep(self._chance.uniform(0.1, 0.8))
        if worker is not None:
            _send(worker, signal.SIGCONT)

    async def _kill_all(self) -> None:
        """The parent first: it would start others in the place of those that end."""
        workers = children(self._server)
        self._server.process.kill()
        for worker in workers:
            _send(worker, signal.SIGKILL)
        await asyncio.to_thread(self._server.kill)
        self._server = await asyncio.to_thread(self._started)

    async def _fill_up(self) -> None:
        self._full.touch()
        await asyncio.sleep(self._chance.uniform(0.2, 0.6))
        self._full.unlink()

    async def _limit_files(self) -> None:
        """What a worker writes beyond the first few pages of a file fails, in mid-commit, too."""
        workers = children(self._server)
        for worker in workers:
            _limit(worker, FILE_LIMIT_BYTES)
        await asyncio.sleep(self._chance.uniform(0.2, 0.6))
        for worker in workers:
            _limit(worker, None)

    async def _kill_redis(self) -> None:
        assert self._redis is not None
        self._redis.kill()
        await asyncio.sleep(self._chance.uniform(0, 0.4))
        await asyncio.to_thread(self._redis.start)

    async def _cut_store(self) -> None:
        assert self._store_proxy is not None
        await self._cut(self._store_proxy)

    async def _cut_client(self) -> None:
        await self._cut(self._client_proxy)

    async def _cut(self, proxy: Proxy) -> None:
        """Some of the next answers never arrive, or half of them."""
        if self._chance.random() < 0.5:
            proxy.swallow += self._chance.randint(1, 4)
        else:
            proxy.halve += self._chance.randint(1, 4)
        while proxy.swallow or proxy.halve:
            await asyncio.sleep(0.005)

    def _signal_one(self, number: signal.Signals) -> int | None:
        """Send a signal to some worker, if any is there."""
        workers = sorted(children(self._server))
        worker = self._chance.choice(workers) if workers else None
        if worker is not None:
            _send(worker, number)
        return worker


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _limit(pid: int, size: int | None) -> None:
    """Bound how long the files of a process may become; None takes the bound away."""
    with contextlib.suppress(ProcessLookupError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        soft = hard if size is None else size
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


async def storm_on_sqlite(
    run: Run, seed: int, faults: int, scratch: Path, specs: Mapping[str, Spec] = SPECS
) -> None:
    """A storm on a SQLite file in `scratch`, and the verdict on it."""
    store = f"sqlite:///{scratch / 'store.db'}"
    async with running_proxy(0) as client_proxy:
        storm = Storm(run, seed, store, scratch, client_proxy, specs)
        try:
            await storm.blow(faults)
            await storm.judge(store)
        finally:
            await storm.end()


async def storm_on_redis(
    run: Run,
    seed: int,
    faults: int,
    scratch: Path,
    redis: RedisServer,
    specs: Mapping[str, Spec] = SPECS,
) -> None:
    """A storm on this Redis, and the verdict on it."""
    async with running_proxy(0) as client_proxy, running_proxy(redis.port) as store_proxy:
        storm = Storm(run, seed, store_proxy.url, scratch, client_proxy, specs, redis, store_proxy)
        try:
            await storm.blow(faults)
            await storm.judge(redis.url)
        finally:
            await storm.end()
