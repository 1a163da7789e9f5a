"""The Kafka reader on real brokers: Tansu, and librdkafka's mock cluster for what Tansu has not."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from confluent_kafka import Producer

from dualstream.client import BadInput
from dualstream.consume.kafka import KafkaReader, parse_settings
from dualstream.consume.loop import Consumer
from dualstream.consume.progress import KafkaProgress
from dualstream.consume.reader import Bounds, Message, ReaderError
from dualstream.consume.rows import RowLines
from tests.consume.fakes import FakeServer, away
from tests.consume.support import Letters, numbers, row
from tests.tansu import Broker, running_tansu

# Tansu begins a group after half of the session timeout.
QUICK = {"session.timeout.ms": "2000", "heartbeat.interval.ms": "200"}
# The mock cluster begins a group after 3 s.
LONG = {"session_timeout_ms": "6000"}


@pytest.fixture(scope="module")
def tansu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_tansu(tmp_path_factory.mktemp("tansu") / "log") as broker:
        yield broker


@pytest.fixture
def mock() -> Iterator[Broker]:
    """A mock cluster of librdkafka; it lives as long as the client that made it."""
    owner = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0})
    (one,) = owner.list_topics(timeout=10).brokers.values()
    yield Broker(f"{one.host}:{one.port}")


@pytest.fixture
def reading() -> Iterator[Callable[..., KafkaReader]]:
    """Makes readers, which are closed afterwards."""
    made: list[KafkaReader] = []

    def read(broker: Broker, topic: str, group: str = "", said: list[str] | None = None, **options):
        lines = [] if said is None else said
        settings = QUICK | {name.replace("_", "."): value for name, value in options.items()}
        made.append(KafkaReader(broker.brokers, [topic], group or topic, settings, lines.append))
        return made[-1]

    yield read
    for one in made:
        one.close()


def consumer(reader: KafkaReader, server: FakeServer, **options) -> Consumer:
    options = {"max_rows": 100, "max_bytes": 1_000_000, "max_wait_s": 0.05} | options
    return Consumer(reader, server, RowLines(), options.pop("dead", Letters()), **options)


def until(done: Callable[[], bool], *consumers: Consumer, seconds: float = 30.0) -> None:
    """Let consumers run by turns until something is so."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        for one in consumers:
            one.turn()


