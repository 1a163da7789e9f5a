"""Two readers of one source post its batches to two workers that are killed: each row is learned
once, in order, and the cursor never disagrees with the rows.

DUALSTREAM_CHAOS_ROUNDS is the number of kills for each store (default 3).
"""

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable

import pytest

from dualstream.client import Client, ClientError, Refused, Source
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.journal import open_journal
from dualstream.service.journal.record import Rows
from dualstream.service.models.sources import PREFIX, decode_cursor
from tests.chaos.report import Run, recorded
from tests.history import Report, check_history
from tests.redis_server import redis_or_skip

KILLS = int(os.environ.get("DUALSTREAM_CHAOS_ROUNDS", "3"))
SEED = int(os.environ.get("DUALSTREAM_CHAOS_SEED", "1"))
SPEC = {"algorithm": "sgd", "features": {"kind": "indexed", "dim": 1 << 20}}
NAME = "topic/0"
WHAT = f"2 readers of one source, 2 workers, {KILLS} kills"


class Reader:
    """Follows the contract: after a failure the same batch again, after 409 at the cursor."""

    def __init__(self, url: Callable[[], str], seed: int, ends: threading.Event) -> None:
        self._url, self._chance, self._ends = url, random.Random(seed), ends
        self.learned: list[tuple[int, int, int]] = []
        """(first offset, rows, seq) of each batch that was answered as learned."""
        self.duplicates = self.failures = 0
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        first = 0
        while not self._ends.is_set():
            count = self._chance.randint(1, 40)
            try:
                with Client(self._url(), patience_s=0, timeout_s=10) as client:
                    first = self._send(client, first, count)
            except Refused as refused:
                assert refused.kind == "source-moved", refused
                first = refused.problem["cursor"]
            except ClientError:
                self.failures += 1
                time.sleep(0.05)

    def _send(self, client: Client, first: int, count: int) -> int:
        # A row's only feature is its offset.
        rows = [{str(offset + 1): 1} for offset in range(first, first + count)]
        source = Source(NAME, first, first + count - 1)
        got = client.learn("m", rows, [1] * count, source=source)
        if got.duplicate:
            self.duplicates += 1
        else:
            self.learned.append((first, count, got.seq))
        assert got.source is not None and isinstance(got.source.next, int)
        return got.source.next

    def join(self) -> None:
        self._thread.join(timeout=60)
        assert not self._thread.is_alive()


async def check(store: str, run: Run, readers: list[Reader]) -> Report:
    """Each offset below the cursor is journalled once, in order, and at the acknowledged seq."""
    journal = await open_journal(store)
    try:
        record = await journal.get("m")
        stored = await journal.cursor("m", record.incarnation, PREFIX + NAME)
        assert stored is not None
        cursor = decode_cursor(stored)
        assert cursor.next == cursor.rows == record.seq
        offsets: list[int] = []

        def tags_of(rows: Rows) -> list[int]:
            found = rows.indices.tolist()
            offsets.extend(found)
            return found

        report = await check_history(journal, "m", [], tags_of=tags_of)
        assert [offset - offsets[0] for offset in offsets] == list(range(record.seq))
        for first, count, seq in [one for reader in readers for one in reader.learned]:
            assert seq == first + count, "a batch is not where its answer says"
            run.acknowledged += count
        return report
    finally:
        await journal.close()


def race(store: str, run: Run) -> None:
    chance, ends = random.Random(SEED), threading.Event()
    servers = [ServerProcess(store), ServerProcess(store)]
    urls = [server.url for server in servers]
    try:
        with Client(urls[0]) as client:
            client.create("m", SPEC)
        readers = [Reader(lambda n=n: urls[n], SEED + n, ends) for n in (0, 1, 0, 1)]
        try:
            for _ in range(KILLS):
                time.sleep(chance.uniform(0.3, 1.0))
                number = chance.randrange(2)
                servers[number].kill()
                run.faults["kill -9 of a worker"] += 1
                servers[number] = ServerProcess(store)
                urls[number] = servers[number].url
            time.sleep(1.0)
        finally:
            ends.set()
            for reader in readers:
                reader.join()
    finally:
        for server in servers:
            server.kill()
    run.saw(asyncio.run(check(store, run, readers)))
    learned = sum(count for reader in readers for _, count, _ in reader.learned)
    assert learned > 100, "too few batches to say anything"
    assert sum(reader.duplicates for reader in readers), "no reader was too late"


@pytest.mark.parametrize("name", ["SQLite `normal`", "Redis `always`"])
def test_of_racing_readers_each_row_is_learned_once(name, tmp_path):
    with recorded(Run(WHAT, name, seeds=[SEED])) as run:
        if name.startswith("SQLite"):
            race(f"sqlite:///{tmp_path / 'sources.db'}", run)
        else:
            with redis_or_skip(appendfsync="always") as redis:
                race(redis.url, run)
    assert run.outcome == "passed"
