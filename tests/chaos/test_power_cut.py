"""Power cut: which bytes are on the disk when an answer leaves, and which survive a cut.

`kill -9` cannot show that, because the system keeps what a killed process wrote, synced or not.
strace can. Each answer to `learn` is compared with the syncs before it. Stores are opened from
files with what was synced until some moment, and a seeded choice of the rest.
"""

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.features import ALL
from dualstream.service.journal import open_journal
from dualstream.service.replica.recovery import recover
from dualstream.service.replica.replica import Replica
from tests.chaos.report import Run, recorded
from tests.chaos.support import wait_for
from tests.chaos.trace import Disk, Event, events, traced
from tests.history import Acknowledged, check_entries, read_all
from tests.redis_server import RedisServer, redis_or_skip

SPEC = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 123}}
BEFORE, REQUESTS = 5, 300
CUTS = 4 * int(os.environ.get("DUALSTREAM_CHAOS_ROUNDS", "1"))
WHAT = f"power cut at {CUTS} moments of {REQUESTS} requests"
# Small, so that snapshots and SQLite checkpoints happen between requests.
FLAGS = ("--snapshot-every", "60", "--keep-records", "100000000")


def learn(url: str, first: int, count: int) -> list[Acknowledged]:
    """Learn rows one by one, each answered before the next is sent."""
    with httpx.Client(base_url=url, timeout=30) as client:
        return [
            Acknowledged(key_of(number), answer_to(client, number)["seq"])
            for number in range(first, first + count)
        ]


def answer_to(client: httpx.Client, number: int) -> dict[str, Any]:
    """Answer to one row, sent until the service has its store again."""
    sample = {"x": {str(1 + number % 123): 1 + number}, "y": number % 2}
    headers = {"idempotency-key": key_of(number)}
    deadline = time.monotonic() + 30
    while (answer := client.post("/models/m/learn", json=sample, headers=headers)).is_error:
        assert answer.status_code == 503 and time.monotonic() < deadline, answer.text
        time.sleep(0.02)
    got: dict[str, Any] = answer.json()
    return got


def key_of(number: int) -> str:
    return f"sample {number:06}"


def begin(url: str) -> list[Acknowledged]:
    httpx.put(f"{url}/models/m", json=SPEC, timeout=60).raise_for_status()
    return learn(url, 0, BEFORE)


@dataclass
class Played:
    """Number of answers before, and after, the sync of their rows; and the cuts.

    A cut has the number of answers so far, and the files that survive it.
    """

    early: int = 0
    late: int = 0
    cuts: list[tuple[int, dict[str, bytes]]] = field(default_factory=list)


def play(disk: Disk, seen: Sequence[Event], chance: Random, in_order: bool) -> Played:
    """Go through the trace, and cut the power at seeded moments."""
    moments = set(chance.sample(range(len(seen)), CUTS))
    played = Played()
    for number, event in enumerate(seen):
        if event.is_answer and event.data.startswith(b"HTTP/1.1 200"):
            key = key_of(BEFORE + played.early + played.late).encode()
            if disk.holds(key):
                played.late += 1
            else:
                played.early += 1
        elif not event.is_answer:
            disk.see(event)
        if number in moments:
            answers = BEFORE + played.early + played.late
            played.cuts.append((answers, disk.after_cut(chance, in_order)))
    return played


async def lost_in(store: str, previous: Sequence[Acknowledged]) -> list[Acknowledged]:
    """Answers that the journal does not have: the last ones, if any.

    The rest is whole and at its seqs, and replicas learn it. Raises HistoryBroken.
    """
    journal = await open_journal(store)
    try:
        record = await journal.get("m")
        replica, fresh = Replica(record, ALL), Replica(record, ALL)
        await recover(replica, journal)
        await fresh.catch_up(journal)
        assert replica.capture().state_digest() == fresh.capture().state_digest()
        entries = await read_all(journal, "m", record.incarnation)
        kept = [answer for answer in previous if answer.seq <= record.seq]
        check_entries(entries, record.incarnation, kept, samples=replica.learner.samples)
        return list(previous[len(kept) :])
    finally:
        await journal.close()


def log_of(redis: RedisServer) -> Path:
    """Redis' append-only file, after a running rewrite."""
    files = Path(redis.directory, "appendonlydir")

    def is_rewritten() -> bool:
        """The manifest is written a last time after the former files are gone."""
        lines = (files / "appendonly.aof.manifest").read_text().splitlines()
        kinds = [line.rpartition(" ")[2] for line in lines]
        return kinds == ["b", "i"] and list(files.glob("*.2.incr.aof")) == list(
            files.glob("*.incr.aof")
        )

    wait_for(is_rewritten)
    (log,) = files.glob("*.incr.aof")
    return log


def written_with(log: Path, key: str) -> bytes:
    """Redis' log once it has the whole append under this key.

    Redis may wait up to two seconds while its other thread syncs earlier writes. A concurrent
    reader may see only the first pages of a write.
    """
    results = [b""]

    def is_whole() -> bool:
        results[0] = log.read_bytes()
        return key.encode() in results[0] and results[0].endswith(b"EXEC\r\n")

    wait_for(is_whole, lambda: (len(results[0]), results[0][-500:]))
    return results[0]


