"""Tansu, a broker of Kafka's protocol: on a free port, in memory, for tests and benchmarks."""

import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import repeat
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.ports import free_port

UNPACKED = Path(__file__).parent.parent / ".cache" / "tansu" / "tansu"
"""Where tests/fetch_tool.sh tansu puts it."""
START_S = 30.0


def program() -> str:
    """Path of the broker. Raises RuntimeError without it."""
    result = shutil.which("tansu") or (str(UNPACKED) if UNPACKED.exists() else None)
    if result is None:
        raise RuntimeError("no tansu: run tests/fetch_tool.sh tansu")
    return result


class Broker:
    """A broker at `brokers`, with helpers that write and read whole topics."""

    def __init__(self, brokers: str) -> None:
        self.brokers = brokers
        self._client = {"bootstrap.servers": brokers, "log_level": 0}

    @cached_property
    def _producer(self) -> Producer:
        return Producer(self._client | {"message.max.bytes": 50_000_000})

    def create(self, topic: str, partitions: int = 1) -> str:
        """Create a topic; returns its URL."""
        admin = AdminClient(self._client)
        for done in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
            done.result(timeout=30)
        return self.url(topic)

    def url(self, topic: str) -> str:
        return f"kafka://{self.brokers}/{topic}"

    def send(
        self,
        topic: str,
        values: Iterable[bytes | None],
        partition: int = 0,
        key: bytes | list[bytes] | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Write messages to a partition, and wait until they are acknowledged.

        `key` is that of all messages, or a list with one for each.
        """
        failed: list[object] = []
        keys = iter(key) if isinstance(key, list) else repeat(key)
        for value, one in zip(values, keys, strict=False):
            while True:
                try:
                    self._producer.produce(
                        topic,
                        value,
                        one,
                        partition,
                        headers=list(headers),
                        on_delivery=lambda error, _: failed.append(error) if error else None,
                    )
                    break
                except BufferError:
                    self._producer.poll(0.05)
        assert self._producer.flush(60) == 0 and failed == [], failed

    def whole(self, topic: str) -> list:
        """All messages of partition 0. Tansu does not name the last offset when it is asked."""
        consumer = Consumer(self._client | {"group.id": "check", "enable.partition.eof": True})
        consumer.assign([TopicPartition(topic, 0, 0)])
        results: list = []
        errors: list = []
        try:
            while KafkaError._PARTITION_EOF not in errors:
                for one in consumer.consume(10_000, 1.0):
                    results += [one] if one.error() is None else []
                    errors += [] if one.error() is None else [one.error().code()]
        finally:
            consumer.close()
        return results

    def has_working_group(self, topic: str, group: str, seconds: float = 20.0) -> bool:
        """Does the only member of a group get partitions? Tansu sometimes gives none for ever."""
        assigned: list = []
        consumer = Consumer(self._client | {"group.id": group, "session.timeout.ms": 1000})
        consumer.subscribe([topic], on_assign=lambda _, partitions: assigned.extend(partitions))
        deadline = time.monotonic() + seconds
        try:
            while not assigned and time.monotonic() < deadline:
                consumer.poll(0.2)
        finally:
            consumer.close()
        return bool(assigned)

    def messages(self, topic: str, count: int, seconds: float = 20.0) -> list:
        """The first `count` messages of partition 0. Raises AssertionError if they do not come."""
        consumer = Consumer(self._client | {"group.id": "check"})
        consumer.assign([TopicPartition(topic, 0, 0)])
        results: list = []
        deadline = time.monotonic() + seconds
        try:
            while len(results) < count:
                assert time.monotonic() < deadline, f"{len(results)} of {count} messages"
                results += [one for one in consumer.consume(count, 0.2) if one.error() is None]
        finally:
            consumer.close()
        return results


@contextmanager
def running_tansu(log: Path) -> Iterator[Broker]:
    """A broker for the duration of a with block. Its topics are empty at the start."""
    with running_tansu_at(free_port(), log) as broker:
        yield broker


@contextmanager
def running_tansu_at(port: int, log: Path) -> Iterator[Broker]:
    """As `running_tansu`, on this port."""
    url = f"tcp://127.0.0.1:{port}"
    arguments = ["broker", "--storage-engine", "memory://tansu/"]
    arguments += ["--listener-url", url, "--advertised-listener-url", url]
    with log.open("ab") as said:
        process = subprocess.Popen([program(), *arguments], stdout=said, stderr=said)
    try:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 0})
        deadline = time.monotonic() + START_S
        while True:
            try:
                admin.list_topics(timeout=1)
                break
            except KafkaException:
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
        yield Broker(f"127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait(timeout=30)
