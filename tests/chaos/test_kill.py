"""kill -9 in the middle of a stream: what was acknowledged is there once, to the bit.

DUALSTREAM_CHAOS_ROUNDS says how many kills each test makes (default 2).
"""

import asyncio
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from service.demo.adult import adult_lines
from service.demo.server_process import ServerProcess
from service.journal import open_journal
from service.journal.record import decode_merged
from service.replica import Replica, as_batch
from solvers import Batch, Progressive, make_learner, resolve_spec
from tests.history import Acknowledged, check_history, read_all
from tests.service.test_workers import children

ROUNDS = int(os.environ.get("DUALSTREAM_CHAOS_ROUNDS", "2"))
SPEC = {"algorithm": "dual_ascent", "loss": "hinge", "features": {"kind": "indexed", "dim": 123}}
# Small, so that each kill meets snapshots that are written or were just read.
FLAGS = ("--snapshot-every", "150")
SENDERS = 4


# What the senders repeat safely by, in turn.
BY_KEY, BY_IDS, BY_BOTH = "key", "ids", "both"
WAYS = (BY_KEY, BY_IDS, BY_BOTH, BY_KEY)


class Stream:
    """Several senders, each with its own rows; every request is sent until it is known.

    Some requests have a key, some rows have ids, some both. Now and then one that was answered is
    sent once more.
    """

    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines
        self.replayed = 0
        self.acknowledged: list[Acknowledged] = []
        self.url = ""
        self._senders: list[threading.Thread] = []
        self.stop = threading.Event()

    def start(self) -> None:
        self._senders = [threading.Thread(target=self.send, args=(k,)) for k in range(SENDERS)]
        for sender in self._senders:
            sender.start()

    def join(self) -> None:
        self.stop.set()
        for sender in self._senders:
            sender.join()

    def wait_for(self, more: int) -> None:
        """Until so many more answers have come, or all rows are sent."""
        target = len(self.acknowledged) + more
        while len(self.acknowledged) < target and any(s.is_alive() for s in self._senders):
            self.stop.wait(0.002)

    def send(self, sender: int) -> None:
        mine = list(range(sender, len(self._lines), SENDERS))
        with httpx.Client(timeout=10) as client:
            for first in range(0, len(mine), 3):
                rows = mine[first : first + 3]
                way = WAYS[sender % len(WAYS)]
                request = self._request(f"{sender}-{first}", rows, way)
                told = self._send_until_known(client, request)
                if told is None:
                    return
                self._acknowledge(f"{sender}-{first}", rows, way, told)
                if first % 5 == 0:
                    again = self._send_until_known(client, request)
                    if again is None:
                        return
                    self._check_again(way, told, again)

    def _request(self, key: str, rows: list[int], way: str) -> dict[str, Any]:
        headers = {} if way == BY_IDS else {"idempotency-key": key}
        if way == BY_KEY:
            body = b"\n".join(self._lines[row] for row in rows)
            return {"content": body, "headers": headers | {"content-type": "text/x-libsvm"}}
        samples = [as_sample(self._lines[row]) | {"id": f"row:{row}"} for row in rows]
        return {"json": {"samples": samples}, "headers": headers}

    def _send_until_known(
        self, client: httpx.Client, request: dict[str, Any]
    ) -> dict[str, Any] | None:
        while not self.stop.is_set():
            try:
                answer = client.post(f"{self.url}/models/m/learn", **request)
            except httpx.TransportError:
                self.stop.wait(0.02)
                continue
            if answer.status_code == 200:
                told: dict[str, Any] = answer.json()
                return told
            assert answer.status_code == 503, answer.text
            self.stop.wait(0.02)
        return None

    def _acknowledge(self, key: str, rows: list[int], way: str, told: dict[str, Any]) -> None:
        if way != BY_IDS:
            self.acknowledged.append(Acknowledged(key, told["seq"], told["count"]))
            return
        stands = {rows[left["index"]]: left["seq"] for left in told.get("duplicates", ())}
        new = [row for row in rows if row not in stands]
        assert len(new) == told["count"]
        stands |= dict(zip(new, range(told["seq"] - len(new) + 1, told["seq"] + 1), strict=True))
        self.acknowledged.extend(Acknowledged(f"row:{row}", stands[row]) for row in rows)

    def _check_again(self, way: str, told: dict[str, Any], again: dict[str, Any]) -> None:
        """By its key a request has its first answer again, by their ids the rows are known."""
        self.replayed += 1
        assert again["duplicate"] is True
        if way == BY_IDS:
            assert again["count"] == 0 and len(again["duplicates"])
        else:
            assert again == told | {"duplicate": True}