def test_partitions_are_read_from_the_cursors(tansu, reading):
    tansu.create("three", 3)
    for partition in range(3):
        tansu.send("three", [row(1000 * partition + n) for n in range(500)], partition)
    server = FakeServer()
    server.cursors["kafka/three/1"] = 490
    one = consumer(reading(tansu, "three"), server)
    until(lambda: len(server.learned) == 1010, one)
    expected = {0: range(500), 1: range(1490, 1500), 2: range(2000, 2500)}
    for partition, numbers_of in expected.items():
        results = [n for n in numbers(server) if n // 1000 == partition]
        assert results == list(numbers_of)
    assert server.cursors == {f"kafka/three/{n}": 500 for n in range(3)}
    # The lag counts down to 0.
    assert server.lags[-1] == 0
    assert {one.lag_rows for one in one.counters.partitions.values()} == {0}


def test_a_cursor_after_the_end_of_the_log_is_an_error(tansu, reading):
    tansu.create("short")
    tansu.send("short", [row(n) for n in range(3)])
    source, reader, server = "kafka/short/0", reading(tansu, "short"), FakeServer()
    until(lambda: len(server.learned) == 3, consumer(reader, server))
    reader.check_cursor(source, 3)
    with pytest.raises(ReaderError, match="the model's cursor is 4, but the log ends at"):
        reader.check_cursor(source, 4)
    with pytest.raises(OSError, match="the end of the log is unknown"):
        reader.check_cursor("kafka/short/1", 4)


def test_messages_that_came_during_a_wait_are_before_the_end_and_are_dropped_by_a_start(
    tansu, reading
):
    tansu.create("kept")
    tansu.send("kept", [row(n) for n in range(3)])
    source, reader = "kafka/kept/0", reading(tansu, "kept")
    until(lambda: source in reader.assigned(), consumer(reader, FakeServer()))
    reader.start(source, 0)
    results: list[Message] = []
    while len(results) < 3 or not reader.is_at_end(source):
        results += reader.read(10, 0.1)
    reader._kept = results[1:]
    assert not reader.is_at_end(source)
    reader.start(source, 0)
    again: list[Message] = []
    while len(again) < 3:
        again += reader.read(10, 0.1)
    assert again == results


def test_messages_have_key_time_and_headers(tansu, reading):
    tansu.create("fields")
    tansu.send("fields", [b"{}"], key=b"ann", headers=[("tenant", b"x"), ("tenant", b"y")])
    tansu.send("fields", [None])
    reader = reading(tansu, "fields")
    results: list[Message] = []
    while len(results) < 2:
        for source in set(reader.assigned()) - reader._next.keys():
            reader.start(source, 0)
        results += reader.read(10, 0.1)
    first, second = results
    assert (first.source, first.offset) == ("kafka/fields/0", 0)
    assert (first.value, first.key) == (b"{}", b"ann")
    assert abs(first.timestamp_ms / 1000 - time.time()) < 60
    assert list(first.headers) == [("tenant", b"x"), ("tenant", b"y")]
    assert (second.offset, second.value, second.key) == (1, None, None)


def test_messages_of_ten_megabytes_are_read(tansu, reading):
    tansu.create("big")
    text = json.dumps({"x": {"n": 1, "text": "z" * 10_000_000}, "y": 1}).encode()
    tansu.send("big", [row(0), text, row(2)])
    server, dead = FakeServer(), Letters()
    until(
        lambda: server.cursors.get("kafka/big/0") == 3,
        consumer(reading(tansu, "big"), server, dead=dead),
    )
    assert numbers(server) == [0, 2] and dead.written == [("kafka/big/0", 1, "body-too-large")]


def test_two_members_share_the_partitions_and_one_takes_over(tansu, reading):
    tansu.create("shared", 2)
    server = FakeServer()
    readers = [reading(tansu, "shared", "group") for _ in range(2)]
    both = [consumer(reader, server) for reader in readers]
    until(lambda: all(len(reader.assigned()) == 1 for reader in readers), *both)
    for partition in range(2):
        tansu.send("shared", [row(n) for n in range(50)], partition)
    until(lambda: len(server.learned) == 100, *both)
    readers[0].close()
    tansu.send("shared", [row(n) for n in range(50, 60)], 0)
    tansu.send("shared", [row(n) for n in range(50, 60)], 1)
    until(lambda: len(server.learned) == 120, both[1])
    assert sorted(numbers(server)) == sorted(2 * list(range(60)))


def test_a_member_without_a_partition_says_so(tansu, reading):
    tansu.create("single")
    said: list[list[str]] = [[], []]
    readers = [reading(tansu, "single", "crowd", one) for one in said]
    both = [consumer(reader, FakeServer()) for reader in readers]
    until(lambda: sum(map(len, said)) > 0 and any(one.assigned() for one in readers), *both)
    idle = next(n for n, one in enumerate(readers) if not one.assigned())
    assert said[idle] == [
        "Kafka: other processes of the group crowd have all partitions (1); waiting for one"
    ]
    readers[1 - idle].close()
    until(lambda: bool(readers[idle].assigned()), both[idle])


def test_reader_continues_after_waiting_for_the_server(tansu, reading):
    """Waiting pauses the partitions; no message that was fetched before is lost or repeated."""
    tansu.create("waits")
    tansu.send("waits", [row(n) for n in range(3000)])
    server = FakeServer()
    one = consumer(reading(tansu, "waits"), server)
    until(lambda: len(server.learned) > 200, one)
    for _ in range(5):
        server.failures = [away(0.2)]
        for _ in range(3):
            one.turn()
    until(lambda: len(server.learned) == 3000, one)
    assert numbers(server) == list(range(3000))
    assert [n for _, start, end, n in server.requests if end - start != n] == []


def test_the_progress_of_a_topic_is_that_of_the_cursors(tansu):
    tansu.create("progress", 2)
    tansu.send("progress", [row(n) for n in range(5)], 0)
    first, second = "kafka/progress/0", "kafka/progress/1"
    at: dict[str, int] = {}
    with closing(KafkaProgress(tansu.brokers, "progress", "g", lambda: at, {}, print)) as progress:
        ends = progress.ends()
        assert ends == {first: 5, second: 0}
        for at[first], is_read in ((0, False), (4, False), (5, True)):
            assert progress.ends() == ends and progress.is_read(ends) == is_read
        tansu.send("progress", [row(1)], 0)
        assert progress.is_read(ends)
        # The last offsets may have no message: the end of a transaction is one.
        at[first] = 6
        assert progress.is_read({first: 8, second: 3})
    with pytest.raises(ReaderError, match="the topic 'nothing' cannot be read"):
        KafkaProgress(tansu.brokers, "nothing", "g", None, {}, print)


def test_without_cursors_the_progress_is_what_the_group_has_committed(tansu, reading):
    tansu.create("committed", 2)
    tansu.send("committed", [row(n) for n in range(5)], 1)
    with closing(
        KafkaProgress(tansu.brokers, "committed", "committed", None, {}, print)
    ) as progress:
        ends = progress.ends()
        assert ends == {"kafka/committed/0": 0, "kafka/committed/1": 5} and not progress.is_read(
            ends
        )
        reader = reading(tansu, "committed")
        deadline = time.monotonic() + 30
        while not reader.assigned():
            assert time.monotonic() < deadline
            reader.read(1, 0.05)
        for offset, is_read in ((4, False), (5, True)):
            reader.commit("kafka/committed/1", offset)
            assert progress.is_read(ends) == is_read


def test_a_topic_that_does_not_exist_is_an_error(tansu, reading):
    with pytest.raises(ReaderError, match="the topic 'nothing' cannot be read: .*[Uu]nknown topic"):
        reading(tansu, "nothing")


def test_a_broker_that_is_away_is_an_error(reading, monkeypatch):
    monkeypatch.setattr("dualstream.consume.kafka.ANSWER_S", 1.0)
    with pytest.raises(ReaderError, match="no Kafka broker answers at 127.0.0.1:9: .*refused"):
        reading(Broker("127.0.0.1:9"), "clicks")


def test_settings_are_passed_and_ours_are_refused_by_name():
    assert parse_settings(["sasl.mechanisms=PLAIN", "sasl.password=a=b"]) == {
        "sasl.mechanisms": "PLAIN",
        "sasl.password": "a=b",
    }
    with pytest.raises(BadInput, match="group.id: use --group"):
        parse_settings(["group.id=x"])
    with pytest.raises(BadInput, match="KEY=VALUE"):
        parse_settings(["sasl.mechanisms"])


def test_a_setting_that_librdkafka_does_not_know_is_an_error(tansu, reading):
    with pytest.raises(BadInput, match='--kafka: No such configuration property: "no.such"'):
        reading(tansu, "three", no_such="1")


def test_partitions_that_are_added_are_read_from_their_first_message(mock, reading, monkeypatch):
    """Neither broker can add partitions, so the number at the start is planted."""
    monkeypatch.setattr(KafkaReader, "_partitions", lambda self, topic, brokers: 1)
    for partition in range(2):
        mock.send("grows", [row(partition)], partition)
    server = FakeServer()
    one = consumer(reading(mock, "grows", **LONG), server, reset="latest")
    until(lambda: len(server.cursors) >= 2 and bool(server.learned), one)
    assert numbers(server) == [1] and server.cursors["kafka/grows/0"] == 1


def test_bounds_of_a_revoked_partition_are_unknown(mock, reading):
    """A thread that reads may revoke it while a batch asks for them."""
    mock.send("gone", [row(0)])
    reader, source = reading(mock, "gone", **LONG), "kafka/gone/0"
    deadline = time.monotonic() + 30
    while source not in reader.assigned() and time.monotonic() < deadline:
        reader.read(1, 0.1)
    assert reader.bounds(source) == Bounds(0, 1, 0)
    reader._on_revoke(reader._consumer, [])
    assert reader.bounds(source) is None
    with pytest.raises(OSError, match="end of the log is unknown"):
        reader.check_cursor(source, 5)


def test_a_log_that_has_passed_the_cursor_is_refused_by_name(mock, reading):
    """The mock cluster keeps 5 MiB of a partition."""
    mock.send("short", [json.dumps({"x": {"t": "z" * 500_000}, "y": 1}).encode()] * 30)
    server = FakeServer()
    server.cursors["kafka/short/0"] = 2
    with pytest.raises(ReaderError, match=r"kafka/short/0: the model's cursor is 2, but the log b"):
        until(lambda: False, consumer(reading(mock, "short", **LONG), server))
    server.max_body = 10_000_000
    until(
        lambda: server.cursors["kafka/short/0"] == 30,
        consumer(reading(mock, "short", "again", **LONG), server, reset="earliest"),
    )
    assert 0 < len(server.learned) < 28
