"""Two readers of one source post its batches to two workers that are killed: each row is learned
once, in order, and the cursor never disagrees with the rows.

A power cut takes rows and cursor together.

DUALSTREAM_CHAOS_ROUNDS is the number of kills for each store (default 3).
"""

import asyncio
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dualstream.client import Client, ClientError, Refused, Source
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.journal import open_journal
from dualstream.service.journal.record import Rows, decode_merged
from dualstream.service.models.sources import PREFIX, decode_cursor
from tests.chaos.report import Run, recorded
from tests.chaos.support import wait_for
from tests.history import Report, check_history, read_all
from tests.redis_server import RedisServer, redis_or_skip

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
        source = Source(NAME, first, first + count - 1, first=first == 0)
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


def rows_of(readers: list[Reader]) -> int:
    return sum(count for reader in readers for _, count, _ in reader.learned)


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
            result = rows.indices.tolist()
            offsets.extend(result)
            return result

        report = await check_history(journal, "m", [], tags_of=tags_of)
        assert [offset - offsets[0] for offset in offsets] == list(range(record.seq))
        for first, count, seq in [one for reader in readers for one in reader.learned]:
            assert seq == first + count, "a batch is not where its answer says"
            run.acknowledged += count
        return report
    finally:
        await journal.close()


def serve_all_kept(store: str) -> ServerProcess:
    """A server whose journal is never trimmed: the check reads all of it."""
    return ServerProcess(store, ["--keep-records", "1000000000"])


def race(store: str, run: Run) -> None:
    chance, ends = random.Random(SEED), threading.Event()
    servers = [serve_all_kept(store), serve_all_kept(store)]
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
                servers[number] = serve_all_kept(store)
                urls[number] = servers[number].url
            wait_for(lambda: rows_of(readers) > 100 and any(one.duplicates for one in readers))
        finally:
            ends.set()
            for reader in readers:
                reader.join()
    finally:
        for server in servers:
            server.kill()
    run.saw(asyncio.run(check(store, run, readers)))


@pytest.mark.parametrize("name", ["SQLite `normal`", "Redis `always`"])
def test_of_racing_readers_each_row_is_learned_once(name, tmp_path):
    with recorded(Run(WHAT, name, seeds=[SEED])) as run:
        if name.startswith("SQLite"):
            race(f"sqlite:///{tmp_path / 'sources.db'}", run)
        else:
            with redis_or_skip(appendfsync="always") as redis:
                race(redis.url, run)
    assert run.outcome == "passed"


# -- power cuts ------------------------------------------------------------------------------------


def learn_batches(url: str, chance: random.Random, first: int, batches: int) -> int:
    """Learn batches as a reader that begins at `first`; returns the offset of the next one."""
    with Client(url) as client:
        for _ in range(batches):
            rows = [{str(offset + 1): 1} for offset in range(first, first + chance.randint(1, 40))]
            source = Source(NAME, first, first + len(rows) - 1, first=first == 0)
            try:
                got = client.learn("m", rows, [1] * len(rows), source=source)
                assert got.source is not None
                following = got.source.next
            except Refused as refused:
                following = refused.problem["cursor"]
            assert isinstance(following, int)
            first = following
    return first


async def left_after_cut(store: str) -> int:
    """Rows that the store still has. They are the first ones, and the cursor is at their end."""
    journal = await open_journal(store)
    try:
        record = await journal.get("m")
        stored = await journal.cursor("m", record.incarnation, PREFIX + NAME)
        cursor = None if stored is None else decode_cursor(stored)
        assert (0 if cursor is None else cursor.next) == record.seq
        entries = await read_all(journal, "m", record.incarnation)
        blocks = [block for entry in entries for block in decode_merged(entry.body)[1]]
        offsets = [offset for block in blocks for offset in block.indices.tolist()]
        assert [offset - offsets[0] for offset in offsets] == list(range(record.seq))
        return record.seq
    finally:
        await journal.close()


def test_a_power_cut_takes_rows_and_cursor_together_on_sqlite(tmp_path):
    chance, path = random.Random(SEED), tmp_path / "store.db"
    with ServerProcess(f"sqlite:///{path}") as server:
        with Client(server.url) as client:
            client.create("m", SPEC)
        learned = learn_batches(server.url, chance, 0, 30)
        server.kill()
    log, kept = Path(f"{path}-wal").read_bytes(), []
    for number in range(4 * KILLS):
        copy = tmp_path / f"cut{number}.db"
        copy.write_bytes(path.read_bytes())
        # From the second half on, the log has the model.
        Path(f"{copy}-wal").write_bytes(log[: chance.randint(len(log) // 2, len(log))])
        kept.append(asyncio.run(left_after_cut(f"sqlite:///{copy}")))
    assert 0 < max(kept) <= learned and min(kept) < learned, "no cut took anything"


def log_of(redis: RedisServer) -> Path:
    """Redis' append-only file, after the rewrite at its start."""
    files = Path(redis.directory, "appendonlydir")
    wait_for(lambda: len(list(files.glob("*.incr.aof"))) == 1)
    (log,) = files.glob("*.incr.aof")
    return log


def test_a_power_cut_takes_rows_and_cursor_together_on_redis():
    """Then the reader continues with the running worker, and each row is learned once."""
    chance, kept = random.Random(SEED), []
    with redis_or_skip(appendfsync="everysec") as redis, ServerProcess(redis.url) as server:
        with Client(server.url) as client:
            client.create("m", SPEC)
        learned = learn_batches(server.url, chance, 0, 3)
        for _ in range(KILLS):
            log = log_of(redis)
            before = log.stat().st_size
            learned = learn_batches(server.url, chance, learned, 15)
            redis.kill()
            whole = log.read_bytes()
            log.write_bytes(whole[: chance.randint(before, len(whole))])
            redis.start()
            kept.append(asyncio.run(left_after_cut(redis.url)) - learned)
            learned = learn_batches(server.url, chance, learned, 5)
            assert asyncio.run(left_after_cut(redis.url)) == learned
            with Client(server.url) as client:
                assert client.get("m").samples == learned
    assert min(kept) < 0, "no cut took anything"