def as_sample(line: bytes) -> dict[str, Any]:
    """A LIBSVM line as JSON."""
    label, *pairs = line.decode().split()
    named = dict(pair.split(":") for pair in pairs)
    return {"x": {index: float(value) for index, value in named.items()}, "y": int(label)}


@pytest.fixture
def stream() -> Iterator[Stream]:
    stream = Stream(adult_lines()[:6000])
    yield stream
    stream.stop.set()


def test_acknowledged_rows_survive_kill_9_once(store, stream):
    rng = random.Random(7)
    server = ServerProcess(store, FLAGS)
    try:
        begin(stream, server)
        for _ in range(ROUNDS):
            stream.wait_for(rng.randint(30, 90))
            server.kill()
            server = ServerProcess(store, FLAGS)
            stream.url = server.url
        served, metrics = end(store, stream)
    finally:
        server.kill()
    check(store, stream, served, metrics)


def test_acknowledged_rows_survive_kill_9_of_single_workers(store, stream):
    rng = random.Random(8)
    server = ServerProcess(store, (*FLAGS, "--workers", "2"), stderr=subprocess.DEVNULL)
    try:
        begin(stream, server)
        for _ in range(ROUNDS):
            stream.wait_for(rng.randint(30, 90))
            os.kill(rng.choice(children(server)), signal.SIGKILL)
        served, metrics = end(store, stream)
    finally:
        server.stop()
    check(store, stream, served, metrics)


def begin(stream: Stream, server: ServerProcess) -> None:
    httpx.put(f"{server.url}/models/m", json=SPEC, timeout=120).raise_for_status()
    stream.url = server.url
    stream.start()


def end(store: str, stream: Stream) -> tuple[dict[str, Any], dict[str, Any]]:
    """Let the senders finish what is under way; what is served after that, all of it applied."""
    stream.stop.wait(0.3)
    stream.join()
    head = asyncio.run(head_of(store))
    url = f"{stream.url}/models/m"
    for _ in range(200):
        # Whichever worker answers follows what others have journalled, acknowledged or not.
        served = httpx.get(f"{url}/weights?top=1000", timeout=60)
        metrics = httpx.get(f"{url}/metrics", timeout=60)
        if served.headers.get("etag") == metrics.headers.get("etag") == head:
            return served.json(), metrics.json()
        time.sleep(0.05)
    raise AssertionError(f"{head} {served.headers} {metrics.headers}")


async def head_of(store: str) -> str:
    """The ETag of the model as the store has it."""
    journal = await open_journal(store)
    try:
        record = await journal.get("m")
        return f'"{record.seq}-{record.chain[:8]}"'
    finally:
        await journal.close()


def check(store: str, stream: Stream, served: dict[str, Any], metrics: dict[str, Any]) -> None:
    """Each acknowledged row is journalled once, and what was served is the journal's state."""
    assert stream.replayed
    replica, rows = asyncio.run(journal_and_state(store, stream.acknowledged))
    assert_as_if_never_stopped(replica, rows)
    assert {w["index"]: w["weight"] for w in served["weights"]} == {
        j + 1: w for j, w in enumerate(replica.learner.weights.tolist()) if w
    }
    assert metrics["samples"] == len(rows)


async def journal_and_state(store: str, acknowledged: list[Acknowledged]) -> tuple[Replica, Batch]:
    """The replica that a new process would load, and the journal's rows in order."""
    journal = await open_journal(store)
    try:
        record = await journal.get("m")
        replica = Replica(record)
        await replica.load(journal)
        await check_history(journal, "m", acknowledged, samples=replica.learner.samples)
        entries = await read_all(journal, "m", record.incarnation)
        _, blocks = decode_merged(b"".join(entry.body for entry in entries))
        return replica, Batch.concat([as_batch(block, 123) for block in blocks])
    finally:
        await journal.close()


def assert_as_if_never_stopped(replica: Replica, rows: Batch) -> None:
    """One learner that saw the journal's rows in one go has every bit of the replica's state."""
    learner = make_learner(resolve_spec(SPEC))
    outcome = learner.learn(rows)
    progress = Progressive("binary")
    progress.update(rows.labels, outcome.scores, outcome.losses, ~outcome.rejected)
    for mine, theirs in (
        (replica.learner.state(), learner.state()),
        (replica.progress.state(), progress.state()),
    ):
        assert mine.keys() == theirs.keys()
        for name in mine:
            assert mine[name].tobytes() == theirs[name].tobytes(), name
