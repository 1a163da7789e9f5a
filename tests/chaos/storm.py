"""Storm: four workers, sixteen clients, several models, and faults at seeded moments."""

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
from tests.chaos.check_models import counted_by_workers, examine
from tests.chaos.clients import Clients
from tests.chaos.report import Run
from tests.chaos.samples import SPECS, Spec
from tests.redis_server import RedisServer
from tests.service.journal.proxy import Proxy, running_proxy
from tests.service.server.support import children

WORKERS, CLIENTS = 4, 16
# Small, so that faults meet snapshots that are written or read.
FLAGS = ("--snapshot-every", "400", "--keep-records", "1000000", "--workers", str(WORKERS))
HELD = 5
"""Models that fit into a worker's memory in the runs with many models."""
CALM_S = (0.05, 0.3)
"""Seconds between a recovery and the next fault (minimum, maximum)."""
OVERLAP = 0.2
"""Probability of a second fault at the same time."""
FILE_LIMIT_BYTES = 16 * 1024

Fault = Callable[[], Awaitable[None]]


class Storm:
    """One server and its store, with faults drawn from a seed.

    store     the store's URL for the workers
    specs     of the models, by id; of more than HELD most are always out of memory
    redis     the server behind `store_proxy`, or None for SQLite
    full      the file that stops SQLite from adding pages, see `server.py`
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
        self._evictions = 0
        url = f"http://127.0.0.1:{client_proxy.port}"
        self.clients = Clients(url, CLIENTS, seed, specs=specs)

    async def blow(self, faults: int) -> None:
        """Cause `faults` faults, each after all clients are answered again."""
        # In a thread, because the proxies have to forward its traffic.
        self._server = await asyncio.to_thread(self._started)
        await self.clients.start()
        await self.clients.all_answered(time.monotonic())
        deck = self._deck()
        while self._run.faults.total() < faults:
            await asyncio.sleep(self._chance.uniform(*CALM_S))
            await self._count_evictions()
            some = [next(deck)]
            if self._chance.random() < OVERLAP and self._run.faults.total() + 1 < faults:
                some.append(next(card for card in deck if card[0] != some[0][0]))
            await asyncio.gather(*(fault() for _, fault in some))
            over = time.monotonic()
            self._run.faults.update(name for name, _ in some)
            self._run.recovery_s.append(await self.clients.all_answered(over))
        await self._count_evictions()
        await self.clients.stop()

    async def judge(self, direct: str) -> None:
        """Compare clients and workers with the journal. Raises HistoryBroken."""
        await examine(self._run, direct, self.clients.got, self._server)
        if self._is_crowded:
            assert self._evictions > 0, "no model was evicted"

    async def _count_evictions(self) -> None:
        """A lower bound: counts of killed workers are lost."""
        if self._is_crowded:
            name = "dualstream_model_evictions_total"
            counted = await asyncio.to_thread(counted_by_workers, self._server, name)
            self._evictions = max(self._evictions, int(counted))

    async def end(self) -> None:
        """Stop the server if it runs; keep its log."""
        if self._server is not None and self._server.process.poll() is None:
            for worker in children(self._server):
                _send(worker, signal.SIGCONT)
            await asyncio.to_thread(self._server.stop)
        self._log.close()

    def _started(self) -> ServerProcess:
        server = ServerProcess(
            self._store,
            FLAGS,
            env={"DUALSTREAM_FULL_MARK": str(self._full)}
            | ({"MOST_MODELS": str(HELD)} if self._is_crowded else {}),
            stderr=self._log.fileno(),
            module="tests.chaos.server",
        )
        self._client_proxy.target = int(server.url.rpartition(":")[2])
        return server

    # -- the faults ------------------------------------------------------------------------------

    def _deck(self) -> Iterator[tuple[str, Fault]]:
        """Faults of this store in the seed's order, each as often as it is listed.

        Each kind comes once before any comes again.
        """
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
        kinds = list(dict(cards).items())
        self._chance.shuffle(kinds)
        yield from kinds
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
        """Kill the parent first: it replaces dead workers."""
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
        """A worker's writes beyond the first pages of a file fail, also inside a commit."""
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
        """Drop some of the next answers, whole or by half."""
        if self._chance.random() < 0.5:
            proxy.swallow += self._chance.randint(1, 4)
        else:
            proxy.halve += self._chance.randint(1, 4)
        while proxy.swallow or proxy.halve:
            await asyncio.sleep(0.005)

    def _signal_one(self, number: signal.Signals) -> int | None:
        """Send a signal to some running worker."""
        workers = sorted(children(self._server))
        worker = self._chance.choice(workers) if workers else None
        if worker is not None:
            _send(worker, number)
        return worker


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _limit(pid: int, size: int | None) -> None:
    """Limit the file size of a process; None removes the limit."""
    with contextlib.suppress(ProcessLookupError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        soft = hard if size is None else size
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


async def storm_on_sqlite(
    run: Run, seed: int, faults: int, scratch: Path, specs: Mapping[str, Spec] = SPECS
) -> None:
    """A storm on a SQLite file in `scratch`, and its check."""
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
    """A storm on this Redis, and its check."""
    async with running_proxy(0) as client_proxy, running_proxy(redis.port) as store_proxy:
        storm = Storm(run, seed, store_proxy.url, scratch, client_proxy, specs, redis, store_proxy)
        try:
            await storm.blow(faults)
            await storm.judge(redis.url)
        finally:
            await storm.end()
