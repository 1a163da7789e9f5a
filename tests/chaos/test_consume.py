"""Two `dualstream consume` processes and their server are killed: every message is learned once.

They read a Kafka topic of three partitions, for one model or for three, or a stream of Redis or
NATS, which is killed, too. One process reads topics of MQTT.

DUALSTREAM_CHAOS_ROUNDS is the number of faults (default 3), DUALSTREAM_CHAOS_SEED their seed.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest
import redis

from dualstream.client import Client
from dualstream.service.cli.demo.server_process import ServerProcess
from dualstream.service.features import ALL
from dualstream.service.journal import open_journal
from dualstream.service.replica.replica import Replica
from tests.chaos.check_models import _learned_in_one_go
from tests.chaos.report import Run, recorded
from tests.forked import ForkedProcess
from tests.history import read_all
from tests.mosquitto import Mosquitto, running_mosquitto
from tests.nats_server import NatsServer, running_nats
from tests.ports import free_port
from tests.redis_server import RedisServer, redis_or_skip
from tests.tansu import Broker, running_tansu

FAULTS = int(os.environ.get("DUALSTREAM_CHAOS_ROUNDS", "3"))
SEED = int(os.environ.get("DUALSTREAM_CHAOS_SEED", "1"))
SPEC = {"algorithm": "dual_ascent", "features": {"kind": "indexed", "dim": 1 << 20}}
MESSAGES = 400
"""Messages of a partition that are written before each fault."""
BATCHES = ("--batch-rows", "20", "--batch-wait", "0.05")
SETTLING_S = 120.0
STUCK_S = 30.0
"""Seconds without progress after which the group of the consumers is examined."""


def message(partition: int, offset: int) -> bytes:
    """A row whose only feature is its partition and offset."""
    tag = partition * 100_000 + offset + 1
    return json.dumps({"x": {str(tag): 1}, "y": tag % 2, "id": f"m{tag}"}).encode()


class Log:
    """What the consumers read; `restart` is a fault of the log itself."""

    what = ""
    url = ""
    partitions = 1
    consumers = 2
    models = ("m",)
    """Models that learn: message n of a partition is for model n modulo their number."""
    faults = ("server", "consumer", "log", "rebalance")
    flags: tuple[str, ...] = ("--model", "m")

    def send(self, partition: int, offsets: Sequence[int]) -> None:
        raise NotImplementedError

    def restart(self) -> None:
        raise NotImplementedError

    def in_group(self, number: int) -> tuple[str, ...]:
        """Flags of the consumers of this group."""
        return ()

    def has_working_group(self, number: int) -> bool:
        """Can a group be read that no process reads?"""
        return True

    def cursors(self, written: int) -> dict[str, int | str]:
        """The cursors of a model that has learned all messages."""
        raise NotImplementedError

    def check_cursors(self, result: Sequence[dict[str, int | str]], written: int) -> None:
        """Assert that the cursors of the models are after all messages."""
        assert result == [self.cursors(written)]


class Topic(Log):
    """A topic of Tansu."""

    what = "2 Kafka consumers, 3 partitions, server and consumers killed"
    partitions = 3
    faults = ("server", "consumer", "rebalance")
    # Tansu begins a group after half of the session timeout.
    short = ("--kafka", "session.timeout.ms=1000", "--kafka", "heartbeat.interval.ms=200")
    flags = (*Log.flags, *short)

    def __init__(self, tansu: Broker) -> None:
        self._tansu = tansu
        self.url = tansu.create("storm", self.partitions)

    def send(self, partition: int, offsets: Sequence[int]) -> None:
        self._tansu.send("storm", [message(partition, n) for n in offsets], partition)

    def in_group(self, number: int) -> tuple[str, ...]:
        return ("--group", f"group{number}")

    def has_working_group(self, number: int) -> bool:
        return self._tansu.has_working_group("storm", f"group{number}")

    def cursors(self, written: int) -> dict[str, int | str]:
        """The cursors of a model that has learned all messages."""
        return {f"kafka/storm/{n}": written for n in range(self.partitions)}


class RoutedTopic(Topic):
    """A topic whose messages have one of three models as key."""

    what = "2 Kafka consumers, 3 partitions, 3 models by --route, server and consumers killed"
    models = ("m0", "m1", "m2")
    faults = (*Topic.faults, "both")
    flags = ("--route", "key", *Topic.short)

    def send(self, partition: int, offsets: Sequence[int]) -> None:
        keys = [self.models[n % len(self.models)].encode() for n in offsets]
        self._tansu.send("storm", [message(partition, n) for n in offsets], partition, keys)

    def check_cursors(self, result: Sequence[dict[str, int | str]], written: int) -> None:
        # A cursor moves with the rows of its model: the last one is among the last three.
        for number, one in enumerate(result):
            last = max(range(number, written, len(self.models)))
            assert one.keys() == self.cursors(written).keys()
            assert all(last < cursor <= written for cursor in one.values()), one


class Stream(Log):
    """A stream of a Redis that loses nothing when it is killed."""

    what = "2 consumers of a Redis stream, server, consumers and Redis killed"

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self.url = f"{server.url}/storm"

    def send(self, partition: int, offsets: Sequence[int]) -> None:
        with redis.Redis.from_url(self._server.url) as client, client.pipeline() as sent:
            for n in offsets:
                sent.xadd("storm", {"json": message(partition, n)})
            sent.execute()

    def restart(self) -> None:
        self._server.kill()
        self._server.start()

    def cursors(self, written: int) -> dict[str, int | str]:
        """The cursors of a model that has learned all messages."""
        with redis.Redis.from_url(self._server.url) as client:
            last = client.xinfo_stream("storm")["last-generated-id"]
        return {"redis/storm": last.decode()}


class Jets(Log):
    """A stream of NATS in files, which a killed process leaves whole."""

    what = "2 consumers of a NATS stream, server, consumers and NATS killed"

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self.url = server.create("storm")

    def send(self, partition: int, offsets: Sequence[int]) -> None:
        self._server.send("storm", [message(partition, n) for n in offsets])

    def restart(self) -> None:
        self._server.kill()
        self._server.start()

    def cursors(self, written: int) -> dict[str, int | str]:
        """The cursors of a model that has learned all messages."""
        return {"nats/storm": written + 1}


class Session(Log):
    """A session of Mosquitto, which stores it when it is stopped."""

    what = "1 MQTT consumer, server and consumer killed, broker restarted"
    consumers = 1
    faults = (*Log.faults, "both")

    def __init__(self, server: Mosquitto) -> None:
        self._server = server
        self.url = f"mqtt://{server.place}/storm/%23"
        server.subscribe("dualstream-m", "storm/#")

    def send(self, partition: int, offsets: Sequence[int]) -> None:
        self._server.send("storm/a", [message(partition, n) for n in offsets])

    def restart(self) -> None:
        self._server.stop()
        self._server.start()

    def check_cursors(self, result: Sequence[dict[str, int | str]], written: int) -> None:
        # It counts messages, also those that were delivered again.
        assert result[0]["mqtt/dualstream-m"] >= written


class Storm:
    """A server, its consumers, and faults from a seed."""

    def __init__(self, run: Run, log: Log, folder: Path) -> None:
        self._run, self._source, self._chance = run, log, Random(SEED)
        self._port = free_port()
        self._log = (folder / "consumers.log").open("ab")
        self.store = f"sqlite:///{folder / 'store.db'}"
        self.url = f"http://127.0.0.1:{self._port}"
        self.server = self._serve()
        self.written = self._group = 0
        with Client(self.url) as client:
            for model in log.models:
                client.create(model, SPEC)
        self.consumers = [self._consume() for _ in range(log.consumers)]

    def _serve(self) -> ServerProcess:
        flags = ("--keep-records", "1000000", "--snapshot-every", "400")
        return ServerProcess(self.store, [*flags, "--port", str(self._port)])

    def _consume(self) -> ForkedProcess:
        command = [sys.executable, "-m", "dualstream.service", "consume", self._source.url]
        group = self._source.in_group(self._group)
        return ForkedProcess(
            [*command, "--url", self.url, *self._source.flags, *group, *BATCHES],
            stdout=self._log,
            stderr=self._log,
        )

    def write(self) -> None:
        """Write more messages to every partition."""
        for partition in range(self._source.partitions):
            self._source.send(partition, range(self.written, self.written + MESSAGES))
        self.written += MESSAGES

    def fault(self) -> None:
        """Kill something at a seeded moment while messages are learned."""
        before = self.learned()
        self.write()
        self._until(lambda: self.learned() > before)
        time.sleep(self._chance.uniform(0.0, 0.3))
        number = self._chance.randrange(self._source.consumers)
        what = self._source.faults[self._run.faults.total() % len(self._source.faults)]
        if what == "server":
            self.server.kill()
            self._run.faults["server killed"] += 1
            self.server = self._serve()
        elif what in ("consumer", "both"):
            if what == "both":  # what the consumer has read waits for the server
                self.server.kill()
                time.sleep(0.3)
            self.consumers[number].kill()
            self.consumers[number].wait()
            self._run.faults[f"{what} killed"] += 1
            if what == "both":
                self.server = self._serve()
            self.consumers[number] = self._consume()
        elif what == "log":
            self._source.restart()
            self._run.faults["log killed"] += 1
        else:  # a member that leaves, and one that joins, while batches are in flight
            self.consumers[number].terminate()
            self._run.faults["rebalance"] += 1
            # A process that is still starting has no handler yet.
            assert self.consumers[number].wait(timeout=60) in (0, -signal.SIGTERM)
            self.consumers[number] = self._consume()

    def learned(self) -> int:
        with Client(self.url) as client:
            return sum(client.get(model).samples or 0 for model in self._source.models)

    def settle(self) -> None:
        """Wait until every message is learned."""
        self._until(lambda: self.learned() >= self._source.partitions * self.written)

    def _until(self, done: Callable[[], bool]) -> None:
        start = time.monotonic()
        learned, changed = self.learned(), start
        while not done():
            time.sleep(0.1)
            now = time.monotonic()
            assert now < start + SETTLING_S, self.learned()
            if self.learned() != learned:
                learned, changed = self.learned(), now
            if now > changed + STUCK_S:
                self._replace_group()
                changed = time.monotonic()

    def _replace_group(self) -> None:
        """Read in another group. Fails if it is not the broker that has stopped the old one."""
        for consumer in self.consumers:
            consumer.kill()
            consumer.wait()
        assert not self._source.has_working_group(self._group), "the consumers learn nothing"
        self._run.faults["group stopped by the broker"] += 1
        self._group += 1
        self.consumers = [self._consume() for _ in self.consumers]

    def end(self) -> None:
        for consumer in self.consumers:
            consumer.kill()
            consumer.wait()
        self.server.kill()
        self._log.close()


async def check(storm: Storm, log: Log, digests: dict[str, str]) -> None:
    """Each message is journalled once, in order, and one learner has every bit of the state."""
    journal = await open_journal(storm.store)
    total = 0
    try:
        for number, (model, digest) in enumerate(digests.items()):
            record = await journal.get(model)
            replayed = Replica(record, ALL)
            await replayed.catch_up(journal)
            entries = await read_all(journal, model, record.incarnation)
            _, batch = _learned_in_one_go(record, replayed, entries)
            assert replayed.capture().state_digest() == digest
            tags = batch.indices.tolist()
            total += len(tags)
            for partition in range(log.partitions):
                results = [tag % 100_000 for tag in tags if tag // 100_000 == partition]
                assert results == list(range(number, storm.written, len(digests))), partition
    finally:
        await journal.close()
    assert total == log.partitions * storm.written


LOGS = [RoutedTopic, Stream, Jets, Session]
if "DUALSTREAM_CHAOS_ROUNDS" in os.environ:  # `make chaos`; a routed topic has more faults
    LOGS.append(Topic)


@pytest.fixture(params=LOGS)
def log(request, tmp_path):
    if issubclass(request.param, Topic):
        with running_tansu(tmp_path / "tansu.log") as tansu:
            yield request.param(tansu)
    elif request.param is Jets:
        with running_nats(tmp_path / "nats") as server:
            yield Jets(server)
    elif request.param is Session:
        with running_mosquitto(tmp_path / "mosquitto") as server:
            yield Session(server)
    else:
        with redis_or_skip(appendfsync="always") as server:
            yield Stream(server)


def test_every_message_is_learned_once(log, tmp_path):
    with recorded(Run(log.what, "SQLite `normal`", seeds=[SEED])) as run:
        storm = Storm(run, log, tmp_path)
        try:
            for _ in range(max(FAULTS, len(log.faults))):
                storm.fault()
            storm.settle()
            with Client(storm.url) as client:
                digests = {m: client.get(m, digest=True).state_digest or "" for m in log.models}
                cursors = [
                    {one.name: one.next for one in client.sources(model)} for model in log.models
                ]
        finally:
            storm.end()
        log.check_cursors(cursors, storm.written)
        asyncio.run(check(storm, log, digests))
        run.acknowledged += log.partitions * storm.written
    assert run.outcome == "passed"
