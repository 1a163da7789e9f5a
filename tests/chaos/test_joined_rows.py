"""Rows that many connections send at once, while the server is killed.

One model gets rows without keys. Of the other's, a third has an Idempotency-Key and a third an id:
clients repeat these until they are acknowledged, and no other row. So no content is journalled
twice, and each acknowledged row is at its seq. `make test` runs a sample of the kills, `make chaos`
DUALSTREAM_CHAOS_ROUNDS times as many. DUALSTREAM_CHAOS_SEED is the seed.
"""

import asyncio
import contextlib
import json
import os
import signal
from itertools import count
from pathlib import Path
from random import Random

import httpx
import pytest

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.journal import open_journal
from dualstream.service.journal.record import Rows
from tests.chaos.report import Run, recorded
from tests.history import Acknowledged, HistoryBroken, check_history
from tests.redis_server import redis_or_skip
from tests.service.conftest import SPEC
from tests.service.server.support import children

KILLS = 2 * int(os.environ.get("DUALSTREAM_CHAOS_ROUNDS", "1"))
SEED = int(os.environ.get("DUALSTREAM_CHAOS_SEED", "1"))
CONNECTIONS = 48
MODELS = ("a", "b")
WHAT = f"joined rows: {CONNECTIONS} connections with and without keys"
ROWS_BETWEEN = (50, 300)
"""Acknowledged rows between two kills (minimum, maximum)."""
FLAGS = ("--snapshot-every", "400", "--keep-records", "1000000")
WITHIN_S = 120.0


def values_of(rows: Rows) -> list[int]:
    return [int(rows.values[first]) for first in rows.indptr[:-1]]


class Senders:
    """Connections that send rows, each with a value of its own, one to four at once.

    acknowledged   answers with 200, by model
    sent           1 for each value that may be journalled, by model
    """

    def __init__(self, chance: Random) -> None:
        self._chance, self._values = chance, count(1)
        self.port = 0
        self.acknowledged: dict[str, list[Acknowledged]] = {model: [] for model in MODELS}
        self.sent: dict[str, dict[int, int]] = {model: {} for model in MODELS}
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run()) for _ in range(CONNECTIONS)]

    async def stop(self) -> None:
        """Let each connection finish its rows. Raises its error."""
        self._is_stopping = True
        async with asyncio.timeout(WITHIN_S):
            await asyncio.gather(*self._tasks)

    async def acknowledge(self, rows: int) -> None:
        """Wait until this number of rows more is acknowledged."""
        wanted = rows + sum(map(len, self.acknowledged.values()))
        async with asyncio.timeout(WITHIN_S):
            while sum(map(len, self.acknowledged.values())) < wanted:
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.001)

    async def _run(self) -> None:
        unanswered: list[tuple[str, int]] = []
        while not self._is_stopping:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                streams = await asyncio.open_connection("127.0.0.1", self.port)
                try:
                    while not self._is_stopping:
                        await self._send(*streams, unanswered)
                finally:
                    streams[1].close()
            await asyncio.sleep(0.01)

    async def _send(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        unanswered: list[tuple[str, int]],
    ) -> None:
        """Send new rows after one that is repeated. `unanswered`: rows to repeat."""
        model, count = self._chance.choice(MODELS), self._chance.choice([1, 1, 3])
        new = [(model, next(self._values)) for _ in range(count)]
        rows = unanswered[:1] + new
        self.sent[model] |= {value: 1 for _, value in new}
        unanswered += [row for row in new if is_repeated(*row)]
        writer.write(b"".join([_learn(*row) for row in rows]))
        if self._chance.random() < 0.01:
            raise ConnectionResetError  # the client leaves
        for row in rows:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            result = json.loads(await reader.readexactly(length))
            if self._take(*row, int(head.split()[1]), result) and row in unanswered:
                unanswered.remove(row)
            if b"connection: close" in head:
                raise ConnectionResetError

    def _take(self, model: str, value: int, status: int, result: dict[str, object]) -> bool:
        """Note an answer. Returns whether the row is acknowledged."""
        if status == 200:
            self.acknowledged[model].append(Acknowledged(value, int(str(result["seq"]))))
        else:
            assert status == 503, result
            if not is_repeated(model, value):
                self.sent[model][value] = int(result.get("outcome") == "unknown")
        return status == 200


def is_repeated(model: str, value: int) -> bool:
    """Does the row with this value have a key or an id?"""
    return model == MODELS[1] and value % 3 > 0