def check_cuts(
    run: Run,
    previous: Sequence[Acknowledged],
    played: Played,
    opened: Callable[[dict[str, bytes]], str],
) -> None:
    """Open the store after each cut; count acknowledged rows that are lost."""
    for answers, files in played.cuts:
        lost = asyncio.run(lost_in(opened(files), previous[:answers]))
        run.faults["power cut"] += 1
        run.acknowledged += answers
        run.lost += len(lost)


@pytest.mark.parametrize("level", ["full", "normal"])
def test_sqlite(level, tmp_path):
    file = tmp_path / "store.db"
    run = Run(WHAT, f"SQLite `{level}`", [1], expects_loss=level == "normal")
    flags = (*FLAGS, "--durability", level)
    with recorded(run):
        module = "tests.chaos.small_log"
        with ServerProcess(f"sqlite:///{file}", flags, module=module) as server:
            previous = begin(server.url)
            disk = Disk.of([file, Path(f"{file}-wal")])
            moved = file.stat().st_mtime_ns
            is_moved, deadline = False, time.monotonic() + 60
            with traced([server.process.pid], tmp_path / "trace"):
                previous += learn(server.url, BEFORE, REQUESTS)
                while not is_moved:  # the thread of the checkpoint may be late
                    assert time.monotonic() < deadline, "no checkpoint"
                    is_moved = file.stat().st_mtime_ns != moved
                    previous += learn(server.url, len(previous), 10)
        seen = events(tmp_path / "trace")
        assert any(event.target == str(file) for event in seen)
        played = play(disk, seen, Random(1), in_order=False)
        assert BEFORE + played.early + played.late == len(previous)

        def opened(files: dict[str, bytes]) -> str:
            copy = tmp_path / f"cut{run.faults.total()}"
            copy.mkdir()
            for path, content in files.items():
                (copy / Path(path).name).write_bytes(content)
            return f"sqlite:///{copy / file.name}"

        check_cuts(run, previous, played, opened)
    assert run.outcome == "passed"
    # At `normal` the log is synced independently of the answers.
    assert (played.early, run.lost) == (0, 0) if level == "full" else played.early and run.lost


@pytest.mark.parametrize("level", ["always", "everysec"])
def test_redis(level, tmp_path):
    run = Run(WHAT, f"Redis `{level}`", [1], expects_loss=level == "everysec")
    flags = (*FLAGS, "--durability", level)
    with recorded(run), redis_or_skip(appendfsync=level) as redis:
        with ServerProcess(redis.url, flags) as server:
            previous = begin(server.url)
            log = log_of(redis)
            written_with(log, key_of(BEFORE - 1))
            kept = {path.name: path.read_bytes() for path in log.parent.iterdir()}
            disk = Disk.of([log.resolve()])
            with traced([server.process.pid, redis.pid], tmp_path / "trace"):
                previous += learn(server.url, BEFORE, REQUESTS)
        played = play(disk, events(tmp_path / "trace"), Random(1), in_order=True)
        assert BEFORE + played.early + played.late == len(previous)

        def opened(files: dict[str, bytes]) -> str:
            redis.kill()
            shutil.rmtree(log.parent)
            log.parent.mkdir()
            cut = {Path(path).name: content for path, content in files.items()}
            for name, content in (kept | cut).items():
                (log.parent / name).write_bytes(content)
            redis.start()
            return redis.url

        check_cuts(run, previous, played, opened)
    assert run.outcome == "passed"
    assert (played.early, run.lost) == (0, 0) if level == "always" else played.early and run.lost


def test_an_answer_under_way_at_the_end_of_the_trace_is_an_answer(tmp_path):
    trace = tmp_path / "trace"
    sent = r'7 sendto(5<TCP:[127.0.0.1:80->127.0.0.1:9]>, "\x48\x54", 2, 0, NULL, 0'
    trace.write_text(f"{sent}) = 2\n{sent} <detached ...>\n7 fsync(4</a> <detached ...>\n")
    assert [event.data for event in events(trace)] == [b"HT", b"HT"]


def test_a_service_that_outlives_its_store_finds_what_a_power_cut_took(tmp_path):
    """Redis alone loses power at `everysec`: the worker is ahead of the journal and rebuilds."""
    with redis_or_skip(appendfsync="everysec") as redis, ServerProcess(redis.url) as server:
        previous = begin(server.url)
        log = log_of(redis)
        kept = written_with(log, key_of(BEFORE - 1))
        previous += learn(server.url, BEFORE, 20)
        redis.kill()
        log.write_bytes(kept + log.read_bytes()[len(kept) :][:100])
        redis.start()
        again = learn(server.url, BEFORE + 20, 5)
        assert [answer.seq for answer in again] == list(range(BEFORE + 1, BEFORE + 6))
        assert asyncio.run(lost_in(redis.url, previous[:BEFORE] + again)) == []
        got = httpx.get(f"{server.url}/metrics", timeout=30).text
        counted = [
            line for line in got.splitlines() if "forks_total{" in line or "lost_rec" in line
        ]
        assert 'dualstream_forks_total{model="m"} 1.0' in counted, counted
        assert 'dualstream_lost_records_total{model="m"} 20.0' in counted, counted
