"""Two `dualstream consume` processes and their server are killed: every message is learned once.

DUALSTREAM_CHAOS_ROUNDS is the number of faults (default 3), DUALSTREAM_CHAOS_SEED their seed.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from random import Random

from dualstream.client import Client
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.journal import open_journal
from dualstream.service.replica.replica import Replica
from tests.chaos.check_models import _learned_in_one_go
from tests.chaos.report import Run, recorded
from tests.docs.documents import ROOT
from tests.history import read_all
from tests.tansu import Broker, running_tansu

FAULTS = int(os.environ.get("DUALSTREAM_CHAOS_ROUNDS", "3"))
SEED = int(os.environ.get("DUALSTREAM_CHAOS_SEED", "1"))
SPEC = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 1 << 20}}
PARTITIONS, MESSAGES = 3, 400
"""Messages of a partition that are written before each fault."""
WHAT = "2 Kafka consumers, 3 partitions, server and consumers killed"
# Tansu begins a group after half of the session timeout.
SHORT = ("--kafka", "session.timeout.ms=1000", "--kafka", "heartbeat.interval.ms=200")
BATCHES = ("--batch-rows", "20", "--batch-wait", "0.05")
SETTLING_S = 120.0


def message(partition: int, offset: int) -> bytes:
    """A row whose only feature is its partition and offset."""
    tag = partition * 100_000 + offset + 1
    return json.dumps({"x": {str(tag): 1}, "y": tag % 2, "id": f"m{tag}"}).encode()


class Storm:
    """A server, two consumers, and faults from a seed."""

    def __init__(self, run: Run, tansu: Broker, folder: Path) -> None:
        self._run, self._tansu, self._chance = run, tansu, Random(SEED)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = probe.getsockname()[1]
        self._log = (folder / "consumers.log").open("ab")
        self.store = f"sqlite:///{folder / 'store.db'}"
        self.url = f"http://127.0.0.1:{self._port}"
        self.server = self._serve()
        self.written = 0
        with Client(self.url) as client:
            client.create("m", SPEC)
        tansu.create("storm", PARTITIONS)
        self.consumers = [self._consume(), self._consume()]

    def _serve(self) -> ServerProcess:
        flags = ("--keep-records", "1000000", "--snapshot-every", "400")
        return ServerProcess(self.store, [*flags, "--port", str(self._port)])

    def _consume(self) -> "subprocess.Popen[bytes]":
        topic = f"kafka://{self._tansu.brokers}/storm"
        command = [sys.executable, "-m", "dualstream.service", "consume", topic, "--model", "m"]
        return subprocess.Popen(
            [*command, "--url", self.url, *SHORT, *BATCHES],
            stdout=self._log,
            stderr=self._log,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )

    def write(self) -> None:
        """Write more messages to every partition."""
        for partition in range(PARTITIONS):
            offsets = range(self.written, self.written + MESSAGES)
            self._tansu.send("storm", [message(partition, n) for n in offsets], partition)
        self.written += MESSAGES

    def fault(self) -> None:
        """Kill something at a seeded moment while messages are learned."""
        self.write()
        before = self.learned()
        deadline = time.monotonic() + SETTLING_S
        while self.learned() == before:
            assert time.monotonic() < deadline, "nothing is learned"
            time.sleep(0.02)
        time.sleep(self._chance.uniform(0.0, 0.3))
        number = self._chance.randrange(2)
        what = ("server", "consumer", "rebalance")[self._run.faults.total() % 3]
        if what == "server":
            self.server.kill()
            self._run.faults["server killed"] += 1
            self.server = self._serve()
        elif what == "consumer":
            self.consumers[number].kill()
            self.consumers[number].wait()
            self._run.faults["consumer killed"] += 1
            self.consumers[number] = self._consume()
        else:  # a member that leaves, and one that joins, while batches are in flight
            self.consumers[number].terminate()
            self._run.faults["rebalance"] += 1
            # A process that is still starting has no handler yet.
            assert self.consumers[number].wait(timeout=60) in (0, -signal.SIGTERM)
            self.consumers[number] = self._consume()

    def learned(self) -> int:
        with Client(self.url) as client:
            return client.get("m").samples or 0

    def settle(self) -> None:
        """Wait until every message is learned."""
        deadline = time.monotonic() + SETTLING_S
        while self.learned() < PARTITIONS * self.written:
            assert time.monotonic() < deadline, self.learned()
            time.sleep(0.1)

    def end(self) -> None:
        for consumer in self.consumers:
            consumer.kill()
            consumer.wait()
        self.server.kill()
        self._log.close()


async def check(storm: Storm, digest: str) -> None:
    """Each message is journalled once, in order, and one learner has every bit of the state."""
    journal = await open_journal(storm.store)
    try:
        record = await journal.get("m")
        replayed = Replica(record)
        await replayed.catch_up(journal)
        entries = await read_all(journal, "m", record.incarnation)
        _, batch = _learned_in_one_go(record, replayed, entries)
        assert replayed.capture().state_digest() == digest
    finally:
        await journal.close()
    tags = batch.indices.tolist()
    for partition in range(PARTITIONS):
        found = [tag - partition * 100_000 for tag in tags if tag // 100_000 == partition]
        assert [tag - found[0] for tag in found] == list(range(storm.written)), partition
    assert len(tags) == PARTITIONS * storm.written


def test_every_message_is_learned_once(tmp_path):
    with recorded(Run(WHAT, "SQLite `normal`", seeds=[SEED])) as run:
        with running_tansu(tmp_path / "tansu.log") as tansu:
            storm = Storm(run, tansu, tmp_path)
            try:
                for _ in range(FAULTS):
                    storm.fault()
                storm.settle()
                with Client(storm.url) as client:
                    digest = client.get("m", digest=True).state_digest
                    cursors = {one.name: one.next for one in client.sources("m")}
            finally:
                storm.end()
        assert cursors == {f"kafka/storm/{n}": storm.written for n in range(PARTITIONS)}
        asyncio.run(check(storm, digest))
        run.acknowledged += PARTITIONS * storm.written
    assert run.outcome == "passed"