def _learn(model: str, value: int) -> bytes:
    has_id = is_repeated(model, value) and value % 3 == 1
    id_ = b',"id":"%d"' % value if has_id else b""
    body = b'{"x":{"1":%d},"y":%d%b}' % (value, value % 2, id_)
    head = f"POST /models/{model}/learn HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    head += f"idempotency-key: {value}\r\n" if is_repeated(model, value) and not has_id else ""
    return head.encode() + b"content-length: %d\r\n\r\n%b" % (len(body), body)


class Killing:
    """A server that is killed again and again, and started on the same store."""

    def __init__(self, run: Run, store: str, workers: int, log: Path, chance: Random) -> None:
        self._run, self._store, self._workers = run, store, workers
        self._log, self._chance = log, chance
        self.senders = Senders(chance)
        self._server = self._started()

    def _started(self) -> ServerProcess:
        flags = [*FLAGS, "--workers", str(self._workers)]
        with self._log.open("ab") as log:
            server = ServerProcess(self._store, flags, stderr=log.fileno())
        self.senders.port = int(server.url.rpartition(":")[2])
        return server

    async def blow(self) -> None:
        for model in MODELS:
            httpx.put(f"{self._server.url}/models/{model}", json=SPEC).raise_for_status()
        self.senders.start()
        kinds = [self._kill, self._stop] if self._workers == 1 else [self._kill, self._kill_worker]
        for number in range(KILLS):
            await self.senders.acknowledge(self._chance.randint(*ROWS_BETWEEN))
            await asyncio.to_thread(kinds[number % len(kinds)])
        await self.senders.acknowledge(ROWS_BETWEEN[0])
        await self.senders.stop()
        await asyncio.to_thread(self._stop)  # no row of a client that has left is under way

    def _kill(self) -> None:
        """Kill the parent first: it replaces dead workers."""
        workers = children(self._server)
        self._server.process.kill()
        for worker in workers:
            _kill(worker)
        self._server.process.wait(timeout=30)
        self._server.kill()
        self._run.faults["all killed"] += 1
        self._server = self._started()

    def _kill_worker(self) -> None:
        _kill(self._chance.choice(sorted(children(self._server))))
        self._run.faults["worker killed"] += 1

    def _stop(self) -> None:
        self._server.stop()
        self._run.faults["stopped"] += 1
        self._server = self._started()

    async def judge(self) -> None:
        """Compare the journal with the answers, and with the rows that a new process has."""
        journal = await open_journal(self._store)
        try:
            for model in MODELS:
                answer = httpx.get(f"{self._server.url}/models/{model}").json()
                try:
                    report = await check_history(
                        journal,
                        model,
                        self.senders.acknowledged[model],
                        tags_of=values_of,
                        sent=self.senders.sent[model],
                        samples=answer["samples"],
                    )
                except HistoryBroken as broken:
                    self._run.saw(broken.report)
                    raise
                self._run.saw(report)
                assert report.entries < report.rows, "no rows were joined"
        finally:
            await journal.close()

    def end(self) -> None:
        if self._server.process.poll() is None:
            self._server.stop()


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def kill_again_and_again(run: Run, store: str, workers: int, log: Path) -> None:
    killing = Killing(run, store, workers, log, Random(f"{SEED} {workers}"))
    try:
        await killing.blow()
        await killing.judge()
    finally:
        killing.end()


@pytest.mark.parametrize("workers", [1, 2])
def test_joined_rows_on_sqlite(tmp_path, workers):
    what = f"{WHAT}, {workers} worker{'s' * (workers > 1)}"
    with recorded(Run(what, "SQLite `normal`", seeds=[SEED])) as run:
        store = f"sqlite:///{tmp_path / 'store.db'}"
        asyncio.run(kill_again_and_again(run, store, workers, tmp_path / "log"))
    assert run.outcome == "passed"


@pytest.mark.parametrize("workers", [1, 2])
def test_joined_rows_on_redis(tmp_path, workers):
    what = f"{WHAT}, {workers} worker{'s' * (workers > 1)}"
    with (
        redis_or_skip(appendfsync="always") as redis,
        recorded(Run(what, "Redis `always`", seeds=[SEED])) as run,
    ):
        asyncio.run(kill_again_and_again(run, redis.url, workers, tmp_path / "log"))
    assert run.outcome == "passed"
